"""Which files the kernel reads by itself, without asking the daemon again (FUSE_PASSTHROUGH): of read-only volumes alone, see ADR 0059.

The kernel refuses an open with EIO if some handles of a file are passed through and others are not, or by another number. So a file's further opens
are as those that are open. What the kernel has open is always among our records: a handle is noted before the kernel hears of it and forgotten
after the kernel has.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Protocol

from sidecar.directory import syscalls
from sidecar.directory.handles import OpenFiles
from sidecar.directory.store import is_plain_filesystem

LEAST_BYTES = 1 << 20  # a smaller file is read sooner than it is registered


class Registrar(Protocol):
    """Has files registered with the kernel."""

    def begin(self, held: list[int]) -> None:
        """Tell what is registered already. Before anything else."""
        ...

    def register(self, descriptor: int) -> int:
        """Return the kernel's number for a file, 0 if it has none. Waits a few milliseconds at most."""
        ...

    def unregister(self, backing: int) -> None:
        """Have it forgotten."""
        ...


class Passage:
    """Of one volume. For the serving thread alone."""

    def __init__(self, files: OpenFiles, registrar: Registrar | None, *, may_begin: bool) -> None:
        """Without `may_begin` or a `registrar` only what a predecessor has passed through is."""
        self._files = files
        self._registrar = registrar
        self._may_begin = may_begin
        if registrar is not None:
            files.on_unused = registrar.unregister

    def begin(self) -> None:
        """Begin to serve, with what a predecessor has left."""
        if self._registrar is not None:
            self._registrar.begin(self._files.backings())

    @contextlib.contextmanager
    def chosen(self, node: int, descriptor: int, flags: int, size_bytes: int) -> Iterator[int]:
        """Hold the number by which a file is to be opened, 0 for an ordinary open; what is new is given back if the block fails."""
        backing = self._files.backing_of(node)
        if backing is not None:
            yield backing
            return
        backing = self._register(descriptor, flags, size_bytes)
        try:
            yield backing
        except BaseException:
            if backing and self._registrar is not None and backing not in self._files.backings():
                self._registrar.unregister(backing)
            raise

    def _register(self, descriptor: int, flags: int, size_bytes: int) -> int:
        if self._registrar is None or not self._may_begin:
            return 0
        if size_bytes < LEAST_BYTES or flags & os.O_DIRECT:
            return 0
        is_plain = False
        with contextlib.suppress(OSError):  # whatever cannot be told of it is no reason not to open it
            is_plain = is_plain_filesystem(syscalls.filesystem_type(descriptor))
        return self._registrar.register(descriptor) if is_plain and _takes_direct(descriptor) else 0


def _takes_direct(descriptor: int) -> bool:
    """Tell whether a file can be opened with O_DIRECT: the kernel opens the source with the flags of each further open."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return True
