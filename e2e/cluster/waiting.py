"""Waiting for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_FIRST_S, _LONGEST_S = 0.02, 0.5


def wait_for(condition: Callable[[], T | None], timeout_s: float) -> T | None:
    """Return the first true value of `condition`, asked at growing intervals; None after the time.

    It is asked once more at the deadline, however long the last interval was.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_S
    while True:
        value = condition()
        if value:
            return value
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return None
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _LONGEST_S)
