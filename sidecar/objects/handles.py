"""Open files and directories, by handle. Nothing of the store is held by one, so a successor has them all at once."""

import errno
import hashlib
import os
import threading
from typing import Generic, Protocol, TypeVar

from sidecar.objects.nodes import Node
from sidecar.objects.reading import Reader
from sidecar.takeover.handle_ledger import HandleLedger
from sidecar.takeover.journal import Step
from sidemount.stores.store import ObjectInfo

DIRECTORY_TRAITS = 1 << 32
_FLAGS = (1 << 32) - 1
_MARK_AT = 33
_MARK = (1 << 30) - 1


class Openable(Protocol):
    """What handles stand for."""

    handle: int

    @property
    def node(self) -> Node:
        """The file or directory."""
        ...

    @property
    def traits(self) -> int:
        """What a successor needs to know of it."""
        ...


class OpenFile:
    """An open file. `handle` is its number. `info` is the version that it reads, None as long as that is not known, or while the node has a draft.

    `mark` tells that version from others for a successor, 0 if it was none. `reader` is made at the first read.
    """

    __slots__ = ("flags", "handle", "info", "lock", "mark", "node", "reader")

    def __init__(self, node: Node, flags: int, info: ObjectInfo | None, mark: int = 0) -> None:
        self.node = node
        self.handle = 0
        self.flags = flags & _FLAGS
        self.info = info
        self.mark = mark if info is None else mark_of(info.etag)
        self.reader: Reader | None = None
        self.lock = threading.Lock()

    @property
    def is_writable(self) -> bool:
        """Whether it may be written through."""
        return self.flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def traits(self) -> int:
        """Flags of open(2) and the mark of the version."""
        return self.flags | self.mark << _MARK_AT

    def turn_to(self, info: ObjectInfo | None) -> None:
        """Read another version from now on: the node's own new one."""
        with self.lock:
            reader, self.reader = self.reader, None
            self.info = info
            self.mark = 0 if info is None else mark_of(info.etag)
        if reader is not None:
            reader.close()


def mark_of(etag: str) -> int:
    """Return 30 bits of an ETag, never 0."""
    digest = hashlib.blake2b(etag.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "little") & _MARK or 1


def flags_in(traits: int) -> tuple[bool, int, int]:
    """Return whether traits are a directory's, the flags of open(2) and the mark."""
    return bool(traits & DIRECTORY_TRAITS), traits & _FLAGS, traits >> _MARK_AT & _MARK


T = TypeVar("T", bound=Openable)


class Handles(Generic[T]):
    """What is open, by handle and by node. Safe to use from several threads."""

    def __init__(self, ledger: HandleLedger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._open: dict[int, T] = {}
        self._by_node: dict[int, list[T]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, handle: int) -> T:
        """Return what a handle stands for. EBADF if nothing."""
        what = self._open.get(handle)
        if what is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return what

    def get(self, handle: int) -> T | None:
        """Return what a handle stands for, None if nothing."""
        return self._open.get(handle)

    def of(self, node: int) -> tuple[T, ...]:
        """Return what is open of a node."""
        return tuple(self._by_node.get(node, ()))

    def add(self, what: T, step: Step) -> int:
        """Return a new handle, which is noted in `step` first."""
        handle = self._ledger.opened(what.node.id, what.traits, step)
        self.inherit(handle, what)
        return handle

    def inherit(self, handle: int, what: T) -> None:
        """Have a handle that a predecessor has given out."""
        what.handle = handle
        with self._lock:
            self._open[handle] = what
            # A new list each time: whoever reads the old one goes on with it.
            self._by_node[what.node.id] = [*self._by_node.get(what.node.id, ()), what]

    def noted(self, what: T) -> None:
        """Have a successor know what a handle stands for now."""
        if what.handle in self._open:
            self._ledger.changed(what.handle, what.traits)

    def nodes(self) -> list[Node]:
        """Return what is open."""
        with self._lock:
            return [files[0].node for files in self._by_node.values()]

    def remove(self, handle: int) -> T | None:
        """Return what a handle stood for, None if it was none."""
        self._ledger.closed(handle)
        with self._lock:
            what = self._open.pop(handle, None)
            if what is not None:
                left = [other for other in self._by_node[what.node.id] if other is not what]
                if left:
                    self._by_node[what.node.id] = left
                else:
                    del self._by_node[what.node.id]
            return what
