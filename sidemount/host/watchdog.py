"""Judges from heartbeats and the kernel's counter whether a daemon works, is idle, or lives and does nothing. Pure but for its memory."""

from enum import Enum

from sidemount.host.handover import Heartbeat


class Verdict(Enum):
    """What to think of a daemon."""

    FINE = "fine"
    SUSPECT = "suspect"  # requests wait and none is answered: ask the mount itself, in a disposable child
    SILENT = "silent"  # no heartbeat: hung for certain


class Watchdog:
    """Watches one daemon. Times are of one monotonic clock, in seconds."""

    __slots__ = ("_active_at", "_beat_at", "_handled", "_progress_at", "_silent_after_s")

    def __init__(self, now: float, *, silent_after_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._beat_at = now
        self._progress_at = now
        self._active_at = now
        self._handled = 0

    def beat(self, now: float, heartbeat: Heartbeat) -> None:
        """Note a heartbeat."""
        self._beat_at = now
        if heartbeat.handled != self._handled:
            self._handled = heartbeat.handled
            self._progress_at = now
            self._active_at = now
        if heartbeat.in_progress:
            self._active_at = now

    def judge(self, now: float, waiting: int | None) -> Verdict:
        """Note how many requests wait in the kernel (None: unknown) and return what to think."""
        if waiting:
            self._active_at = now
        else:
            self._progress_at = now
        if self.is_silent(now):
            return Verdict.SILENT
        if now - self._progress_at > self._silent_after_s / 2:  # the look into the mount gets the other half
            return Verdict.SUSPECT
        return Verdict.FINE

    def stalled_since(self, now: float) -> float | None:
        """Return since when requests have waited in vain, None if that is not long enough to mean anything."""
        return self._progress_at if now - self._progress_at > self._silent_after_s / 2 else None

    def is_silent(self, now: float) -> bool:
        """Tell whether no heartbeat comes any more."""
        return self.silent_s(now) > self._silent_after_s

    def silent_s(self, now: float) -> float:
        """Return for how long no heartbeat has come."""
        return now - self._beat_at

    def pardon(self, now: float) -> None:
        """Begin to count anew: it was the watcher who was away, stopped or starved."""
        self._beat_at = now
        self._progress_at = now

    def absolve(self, now: float) -> None:
        """Note that the mount answered: one slow request is not a hung daemon."""
        self._progress_at = now

    def idle_s(self, now: float) -> float:
        """Return for how long nothing has been asked of it, as far as we have seen."""
        return now - self._active_at
