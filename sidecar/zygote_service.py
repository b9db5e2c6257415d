"""One process's time of serving, as the first process sees it."""

import time

from sidecar.zygote_children import Child
from sidemount.host.handover import Bye, Failed, HandOver, Heartbeat

_LONG_LIFE_S = 5.0


class Service:
    """One process's time of serving."""

    __slots__ = (
        "_beat_at",
        "_gone_since",
        "bye",
        "child",
        "failure",
        "is_handing_over",
        "is_ready",
        "kill_at",
        "killed_at",
        "progress",
        "since",
    )

    def __init__(self, child: Child, now: float) -> None:
        self.child = child
        self.since = now
        self.is_ready = False
        self.is_handing_over = False
        self.progress = Heartbeat()
        self.bye: Bye | None = None
        self.failure: Failed | None = None
        self.killed_at: float | None = None
        self.kill_at: float | None = None
        self._beat_at = now
        self._gone_since: float | None = None

    def is_fruitful(self, now: float) -> bool:
        """Tell whether it has answered anything, or at least lived for a while: nobody may have asked."""
        return self.progress.handled > 0 or (self.is_ready and now - self.since > _LONG_LIFE_S)

    def beat(self, now: float, heartbeat: Heartbeat) -> None:
        """Note a sign of life."""
        self._beat_at = now
        self.progress = heartbeat

    def pardon(self, now: float) -> None:
        """Count anew."""
        self._beat_at = now

    def silent_s(self, now: float) -> float:
        """Return for how long it has given no sign of life."""
        return now - self._beat_at

    def kill(self, now: float) -> None:
        """Kill it."""
        self.killed_at = now
        self.child.kill()

    def hand_over(self, within_s: float) -> None:
        """Ask it to end for a successor's sake; it is killed if that takes long, which loses nothing."""
        self.is_handing_over = True
        self.kill_at = time.monotonic() + within_s
        if not self.child.send(HandOver()):
            self.kill(time.monotonic())

    def is_late_to_serve(self, now: float, within_s: float) -> bool:
        """Tell whether it should have begun by now."""
        return not self.is_ready and now - self.since > within_s

    def is_late_to_end(self, now: float) -> bool:
        """Tell whether it should have ended by now, for its successor's sake."""
        return self.kill_at is not None and now > self.kill_at

    def is_stuck(self, now: float, within_s: float) -> bool:
        """Tell whether it was killed and does not end: it waits in the kernel for a store."""
        return self.killed_at is not None and now - self.killed_at > within_s

    def is_past_gone(self, now: float, within_s: float) -> bool:
        """Tell whether its connection has been gone for long. To be asked only while it is gone."""
        if self._gone_since is None:
            self._gone_since = now
        return now - self._gone_since > within_s
