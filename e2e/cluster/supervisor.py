"""The components' processes: started, signalled, reaped, and started anew when they end by themselves.

It waits for nothing: whoever runs it tells it of ended processes and asks when it wants to be called again.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.component import Component

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_SETTLED_S = 20.0


@dataclass(slots=True)
class _Child:
    component: Component
    pid: int | None = None
    is_wanted: bool = False
    starts: int = 0
    last_exit: int | None = None
    began: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    start_at: float | None = None


class Supervisor:
    """All components of a node. `clock` is monotonic seconds."""

    def __init__(
        self, components: Sequence[Component], logs: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._children = {component.name: _Child(component) for component in components}
        self._logs = logs
        self._clock = clock

    def start(self, name: str) -> None:
        """Start a component, unless it runs. Raises KeyError for one that is not known."""
        child = self._children[name]
        child.is_wanted = True
        child.pause_s = _FIRST_PAUSE_S
        if child.pid is None:
            self._spawn(child)

    def signal(self, name: str, number: int, *, is_wanted: bool) -> bool:
        """Send a signal; `is_wanted` says whether the component is to run on, or anew. Return whether it ran."""
        child = self._children[name]
        child.is_wanted = is_wanted
        if not is_wanted:
            child.start_at = None
        if child.pid is None:
            return False
        os.kill(child.pid, number)
        return True

    def ended(self, pid: int, status: int) -> None:
        """Take note of a process that was reaped: a component's, or an orphan of the node."""
        for child in self._children.values():
            if child.pid == pid:
                child.pid = None
                child.last_exit = os.waitstatus_to_exitcode(status)
                self._log(child, f"ended with {child.last_exit}")
                if child.is_wanted:
                    now = self._clock()
                    if now - child.began > _SETTLED_S:
                        child.pause_s = _FIRST_PAUSE_S
                    child.start_at = now + child.pause_s
                    child.pause_s = min(child.pause_s * 2, _LONGEST_PAUSE_S)

    def start_due(self) -> float | None:
        """Start what is due again. Return in how many seconds to call next; None when nothing waits."""
        now = self._clock()
        for child in self._children.values():
            if child.start_at is not None and child.start_at <= now:
                self._spawn(child)
        waiting = [child.start_at for child in self._children.values() if child.start_at is not None]
        return max(0.0, min(waiting) - now) if waiting else None

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what each component does, as JSON values."""
        now = self._clock()
        return {
            name: {
                "pid": child.pid,
                "wanted": child.is_wanted,
                "starts": child.starts,
                "last_exit": child.last_exit,
                "age_s": round(now - child.began, 3) if child.pid is not None else None,
            }
            for name, child in self._children.items()
        }

    def _spawn(self, child: _Child) -> None:
        child.start_at = None
        child.began = self._clock()
        child.starts += 1
        log = str(self._log_path(child))
        self._log(child, f"start {child.starts}: {' '.join(child.component.argv)}")
        child.pid = os.posix_spawnp(
            child.component.argv[0],
            child.component.argv,
            {**os.environ, **child.component.env},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores these, and ignoring is inherited
        )

    def _log_path(self, child: _Child) -> Path:
        return self._logs / f"{child.component.name}.log"

    def _log(self, child: _Child, text: str) -> None:
        with self._log_path(child).open("a") as log:
            log.write(f"--- {time.strftime('%H:%M:%S')} {text}\n")
