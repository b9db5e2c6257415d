"""One variant from beginning to end."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.torture.counts import Counts, count
from e2e.torture.crew import Crew
from e2e.torture.killer import Killer
from e2e.torture.stage import Stage, TortureError
from e2e.torture.stalls import Spread, spread, stalls_ms
from e2e.torture.variants import Variant

_GROWTH_KIB = 2048
_SETTLE_S = 10.0
_QUIET_S = 1.5  # the keeper reaps its children at its next tick
_SPARES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a variant. `faults` is whatever else was not as it must be."""

    variant: str
    seconds: float
    blows: int
    operations: int
    errors: tuple[str, ...]
    wrong: tuple[str, ...]
    faults: tuple[str, ...]
    stalls_ms: tuple[float, ...]
    keeper_kib: tuple[int, int] = (0, 0)
    daemon_kib: tuple[int, int] = (0, 0)

    @property
    def spread(self) -> Spread | None:
        """Return the percentiles of the stalls."""
        return spread(self.stalls_ms)

    @property
    def is_good(self) -> bool:
        """Tell whether nothing was lost, wrong or left behind."""
        return not (self.errors or self.wrong or self.faults)


def torture(
    variant: Variant,
    work: Path,
    *,
    seconds: float,
    blows: int,
    seed: int,
    daemon_entry: Sequence[str] = ("sidecar",),
) -> Outcome:
    """Stage a variant in this process's namespaces, strike, and return what came of it."""
    stage = Stage(work, variant, daemon_entry)
    crew: Crew | None = None
    try:
        stage.wait_live()
        _wait_for_spares(stage)
        time.sleep(_QUIET_S)
        before = count(stage.keeper.pid, stage.first_process())
        began = time.monotonic()
        crew = Crew(stage.places.volume, variant.apps, seconds, seed)
        killer = Killer(stage, variant, random.Random(seed))
        killer.run(began + seconds, blows)
        struck_until = time.monotonic()
        if struck_until < began + seconds:
            crew.stop()
        found = crew.findings()
        stage.wait_live()
        after, faults = _settled(stage, before, variant)
        faults += stage.end()
        return Outcome(
            variant=variant.name,
            seconds=struck_until - began,
            blows=len(killer.blows.moments),
            operations=found.operations,
            errors=tuple(_allowed(found.errors, variant)),
            wrong=tuple(found.wrong),
            faults=tuple(faults),
            stalls_ms=tuple(stalls_ms(killer.blows.moments, found.slow_calls)),
            keeper_kib=(before.keeper_kib, after.keeper_kib),
            daemon_kib=(before.daemon_kib, after.daemon_kib),
        )
    except TortureError as error:
        text = f"{error}\n{stage.log_tails()}"
        return _failed(variant, text)
    finally:
        if crew is not None:
            crew.kill()
        stage.kill_all()


def _allowed(errors: list[str], variant: Variant) -> list[str]:
    """Leave out what a lost connection looks like to the prober where connections may be lost."""
    if not variant.loses:
        return errors
    expected = ("ENOTCONN", "ECONNABORTED", "[Errno 107]", "[Errno 103]", "(107,", "(103,")
    return [e for e in errors if not (e.startswith("prober") and any(word in e for word in expected))]


def _settled(stage: Stage, before: Counts, variant: Variant) -> tuple[Counts, list[str]]:
    """Return what there is of everything, and what is not as before, once nothing is under way any more."""
    until = time.monotonic() + _SETTLE_S
    while True:
        after = count(stage.keeper.pid, stage.first_process())
        faults = before.differences(after, growth_kib=_GROWTH_KIB)
        if variant.loses:
            faults = [
                fault for fault in faults if not fault.startswith("mounts")
            ]  # one layer a loss, bounded
        if not faults or time.monotonic() > until:
            return after, faults
        time.sleep(0.1)


def _wait_for_spares(stage: Stage) -> None:
    """Wait until as many processes wait as at the beginning, so that counts can be compared."""
    until = time.monotonic() + _SETTLE_S
    while len(stage.processes()) != 2 + _SPARES and time.monotonic() < until:
        time.sleep(0.02)


def _failed(variant: Variant, fault: str) -> Outcome:
    return Outcome(
        variant=variant.name,
        seconds=0.0,
        blows=0,
        operations=0,
        errors=(),
        wrong=(),
        faults=(fault,),
        stalls_ms=(),
    )
