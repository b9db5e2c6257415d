"""Strikes, again and again, each time when all is well: and waits until it is again."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e.torture.stage import Stage
from e2e.torture.variants import Variant, Victim


@dataclass(slots=True)
class Blows:
    """What was done. Moments of the monotonic clock; `starts_ms` is how long containers took from their start until they served."""

    moments: list[float] = field(default_factory=list)
    victims: list[Victim] = field(default_factory=list)
    starts_ms: list[float] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Return how many of them killed somebody, or would have to."""
        return sum(victim is not Victim.UPGRADE for victim in self.victims)


class Killer:
    """Picks victims by chance."""

    def __init__(self, stage: Stage, variant: Variant, dice: random.Random) -> None:
        self._stage = stage
        self._variant = variant
        self._dice = dice
        self.blows = Blows()

    def run(self, until: float, most: int, tick: Callable[[Blows], None]) -> None:
        """Strike until the time is over or there were enough blows, and call `tick` after each.

        Raises TortureError if it does not become well.
        """
        while time.monotonic() < until and len(self.blows.moments) < most:
            time.sleep(self._dice.uniform(*self._variant.pause_s))
            self._strike(self._dice.choice(self._variant.victims))
            tick(self.blows)

    def _strike(self, victim: Victim) -> None:
        self._stage.wait_for(self._stage.serving, "a process that serves")
        strike, is_well = self._plan(victim)
        began = time.monotonic()
        strike()
        self._stage.wait_for(is_well, f"recovery from {victim.value}")
        if self._stage.daemon_started > began:
            self.blows.starts_ms.append((time.monotonic() - self._stage.daemon_started) * 1000)
        self.blows.moments.append(began)
        self.blows.victims.append(victim)

    def _plan(self, victim: Victim) -> tuple[Callable[[], None], Callable[[], object]]:
        stage = self._stage
        served = stage.daemon_events.count("serving")
        live = stage.keeper_events.count("phase_changed", phase="Serving")

        def serves_anew() -> bool:
            return stage.daemon_events.count("serving") > served

        def is_kept_anew() -> bool:
            return stage.keeper_events.count("phase_changed", phase="Serving") > live

        match victim:
            case Victim.CHILD:
                return lambda: _signal(stage.serving(), signal.SIGKILL), serves_anew
            case Victim.HANG:
                return lambda: _signal(stage.serving(), signal.SIGSTOP), serves_anew
            case Victim.UPGRADE:
                return lambda: _signal(stage.first_process(), signal.SIGUSR1), serves_anew
            case Victim.CONTAINER:
                return lambda: _signal(stage.first_process(), signal.SIGKILL), serves_anew
            case Victim.KEEPER:
                return stage.keeper.kill, is_kept_anew
            case Victim.BOTH:
                return self._kill_both, lambda: serves_anew() and is_kept_anew()

    def _kill_both(self) -> None:
        kills: list[Callable[[], None]] = [
            self._stage.keeper.kill,
            lambda: _signal(self._stage.first_process(), signal.SIGKILL),
        ]
        self._dice.shuffle(kills)
        for kill in kills:
            kill()
        self._stage.keeper.wait(5)


def _signal(pid: int, number: signal.Signals) -> None:
    if pid:
        os.kill(pid, number)
