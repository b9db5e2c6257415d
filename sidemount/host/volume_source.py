"""The directory that is a volume's source, for a daemon that has no path to it: opened by the keeper and given as a descriptor.

What is given is a detached copy of the directory's mount, with what is mounted below: from its root no `..` leads anywhere. A path may
hang (a server that is away), so it is opened in a disposable child.
"""

import errno as errnos
import os
import time
from collections.abc import Callable, Mapping

from sidemount.host import mount_api
from sidemount.host.disposable import Reporter
from sidemount.host.foreign_descriptors import let_go
from sidemount.host.jobs import Job, Jobs, Message, Outcome, Work
from sidemount.model.errors import HostFailure

_KIND = "source"
_OPEN_S = 10.0
_AGAIN_S = 1.0
_ALWAYS = mount_api.MOUNT_ATTR_NOSUID | mount_api.MOUNT_ATTR_NODEV
_FAULTS: Mapping[int, tuple[str, str]] = {
    errnos.ENOENT: ("does not exist", "make the directory: nothing is created automatically"),
    errnos.ENOTDIR: ("is not a directory", "name a directory"),
    errnos.ELOOP: ("is a loop of symbolic links", "name the directory itself"),
}


class SourceDesk:
    """Has the descriptor ready, or says why not. It is kept for as long as a connection goes on, and opened anew for the next one."""

    def __init__(self, jobs: Jobs, path: str, *, read_only: bool, changed: Callable[[], None]) -> None:
        """`changed` is called when `fault` has."""
        self._jobs = jobs
        self._path = path
        self._read_only = read_only
        self._changed = changed
        self._descriptor = -1
        self._is_given = False
        self._not_before = 0.0
        self._is_closed = False
        self.fault = ""

    def is_ready(self, *, continued: bool) -> bool:
        """Tell whether a daemon can be given it; if not, it is being opened. `continued`: for a connection that goes on."""
        if self._descriptor >= 0 and (continued or not self._is_given):
            return True
        self._forget()
        if not self._jobs.is_running(_KIND) and time.monotonic() >= self._not_before:
            self._open()
        return False

    def give(self) -> int:
        """Return the descriptor, which stays ours."""
        self._is_given = True
        return self._descriptor

    def close(self) -> None:
        """Give it up."""
        self._is_closed = True
        self._jobs.cancel(_KIND)
        self._forget()

    def _open(self) -> None:
        self._not_before = time.monotonic() + _AGAIN_S
        work = Work(
            run=opening_work(self._path, read_only=self._read_only),
            on_message=self._opened,
            on_end=self._ended,
            deadline_s=_OPEN_S,
        )
        if self._jobs.start(_KIND, work) is None:
            self._note(f"source {self._path}: it hangs, or no process can be started to open it")

    def _opened(self, message: Message, descriptor: int | None, job: Job) -> None:
        if descriptor is None:
            return
        if self._is_closed:
            let_go(descriptor)
            return
        self._forget()
        self._descriptor = descriptor
        self._note("")

    def _ended(self, outcome: Outcome) -> None:
        if outcome.is_late:
            self._note(f"source {self._path}: it does not answer within {_OPEN_S:g} s")
        elif outcome.fault:
            self._note(outcome.fault)

    def _note(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            self._changed()

    def _forget(self) -> None:
        self._is_given = False
        if self._descriptor >= 0:
            let_go(self._descriptor)
            self._descriptor = -1


def opening_work(path: str, *, read_only: bool) -> Callable[[Reporter], None]:
    """Return the work of opening a source and sending its descriptor."""

    def work(reporter: Reporter) -> None:
        try:
            directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            why, hint = _FAULTS.get(error.errno or 0, (f"cannot be opened: {error.strerror}", ""))
            raise HostFailure(f"source {path} {why}", errno=error.errno or 0, hint=hint) from error
        clone = mount_api.open_tree_clone(directory, path, recursive=True)
        attributes = _ALWAYS | mount_api.MOUNT_ATTR_RDONLY if read_only else _ALWAYS
        mount_api.mount_setattr(
            clone, attributes=attributes, propagation=mount_api.MS_PRIVATE, target=path, recursive=True
        )
        reporter.send({"opened": True}, clone)

    return work
