"""Processes that are ready to serve: forked beforehand, with everything loaded, so that a succession takes milliseconds."""

import time
from collections.abc import Callable

from sidecar.zygote_children import Child, ChildMain, fork_child
from sidemount.host.logs import EventLog
from sidemount.host.loop import Loop
from sidemount.model.errors import HostFailure

_FORK_PAUSE_S = 0.05  # a fork competes with the successor that has just begun
_RETRY_S = 1.0
_SPARES_DIED_MAX = 10
_DIED_WINDOW_S = 10.0


class Spares:
    """A number of waiting processes. `fork` is how one is made."""

    def __init__(
        self,
        loop: Loop,
        count: int,
        main: ChildMain,
        log: EventLog,
        fork: Callable[[ChildMain], Child] = fork_child,
    ) -> None:
        self._loop = loop
        self._count = count
        self._main = main
        self._log = log
        self._fork = fork
        self._ready: list[Child] = []
        self._is_closed = False
        self._is_filling = False
        self._died = 0
        self._died_since = 0.0

    def __len__(self) -> int:
        return len(self._ready)

    def take(self) -> Child:
        """Return a waiting process, forked now if there is none. Raises OSError, HostFailure."""
        return self._ready.pop(0) if self._ready else self._fork(self._main)

    def refill(self, delay_s: float = _FORK_PAUSE_S) -> None:
        """Fork, one after the other, until there are as many as there should be."""
        if not self._is_filling and not self._is_closed and len(self._ready) < self._count:
            self._is_filling = True
            self._loop.call_later(delay_s, self._fork_one)

    def lose(self, pid: int) -> bool:
        """Note that a process has ended; False if it is none that waits."""
        for child in self._ready:
            if child.pid == pid:
                self._ready.remove(child)
                child.close()
                self._log.warning("spare_died", pid=pid)
                self.refill(self._pause_after_death())
                return True
        return False

    def close(self) -> None:
        """Let them all go."""
        self._is_closed = True
        for child in self._ready:
            child.kill()
            child.close()
        self._ready.clear()

    def _fork_one(self) -> None:
        self._is_filling = False
        if self._is_closed or len(self._ready) >= self._count:
            return
        try:
            self._ready.append(self._fork(self._main))
        except (OSError, HostFailure) as error:
            self._log.warning("fork_failed", fault=str(error))
            self.refill(_RETRY_S)
            return
        self.refill()

    def _pause_after_death(self) -> float:
        now = time.monotonic()
        if now - self._died_since > _DIED_WINDOW_S:
            self._died, self._died_since = 0, now
        self._died += 1
        return _FORK_PAUSE_S if self._died <= _SPARES_DIED_MAX else _RETRY_S
