"""One variant from beginning to end."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.torture.counts import Counts, count
from e2e.torture.crew import Crew
from e2e.torture.killer import Killer
from e2e.torture.outcome import Outcome
from e2e.torture.progress import Progress
from e2e.torture.stage import Stage, TortureError
from e2e.torture.stalls import stalls_ms
from e2e.torture.variants import Variant

_GROWTH_KIB = 768  # what the allocators of C and of Python keep for later: reached after 150 daemons, and not passed by 300
_LAYERS_MAX = 64  # a lost connection leaves a layer, and a keeper takes them off before they are more
_SETTLE_S = 20.0
_QUIET_S = 1.5  # the keeper reaps its children at its next tick
_SPARES = 2


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
        places = stage.places
        crew = Crew(places.volume, variant.apps, seconds, seed, work=work, source=places.source)
        killer = Killer(stage, variant, random.Random(seed))
        killer.run(began + seconds, blows, Progress(variant, seconds, crew).tick)
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
            kills=killer.blows.kills,
            operations=found.operations,
            errors=tuple(error for error in found.errors if not variant.expects(error)),
            wrong=tuple(found.wrong),
            faults=tuple(faults),
            stalls_ms=tuple(stalls_ms(killer.blows.moments, found.slow_calls)),
            starts_ms=tuple(killer.blows.starts_ms),
            before=before,
            after=after,
        )
    except TortureError as error:
        complaints = crew.so_far() if crew is not None else None
        return Outcome(
            variant=variant.name,
            errors=tuple(complaints.errors) if complaints else (),
            wrong=tuple(complaints.wrong) if complaints else (),
            faults=(f"{error}\n{stage.log_tails()}",),
        )
    finally:
        if crew is not None:
            crew.kill()
        stage.kill_all()


def _settled(stage: Stage, before: Counts, variant: Variant) -> tuple[Counts, list[str]]:
    """Return what there is of everything, and what is not as before, once nothing is under way any more."""
    until = time.monotonic() + _SETTLE_S
    while True:
        after = count(stage.keeper.pid, stage.first_process())
        faults = before.differences(
            after, growth_kib=_GROWTH_KIB, more_mounts=_LAYERS_MAX if variant.loses else 0
        )
        if not faults or time.monotonic() > until:
            return after, faults
        time.sleep(0.1)


def _wait_for_spares(stage: Stage) -> None:
    """Wait until as many processes wait as at the beginning, so that counts can be compared."""
    stage.wait_for(lambda: len(stage.processes()) == 2 + _SPARES, f"{_SPARES} processes that wait")
