"""A filesystem without FUSE in several lives: one process after another over the same source and state."""

import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from sidecar.directory.filesystem import DirectoryFilesystem
from sidecar.directory.passage import Registrar
from sidecar.directory.root import open_root
from sidecar.directory.settings import DirectorySettings
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import ROOT
from sidecar.takeover.drain import Drained, Unanswered
from sidecar.takeover.park import Park
from sidecar.takeover.state import State, begin_state, resume_state
from tests.sidecar.directory.core import at_once, run
from tests.sidecar.takeover.processes import die

_OURS = f"{os.sep}sidecar{os.sep}"


class Lives:
    """The source, the state and the park that the lives share."""

    def __init__(self, place: Path, registrar: Registrar | None = None) -> None:
        """With a `registrar` the volume is a read-only one, whose files are passed through."""
        self._registrar = registrar
        self.source = place / "source"
        self._state = place / "state"
        self._park: Park | None = None

    def close(self) -> None:
        """Let go of what is parked."""
        if self._park is not None:
            self._park.close()
            self._park = None

    def begin(self) -> None:
        """Have everything empty."""
        self.close()
        for directory in (self.source, self._state):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
        self._park = Park.make()

    @contextmanager
    def life(self, *unanswered: Unanswered, resume: bool = True) -> Iterator["Life"]:
        """Be alive for a block."""
        assert self._park is not None
        park = Park.adopt(*(os.dup(end) for end in self._park.descriptors))
        if resume:
            state = resume_state(str(self._state), park, park.recover())
        else:
            state = begin_state(str(self._state), park)
        life = Life(state, self.source, self._registrar)
        if resume:
            life.filesystem.resume(Drained(operations=unanswered))
        try:
            yield life
        finally:
            life.end()
            state.close()
            park.close()


class Life:
    """One process's filesystem."""

    def __init__(self, state: State, source: Path, registrar: Registrar | None = None) -> None:
        self.state = state
        self.lost: list[str] = []
        state.on_lost = self.lost.append
        self.filesystem = DirectoryFilesystem(
            Store(open_root(str(source), "")),
            DirectorySettings(source=str(source), read_only=registrar is not None),
            at_once,
            50,
            state,
            registrar,
        )

    def do(self, operation: Coroutine[Any, Any, Any], *, answered: bool = True) -> Any:
        """Return what an operation returns; the kernel has its answer then."""
        result = run(operation)
        if answered:
            self.read_on()
        return result

    def read_on(self, *, idle: bool = False) -> None:
        """Do what is done before the next request is read."""
        errands = self.filesystem.memory.errands
        for _ in range(len(errands)):
            errand = errands.popleft()
            if errand(idle):
                errands.append(errand)

    def end(self) -> None:
        """Close what is open, as the end of a process does."""
        filesystem = self.filesystem
        for handles in (filesystem.files, filesystem.directories.handles):
            for what in handles._open.values():
                os.close(what.fd)
        filesystem.descriptors.shed_directories()
        filesystem.descriptors.shed_nameless()
        filesystem.descriptors.discard(ROOT)


def killed_at_line(number: int, work: Callable[[], Any]) -> None:
    """Run a function and be killed before its n-th line of the sidecar's code; live if it has fewer."""
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if _OURS not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                die()
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
