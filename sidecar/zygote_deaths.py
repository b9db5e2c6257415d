"""How soon the next process may start after one has died, and when to call that abnormal. Pure but for its memory."""

import os
import signal
from collections import deque

PAUSES_S = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
FREE_DEATHS = 2  # in a row, with nothing done between them, before pauses begin
HOPELESS_AFTER = 10
_WINDOW_S = 60.0
_ABNORMAL_DEATHS = 30
_REMEMBERED = 64
BLAMELESS, HUNG, CRASHED = 0, 1, 2  # suspicion against what a process worked on when it ended


def suspicion_of(status: int, *, hung: bool, out_of_memory: bool) -> int:
    """Return how much the end of a process speaks against what it worked on. `status` is waitpid(2)'s.

    A kill that nobody here ordered came from outside, and says nothing, unless it was the kernel's for want of memory.
    """
    if hung:
        return HUNG
    is_killed = os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return BLAMELESS if is_killed and not out_of_memory else CRASHED


class Deaths:
    """Counts them. Times are of one monotonic clock, in seconds.

    What matters is a process that dies before it has answered anything: the next one meets the same request. One that works
    and is killed, however often, is succeeded at once.
    """

    __slots__ = ("_fruitless", "_last", "_times")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._fruitless = 0
        self._last = ""

    def died(self, now: float, how: str, *, fruitful: bool) -> float:
        """Note a death and return the pause before the next process may start."""
        self._times.append(now)
        self._last = how
        self._fruitless = 0 if fruitful else self._fruitless + 1
        return PAUSES_S[min(max(0, self._fruitless - FREE_DEATHS), len(PAUSES_S) - 1)]

    @property
    def is_hopeless(self) -> bool:
        """Tell whether process after process has died with nothing done: the connection itself seems to kill them."""
        return self._fruitless >= HOPELESS_AFTER

    def abnormal(self, now: float) -> str:
        """Return what to tell of it, "" if nothing is out of the ordinary. The same text as long as nothing else is the matter."""
        while self._times and now - self._times[0] > _WINDOW_S:
            self._times.popleft()
        count = len(self._times)
        if not count or (self._fruitless <= FREE_DEATHS and count < _ABNORMAL_DEATHS):
            return ""
        return f"the process that serves it dies again and again, last: {self._last}"
