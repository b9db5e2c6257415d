"""The pauses of one volume's service, each told once it is over: whoever watches from outside has the keeper's log only."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from sidemount.host.logs import EventLog
from sidemount.host.session import Event, Phase, Session
from sidemount.host.watchdog import Watchdog

_FRESH = (Phase.MOUNTING, Phase.ABORTED)
_ENDING = (Phase.FLUSHING, Phase.DETACHED)
_PROCESS_ENDED = "the process that served has ended"
_PROCESS_HUNG = "the process that served answered nothing"
_CAUSES = {
    Event.GONE: "its daemon has ended",
    Event.HUNG: "its daemon answered nothing",
    Event.UNKILLABLE: "its daemon answered nothing and could not be killed",
    Event.LOST: "the kernel has ended its connection",
    Event.ATTACH_FAILED: "it was not mounted any more",
    Event.DEAD: "its mount was dead",
    Event.DEADLINE: "its daemon did not come back",
}


class Served(Protocol):
    """What is asked of a daemon."""

    watchdog: Watchdog
    unserved_since: float | None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """How often its service was interrupted under this keeper, and for how long and why the last time."""

    takeovers: int = 0
    remounts: int = 0
    pause_ms: int = 0
    cause: str = ""


class Interruptions:
    """Watches one volume's session. A pause begins when whoever served is gone, as far as the keeper sees, and ends when it is live again.

    A process that hangs has answered nothing since before anybody knew, so its pause begins with the last answer.
    """

    def __init__(self, log: EventLog, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._began = clock()
        self._cause = ""
        self._has_served = False
        self._was_adopted = session.phase is Phase.ADOPTING
        self._is_fresh = False  # another connection is made, or will be
        self._generation = session.generation
        self._awaited: int | None = None  # the generation of a successor that is not ready yet
        self.count = Interrupted()

    def stepped(self, before: Session, now: Session, event: Event, daemon: Served | None) -> None:
        """Take note of a step of the session. `daemon` is the one that served before it."""
        if now.phase in _ENDING:
            self._awaited = None
            return
        if before.phase is Phase.SERVING and now.phase is not Phase.SERVING and self._awaited is None:
            self._began = _unserved_since(daemon, self._clock())
            self._cause = ""
        if before.phase is not now.phase and now.phase is not Phase.SERVING and not self._cause:
            self._cause = _CAUSES.get(event, "")
        if now.phase in _FRESH and (self._has_served or self._was_adopted):
            self._is_fresh = True
        if now.phase is Phase.SERVING and before.phase is not Phase.SERVING:
            self._live(now.generation)

    def succeeded(self, session: Session, daemon: Served) -> None:
        """Take note that another process of the daemon serves as soon as it is ready: the session's generation."""
        if session.phase is not Phase.SERVING:
            return
        if self._awaited is None:
            now = self._clock()
            self._began = _unserved_since(daemon, now)
            self._cause = _PROCESS_HUNG if daemon.watchdog.stalled_since(now) is not None else _PROCESS_ENDED
        self._awaited = session.generation

    def ready(self, session: Session, generation: int) -> None:
        """Take note that a process is ready. While the volume is not live, its session tells when it is."""
        if self._awaited == generation and session.phase is Phase.SERVING:
            self._live(generation)

    def _live(self, generation: int) -> None:
        stall_ms = round((self._clock() - self._began) * 1000)
        is_continued = self._has_served or self._was_adopted
        if not is_continued:
            self._log.info("served", generation=generation, elapsed_ms=stall_ms)
        elif self._is_fresh:
            self._log.info("remounted", generation=generation, stall_ms=stall_ms, cause=self._cause)
            remounts = self.count.remounts + 1
            self.count = replace(self.count, remounts=remounts, pause_ms=stall_ms, cause=self._cause)
        elif self._was_adopted:
            self._log.info("came_back", generation=generation)  # whoever served did so all the time
        elif generation != self._generation:
            self._log.info("taken_over", generation=generation, stall_ms=stall_ms, cause=self._cause)
            takeovers = self.count.takeovers + 1
            self.count = replace(self.count, takeovers=takeovers, pause_ms=stall_ms, cause=self._cause)
        else:
            self._log.info("shown_again", stall_ms=stall_ms, cause=self._cause)
        self._generation = generation
        self._has_served = True
        self._was_adopted = self._is_fresh = False
        self._awaited = None
        self._cause = ""


def _unserved_since(daemon: Served | None, now: float) -> float:
    if daemon is None:
        return now
    stalled = daemon.watchdog.stalled_since(now)
    seen = daemon.unserved_since
    return min(moment for moment in (now, stalled, seen) if moment is not None)
