"""Who may put content at keys while names are being moved: nobody else at the same file, and nobody at all under a directory that moves."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_STRIPES = 64
_LONGEST_S = 900.0  # a directory's worth of copies


class Moves:
    """The locks of one volume's names. Each is held while the store is asked, by threads that may wait. EBUSY if that takes too long."""

    def __init__(self, longest_s: float = _LONGEST_S) -> None:
        self._longest_s = longest_s
        self._stripes = [threading.RLock() for _ in range(_STRIPES)]
        self._settled = threading.Condition()
        self._files = 0
        self._is_moving = False
        self._depth = threading.local()

    @contextmanager
    def of_file(self, node: int) -> Iterator[None]:
        """Have a file's name and content for oneself, and no directory moved. May be taken again by who has it."""
        with self.of_files(node):
            yield

    @contextmanager
    def of_files(self, *nodes: int) -> Iterator[None]:
        """Have several files for oneself. Whoever has one of them may take it again, and no other."""
        depth = getattr(self._depth, "files", 0)
        if not depth:
            with self._settled:
                if not self._settled.wait_for(lambda: not self._is_moving, self._longest_s):
                    raise _busy()
                self._files += 1
        self._depth.files = depth + 1
        try:
            with ExitStack() as held:
                for stripe in sorted({node % _STRIPES for node in nodes}):  # all take them in one order
                    if not self._stripes[stripe].acquire(timeout=self._longest_s):
                        raise _busy()
                    held.callback(self._stripes[stripe].release)
                yield
        finally:
            self._depth.files = depth
            if not depth:
                with self._settled:
                    self._files -= 1
                    self._settled.notify_all()

    @contextmanager
    def of_directory(self) -> Iterator[None]:
        """Have all names for oneself."""
        with self._settled:
            if not self._settled.wait_for(lambda: not self._is_moving, self._longest_s):
                raise _busy()
            self._is_moving = True
            if not self._settled.wait_for(lambda: not self._files, self._longest_s):
                self._is_moving = False
                self._settled.notify_all()
                raise _busy()
        self._depth.files = 1  # a file's lock may be taken within
        try:
            yield
        finally:
            self._depth.files = 0
            with self._settled:
                self._is_moving = False
                self._settled.notify_all()


def _busy() -> OSError:
    return OSError(errno.EBUSY, os.strerror(errno.EBUSY))
