"""A keeper that is killed at one boundary of its session machine: `dying_keeper PHASE EVENT PLACE VISIT [SIGNAL] -- keeper's arguments`.

It dies when EVENT has been decided in PHASE and so many of the actions that follow have been done (PLACE), at the VISIT-th time.
With another SIGNAL than SIGKILL it is told to end there.
Nothing of this is in the product: the table of actions is wrapped from outside.
"""

import os
import signal
import sys
from typing import Any

from sidecar.keeper import main as keeper_main
from sidemount.host import volume_keeper
from sidemount.host.session import Action, Event, Session
from sidemount.host.session import step as real_step


class Death:
    """When it comes."""

    def __init__(self, phase: str, event: str, place: int, visit: int, number: str) -> None:
        self._number = signal.Signals[number]
        self._phase = phase
        self._event = event
        self._place = place
        self._visits_left = visit
        self._done: int | None = None

    def decided(self, session: Session, event: Event, actions: tuple[Action, ...]) -> None:
        """Note what the machine has decided."""
        self._done = None
        if session.phase.value == self._phase and event.value == self._event:
            self._visits_left -= 1
            if self._visits_left == 0:
                self._done = 0
                self._come_if_due()

    def acted(self) -> None:
        """Note that an action is done."""
        if self._done is not None:
            self._done += 1
            self._come_if_due()

    def _come_if_due(self) -> None:
        if self._done == self._place:
            self._done = None
            os.kill(os.getpid(), self._number)


def install(death: Death) -> None:
    """Have the machine and the actions watched."""

    def step(session: Session, event: Event, *, able: bool = False) -> Any:
        after, actions = real_step(session, event, able=able)
        death.decided(session, event, actions)
        return after, actions

    enact = volume_keeper.VolumeKeeper._enact

    def enact_one_by_one(self: volume_keeper.VolumeKeeper, actions: tuple[Action, ...]) -> None:
        for action in actions:
            enact(self, (action,))
            death.acted()

    vars(volume_keeper)["step"] = step
    volume_keeper.VolumeKeeper._enact = enact_one_by_one  # type: ignore[method-assign]  # the point of it


if __name__ == "__main__":
    at = sys.argv.index("--")
    phase, event, place, visit, number = [*sys.argv[1:at], "SIGKILL"][:5]
    install(Death(phase, event, int(place), int(visit), number))
    sys.exit(keeper_main(sys.argv[at + 1 :]))
