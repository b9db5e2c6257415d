"""The threads that upload parts: few, for the whole volume."""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable


class UploadPool:
    """Runs jobs in the order in which they come, `threads` at once. Jobs must not raise.

    Threads are begun when there is something to do, for a process that may be forked must have none.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def submit(self, job: Callable[[], None]) -> bool:
        """Have a job done. False: it will not be, for the pool is closed, or there is no memory for a thread."""
        with self._changed:
            if self._is_closed:
                return False
            if self._idle <= len(self._jobs) and self._threads < self._most:
                try:
                    threading.Thread(target=self._work, name="upload", daemon=True).start()
                    self._threads += 1
                except RuntimeError:  # no memory for one more; those that there are do it
                    if not self._threads:
                        return False
            self._jobs.append(job)
            self._changed.notify()
            return True

    def close(self) -> None:
        """Take no more jobs; threads end when all that there are have come to their end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._is_closed:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            job()


class Window:
    """How many bytes of full parts may wait for their upload, over all drafts of a volume."""

    def __init__(self, bound: int, stall_s: float) -> None:
        self._bound = bound
        self._stall_s = stall_s
        self._changed = threading.Condition()
        self._moves = 0
        self.used = 0

    def take(self, size: int) -> None:
        """Count bytes that begin to wait."""
        with self._changed:
            self.used += size

    def give(self, size: int) -> None:
        """Count bytes that wait no more: they were uploaded, or that has failed."""
        with self._changed:
            self.used -= size
            self._moves += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until there is room. Raises ETIMEDOUT when nothing has moved for long."""
        with self._changed:
            while self.used >= self._bound:
                moves, until = self._moves, time.monotonic() + self._stall_s
                while self.used >= self._bound and moves == self._moves:
                    left_s = until - time.monotonic()
                    if left_s <= 0:
                        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                    self._changed.wait(left_s)
