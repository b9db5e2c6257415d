"""Calls that a hung filesystem may never return from."""

import errno
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def bounded(timeout_s: float, what: str, action: Callable[[], T]) -> T:
    """Return what `action` returns; raise its error, or OSError(ETIMEDOUT) after the time.

    The thread of a hung action is given up: it ends when its filesystem does.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(action())
        except BaseException as error:  # handed over, whatever it is, to the caller
            failure.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failure:
        raise failure[0]
    if not outcome:
        raise OSError(errno.ETIMEDOUT, f"{what}: no answer within {timeout_s:g} s")
    return outcome[0]
