"""An operation that waits for its store is not a daemon that hangs: as long as it can still have an answer, the keeper hears of it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TICK_S = 1.0
_LONGEST_S = 900.0  # longer than any call to a store may take


class Patience:
    """Calls `tell` about once a second while any operation waits. `waiting` is for the serving thread alone."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._begun: dict[int, float] = {}
        self._next = 0
        self._progressed_s = 0.0
        self._any = threading.Event()

    def begin(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._look, name="patience", daemon=True).start()

    def progress(self) -> None:
        """Note that an operation of many calls has come further: it may take longer than any call. For any thread."""
        self._progressed_s = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for a store for a block."""
        self._next = number = self._next + 1
        self._begun[number] = time.monotonic()
        if not self._any.is_set():
            self._any.set()
        try:
            yield
        finally:
            del self._begun[number]

    def _look(self) -> None:
        while True:
            self._any.wait()
            time.sleep(_TICK_S)
            self._any.clear()  # before looking: what begins now sets it again
            begun = tuple(self._begun.copy().values())
            if begun:
                self._any.set()
            now = time.monotonic()
            progressed_s = self._progressed_s
            if any(at < now - _TICK_S / 2 and now - max(at, progressed_s) < _LONGEST_S for at in begun):
                self._tell()
