"""The threads that fetch what is read ahead. As many as there is work for, up to a bound; they end when there is none."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

_LOG = logging.getLogger(__name__)
_IDLE_S = 60.0

Work = Callable[[], object]


class ReadAheadThreads:
    """Does pieces of work, the first first. For any thread; none is started before there is work."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._queue: deque[Work] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_closed = False

    def submit(self, work: Work) -> bool:
        """Have something done. False: closed, or there is no memory for the only thread."""
        with self._lock:
            if self._is_closed:
                return False
            self._queue.append(work)
            if self._idle:
                self._wanted.notify()
            if len(self._queue) > self._idle and len(self._threads) < self._most:
                self._start()
            if not self._threads:
                self._queue.remove(work)
                return False
            return True

    def close(self, timeout_s: float) -> None:
        """Begin nothing more, and wait for what is being done."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            self._wanted.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        with contextlib.suppress(RuntimeError):  # no memory for one more
            thread.start()
            self._threads.add(thread)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                _LOG.exception("read_ahead_failed")
            finally:
                del work  # it knows a block, which could not be given up as long as we wait

    def _next(self) -> Work | None:
        with self._lock:
            until = time.monotonic() + _IDLE_S
            while not self._queue:
                left_s = until - time.monotonic()
                if self._is_closed or left_s <= 0:
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                try:
                    self._wanted.wait(left_s)
                finally:
                    self._idle -= 1
            return self._queue.popleft()
