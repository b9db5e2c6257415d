"""Open files and directories, by handle. Handles come from one counter and are never used again."""

import errno
import itertools
import os
import threading
from typing import Generic, TypeVar

from sidecar.directory.descriptors import Descriptor
from sidecar.directory.nodes import Node

T = TypeVar("T")

_counter = itertools.count(1)  # of the process: file and directory handles never share a number


class OpenFile:
    """An open regular file.

    `drops_privileges`: it was opened for writing by somebody whose writes take the set-id bits away. `waits`: its
    writes wait for the disk (O_SYNC, O_DSYNC).
    """

    __slots__ = ("descriptor", "drops_privileges", "fd", "node", "waits", "writable")

    def __init__(self, node: Node, fd: int, flags: int, *, drops_privileges: bool) -> None:
        self.node = node
        self.fd = fd
        self.descriptor = Descriptor(fd)
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.waits = bool(flags & os.O_DSYNC)  # a bit of O_SYNC, too
        self.drops_privileges = drops_privileges


class HandleTable(Generic[T]):
    """What is open, by handle. Safe to use from several threads."""

    def __init__(self) -> None:
        self._open: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, handle: int) -> T:
        """Return what a handle stands for. EBADF if nothing."""
        try:
            return self._open[handle]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def add(self, what: T) -> int:
        """Return a new handle."""
        handle = next(_counter)
        self._open[handle] = what
        return handle

    def remove(self, handle: int) -> T | None:
        """Return what a handle stood for, None if it was none."""
        return self._open.pop(handle, None)


class OpenFiles(HandleTable[OpenFile]):
    """Open files, also by node: a file that has lost its name can still be reached through one of them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._by_node: dict[int, list[OpenFile]] = {}

    def add(self, what: OpenFile) -> int:
        """Return a new handle."""
        with self._lock:
            self._by_node.setdefault(what.node.id, []).append(what)
            return super().add(what)

    def remove(self, handle: int) -> OpenFile | None:
        """Return the file a handle stood for, None if it was none. Its descriptor is still to be retired."""
        with self._lock:
            what = super().remove(handle)
            if what is not None:
                siblings = self._by_node[what.node.id]
                siblings.remove(what)
                if not siblings:
                    del self._by_node[what.node.id]
            return what

    def borrow(self, node: int) -> Descriptor | None:
        """Return a descriptor of a node for one use, if it is open anywhere."""
        with self._lock:
            siblings = self._by_node.get(node)
            return siblings[0].descriptor.borrow() if siblings else None
