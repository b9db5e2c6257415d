"""The thread that does what nobody waits for."""

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)
_PAUSE_S = 5.0


class DraftErrands:
    """Calls `run` whenever it was woken, and when the seconds are over that `run` has returned; None: not before it is woken.

    The thread is begun when there is something to do, for a process that may be forked must have none.
    """

    def __init__(self, run: Callable[[], float | None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def wake(self) -> None:
        """Have it run soon."""
        with self._lock:
            self._woken.set()
            if self._thread is None and not self._is_closed:
                thread = threading.Thread(target=self._work, name="drafts", daemon=True)
                try:
                    thread.start()
                except (
                    RuntimeError
                ) as error:  # no memory for a thread; it is tried again with the next errand
                    _log.warning("put_draft_errands_off", extra={"reason": str(error)})
                else:
                    self._thread = thread

    def close(self) -> None:
        """Run no more."""
        self._is_closed = True
        self._woken.set()

    def _work(self) -> None:
        while not self._is_closed:
            self._woken.clear()
            try:
                wait_s = self._run()
            except Exception:
                _log.exception("fail_draft_errand")
                wait_s = _PAUSE_S
            self._woken.wait(wait_s)
