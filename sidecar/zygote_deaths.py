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
# What the kernel or abort(3) sends a process for what it does itself. Any other signal came from somebody else.
_OF_CRASHES = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
        signal.SIGXCPU,
        signal.SIGXFSZ,
    }
)


def suspicion_of(status: int, *, hung: bool, out_of_memory: bool) -> int:
    """Return how much the end of a process speaks against what it worked on. `status` is waitpid(2)'s.

    A kill that nobody here ordered came from outside, and says nothing, unless it was the kernel's for want of memory.
    """
    if hung:
        return HUNG
    code = os.waitstatus_to_exitcode(status)
    is_killed_for_memory = code == -signal.SIGKILL and out_of_memory
    return CRASHED if code >= 0 or -code in _OF_CRASHES or is_killed_for_memory else BLAMELESS


class Deaths:
    """Counts them. Times are of one monotonic clock, in seconds.

    What matters is a process that dies before it has answered anything: the next one meets the same request. One that works
    and is killed, however often, is succeeded at once. One that somebody else kills says nothing of the next one, which
    waits only as long as it takes not to be busy with dying.
    """

    __slots__ = ("_fruitless", "_killed", "_last", "_times")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._fruitless = 0
        self._killed = 0  # from outside, in a row, with nothing done between
        self._last = ""

    def died(self, now: float, how: str, *, fruitful: bool, from_outside: bool = False) -> float:
        """Note a death and return the pause before the next process may start."""
        self._times.append(now)
        self._last = how
        if fruitful:
            self._fruitless = self._killed = 0
            return PAUSES_S[0]
        if from_outside:
            self._killed += 1
            return PAUSES_S[self._killed > FREE_DEATHS]
        self._fruitless += 1
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
        in_vain = max(self._fruitless, self._killed)
        if not count or (in_vain <= FREE_DEATHS and count < _ABNORMAL_DEATHS):
            return ""
        return f"the process that serves it dies again and again, last: {self._last}"
