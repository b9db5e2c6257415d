"""A log for what others make us say: however often they do, it cannot fill the disk."""

import time
from collections.abc import Callable

from sidemount.host.logs import EventLog

_LINES_MAX = 60
_WITHIN_S = 60.0


class LimitedLog:
    """Writes so many lines of each event within a minute; the first one afterwards tells how many were left out.

    Events have names of ours, so there are only a few to count.
    """

    __slots__ = ("_clock", "_counts", "_log")

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._counts: dict[str, tuple[float, int]] = {}

    def info(self, event: str, **fields: object) -> None:
        """Tell what happens."""
        self._write(self._log.info, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Tell what someone should look at."""
        self._write(self._log.warning, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Tell that something failed."""
        self._write(self._log.error, event, fields)

    def _write(self, write: Callable[..., None], event: str, fields: dict[str, object]) -> None:
        now = self._clock()
        since, count = self._counts.get(event, (now, 0))
        left_out = max(0, count - _LINES_MAX)
        if now - since >= _WITHIN_S:
            since, count = now, 0
        self._counts[event] = (since, count + 1)
        if count < _LINES_MAX:
            write(event, **fields, **({"left_out": left_out} if left_out else {}))
