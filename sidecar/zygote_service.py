"""One process's time of serving, as the first process sees it."""

import time

from sidecar.zygote_children import Child
from sidemount.host.handover import Bye, Failed, HandOver, Heartbeat, Usage

_BEGIN_WITHIN_S = 5.0
_START_WITHIN_S = 60.0
_SILENT_AT_THE_END_S = 3.0
_LONG_LIFE_S = 5.0


class Service:
    """One process's time of serving."""

    __slots__ = (
        "_beat_at",
        "_gone_since",
        "_has_begun",
        "bye",
        "child",
        "failure",
        "is_handing_over",
        "is_ready",
        "kill_at",
        "killed_at",
        "open_handles",
        "progress",
        "since",
        "usage_at",
        "was_hung",
    )

    def __init__(self, child: Child, now: float) -> None:
        self.child = child
        self.since = now
        self.is_ready = False
        self.is_handing_over = False
        self.was_hung = False
        self.progress = Heartbeat()
        self.open_handles: int | None = None
        self.usage_at = now
        self.bye: Bye | None = None
        self.failure: Failed | None = None
        self.killed_at: float | None = None
        self.kill_at: float | None = None
        self._beat_at = now
        self._has_begun = False
        self._gone_since: float | None = None

    def is_fruitful(self, now: float) -> bool:
        """Tell whether it has answered anything, or at least lived for a while: nobody may have asked."""
        return self.progress.handled > 0 or (self.is_ready and now - self.since > _LONG_LIFE_S)

    def beat(self, now: float, heartbeat: Heartbeat) -> None:
        """Note a sign of life."""
        self._beat_at = now
        self._has_begun = True
        self.progress = heartbeat

    def use(self, now: float, usage: Usage) -> None:
        """Note how much of the volume is in use."""
        self.open_handles = usage.open_handles
        self.usage_at = now

    def pardon(self, now: float) -> None:
        """Count anew."""
        self._beat_at = now

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

    def why_hung(self, now: float, *, hung_after_s: float, is_gone: bool, flush_s: float) -> str:
        """Return why it should be killed, "" if it should not. `is_gone`: the kernel has ended its connection."""
        silent_s = now - self._beat_at
        self._gone_since = (self._gone_since or now) if is_gone else None
        if not self._has_begun and silent_s > _BEGIN_WITHIN_S:
            return f"it was given its turn and has not begun within {_BEGIN_WITHIN_S:g} s"
        if not self.is_ready and now - self.since > _START_WITHIN_S:
            return f"it has not begun to serve within {_START_WITHIN_S:g} s"
        if self.kill_at is not None and now > self.kill_at:
            return "it was to hand over and does not end"
        if silent_s > hung_after_s:
            return f"it was silent for more than {hung_after_s:g} s"
        if is_gone and (silent_s > _SILENT_AT_THE_END_S or now - (self._gone_since or now) > flush_s):
            return "its connection is gone and it does not end"
        return ""

    def is_stuck(self, now: float, within_s: float) -> bool:
        """Tell whether it was killed and does not end: it waits in the kernel for a store."""
        return self.killed_at is not None and now - self.killed_at > within_s
