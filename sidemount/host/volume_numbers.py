"""What a volume's daemon says that it has counted, taken at a bounded rate and told on.

Nothing that it says is believed: names are those of a table of ours, and what comes too often is passed over.
"""

import time
from collections.abc import Callable

from sidemount.host.handover import Numbers
from sidemount.host.loop import Loop, Timer
from sidemount.model.object_numbers import Report, known_numbers

_AT_ONCE = 8
_A_SECOND = 1.0


class VolumeNumbers:
    """Of one volume. `tell` hears of the first report of each process at once, else at most so often, and of the last one at the end."""

    def __init__(
        self,
        loop: Loop,
        tell: Callable[[Report], None],
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._every_s = every_s
        self._clock = clock
        self._room = float(_AT_ONCE)
        self._taken_at = clock()
        self._told: Report | None = None
        self._told_at = 0.0
        self._untold: Report | None = None
        self._timer: Timer | None = None

    def take(self, numbers: Numbers) -> None:
        """Take a report. One too many is passed over: the next one has all that it had."""
        now = self._clock()
        self._room = min(_AT_ONCE, self._room + (now - self._taken_at) * _A_SECOND)
        self._taken_at = now
        if self._room < 1:
            return
        self._room -= 1
        report = Report(numbers.process, known_numbers(numbers.values))
        latest = self._untold or self._told
        if latest is not None and latest.process != report.process:
            self.flush()
        if self._told is None or self._told.process != report.process or now - self._told_at >= self._every_s:
            self._untold = report
            self.flush()
        elif report != latest:
            self._untold = report
            if self._timer is None:
                self._timer = self._loop.call_later(self._told_at + self._every_s - now, self.flush)

    def flush(self) -> None:
        """Tell what was not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        report, self._untold = self._untold, None
        if report is not None and report != self._told:
            self._told, self._told_at = report, self._clock()
            self._tell(report)
