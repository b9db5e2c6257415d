"""The other mounts of a volume, where they must not change it, or this one must not.

Every mount that changes files has one byte of the budget locked shared while it does, for slices of time, so that an operation costs
no system call: a slice ends when it is over and somebody waits at the turnstile, or nothing is done any more. Whoever wants the volume to stand still
(a snapshot), or to make a file shorter while nobody writes into what goes, takes the turnstile and waits for the slices to end.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from sidemount.host import budget_locks as locks

SLICE_S = 0.02
_REMOTE_IDLE_S = 1.0


class Standstill:
    """One mount's part in it. For any thread.

    `flush` has what was written be where other nodes see it, which is not the case right after a write to a network filesystem; None if it is.
    """

    def __init__(self, fd: int, flush: Callable[[], None] | None) -> None:
        self._fd = fd
        self._flush = flush
        self._linger_s = 0.0 if flush is None else _REMOTE_IDLE_S
        self._mutex = threading.Lock()
        self._users = 0
        self._until = 0.0
        self._is_held = False
        self._is_closed = False  # to whoever wants to come in: this mount wants to be alone, or is letting go
        self._has_turnstile = False
        self._begun = threading.Event()
        self._watcher: threading.Thread | None = None

    def enter_now(self) -> bool:
        """Begin a change if that takes no system call. Return whether it has begun; `leave` must follow then."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if not self._is_held or self._is_closed or time.monotonic() >= self._until:
                return False
            self._users += 1
            return True
        finally:
            self._mutex.release()

    def enter(self) -> bool:
        """Begin a change if nobody wants the volume to stand still. Return whether it has begun; `leave` must follow then."""
        with self._mutex:
            if self._is_closed:
                return False
            has_changed_nothing = not self._is_held
            if not self._is_held:
                if not locks.try_shared(self._fd, locks.STANDSTILL):
                    return False
                self._is_held = True
            if locks.is_taken(self._fd, locks.TURNSTILE):
                self._until = 0.0
                if not self._users and (has_changed_nothing or self._flush is None):
                    self._let_go()
                return False
            self._until = time.monotonic() + SLICE_S
            self._users += 1
        self._watch()
        return True

    def leave(self) -> None:
        """End a change."""
        with self._mutex:
            self._users -= 1
            if self._watcher is None and not self._users and self._is_held:
                if self._flush is not None:
                    with contextlib.suppress(OSError):
                        self._flush()
                self._let_go()

    def close(self) -> bool:
        """Begin to want to be alone. Return whether nobody else of this mount does; `reopen` must follow then."""
        with self._mutex:
            if self._is_closed:
                return False
            self._is_closed = True
            return True

    def is_alone(self) -> bool:
        """Tell, once closed, whether nothing and nobody changes the volume now, until `reopen`."""
        with self._mutex:
            if self._users:
                return False
            if self._is_held:
                self._let_go()
            if not self._has_turnstile:
                self._has_turnstile = locks.try_exclusive(self._fd, locks.TURNSTILE)
            return self._has_turnstile and locks.try_exclusive(self._fd, locks.STANDSTILL)

    def reopen(self) -> None:
        """Want to be alone no more."""
        with self._mutex:
            try:
                locks.unlock(self._fd, locks.STANDSTILL)
                locks.unlock(self._fd, locks.TURNSTILE)
            finally:
                self._has_turnstile = False
                self._is_closed = False

    def _let_go(self) -> None:
        locks.unlock(self._fd, locks.STANDSTILL)
        self._is_held = False

    def _watch(self) -> None:
        """Have a thread end slices that nobody goes on with. Without memory for one, they end with the last operation."""
        if self._watcher is None:
            watcher = threading.Thread(target=self._end_slices, name="standstill", daemon=True)
            try:
                watcher.start()
            except RuntimeError:
                return
            self._watcher = watcher
        self._begun.set()

    def _end_slices(self) -> None:
        while True:
            self._begun.wait()
            self._begun.clear()
            while self._goes_on_surely():
                time.sleep(SLICE_S)

    def _goes_on_surely(self) -> bool:
        try:
            return self._goes_on()
        except OSError:  # a server that is away: what it has locked is not let go yet
            return True

    def _goes_on(self) -> bool:
        """End the slice if it is over. Return whether one goes on."""
        with self._mutex:
            if not self._is_held:
                return False
            overdue_s = time.monotonic() - self._until
            if self._users or overdue_s < 0 or self._is_closed:
                return True
            if overdue_s < self._linger_s and not locks.is_taken(self._fd, locks.TURNSTILE):
                return True
            if self._flush is None:
                self._let_go()
                return False
            self._is_closed = True
        try:
            with contextlib.suppress(OSError):  # whoever wrote hears of it at fsync
                self._flush()
        finally:
            with self._mutex:
                self._is_closed = False
                if self._is_held:
                    self._let_go()
        return False
