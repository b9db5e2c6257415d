"""Waiting for what no status announces."""

import time
from collections.abc import Callable

_POLL_S = 0.02


def eventually(condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    """Return once the condition holds; fail at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(_POLL_S)
