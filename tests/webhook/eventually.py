"""Waiting for something that happens by itself, with a budget."""

import time
from collections.abc import Callable


def eventually(check: Callable[[], object], what: str, within_s: float = 30.0) -> None:
    """Return when `check` is true; fail naming `what` if it is not in time."""
    ends = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < ends, f"{what}: not within {within_s:g} s"
        time.sleep(0.02)
