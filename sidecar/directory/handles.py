"""Open files and directories, by handle. What a predecessor had open is opened again when it is first used."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from sidecar.directory.descriptors import Descriptor
from sidecar.directory.nodes import Node
from sidecar.takeover.handle_ledger import HandleLedger
from sidecar.takeover.journal import Step

DIRECTORY_TRAITS = _IS_DIRECTORY = 1 << 32
_DROPS_PRIVILEGES = 1 << 33
_FLAGS = (1 << 32) - 1
_BACKING_AT = 34  # and above: the kernel's number of a file that is passed through, 0 for one that is not


class Openable(Protocol):
    """What handles stand for."""

    @property
    def node(self) -> Node:
        """The file."""
        ...

    @property
    def traits(self) -> int:
        """All that a successor needs to open it again."""
        ...


class OpenFile:
    """An open regular file.

    `drops_privileges`: it was opened for writing by somebody whose writes take the set-id bits away. `waits`: its
    writes wait for the disk (O_SYNC, O_DSYNC). `backing`: the kernel reads it by itself, under that number (see `Passage`); 0: it does not.
    """

    __slots__ = ("backing", "descriptor", "drops_privileges", "fd", "flags", "node", "waits", "writable")

    def __init__(self, node: Node, fd: int, flags: int, *, drops_privileges: bool, backing: int = 0) -> None:
        self.node = node
        self.fd = fd
        self.flags = flags
        self.descriptor = Descriptor(fd)
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.waits = bool(flags & os.O_DSYNC)  # a bit of O_SYNC, too
        self.drops_privileges = drops_privileges
        self.backing = backing

    @property
    def traits(self) -> int:
        """Flags of open(2), whether it drops privileges, and how it is passed through."""
        drops = _DROPS_PRIVILEGES if self.drops_privileges else 0
        return self.flags & _FLAGS | drops | self.backing << _BACKING_AT


class Traits(NamedTuple):
    """What a successor needs to open a handle again: `flags` are those of open(2)."""

    is_directory: bool
    flags: int
    drops_privileges: bool
    backing: int


def parse_traits(traits: int) -> Traits:
    """Return what traits say."""
    return Traits(
        bool(traits & _IS_DIRECTORY),
        traits & _FLAGS,
        bool(traits & _DROPS_PRIVILEGES),
        traits >> _BACKING_AT,
    )


T = TypeVar("T", bound=Openable)


class HandleTable(Generic[T]):
    """What is open, by handle. Safe to use from several threads.

    `reopen` makes what an inherited handle, one of a predecessor, stands for; it raises OSError.
    """

    def __init__(self, ledger: HandleLedger) -> None:
        self.reopen: Callable[[int, Traits], T]
        self._ledger = ledger
        self._open: dict[int, T] = {}
        self._inherited: dict[int, tuple[int, Traits]] = {}
        self._reopening = threading.Lock()

    def __len__(self) -> int:
        return len(self._open) + len(self._inherited)

    def __getitem__(self, handle: int) -> T:
        """Return what a handle stands for. EBADF if nothing."""
        what = self._open.get(handle)
        return self._take_up(handle) if what is None else what

    def inherit(self, handle: int, node: int, traits: Traits) -> None:
        """Have a handle that a predecessor has given out."""
        self._inherited[handle] = (node, traits)

    def adopt(self, handle: int, what: T) -> None:
        """Have an inherited handle stand for what its predecessor had open."""
        with self._reopening:
            self._enter(handle, what)
            del self._inherited[handle]

    def add(self, what: T, step: Step) -> int:
        """Return a new handle, which is noted in `step` first."""
        handle = self._ledger.opened(what.node.id, what.traits, step)
        self._open[handle] = what
        return handle

    def remove(self, handle: int) -> T | None:
        """Return what a handle stood for, None if it was none or was not used in this life."""
        self._ledger.closed(handle)
        self._inherited.pop(handle, None)
        return self._open.pop(handle, None)

    def _take_up(self, handle: int) -> T:
        """Open an inherited handle again; it stays inherited if that fails."""
        with self._reopening:
            if handle in self._open:
                return self._open[handle]
            if handle not in self._inherited:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            what = self.reopen(*self._inherited[handle])
            self._enter(handle, what)
            del self._inherited[handle]
            return what

    def _enter(self, handle: int, what: T) -> None:
        self._open[handle] = what


class OpenFiles(HandleTable[OpenFile]):
    """Open files, also by node: a file that has lost its name can still be reached through one of them.

    `on_unused` is called with the kernel's number of a file when the last handle goes that it is passed through by.
    """

    def __init__(self, ledger: HandleLedger) -> None:
        super().__init__(ledger)
        self.on_unused: Callable[[int], None] = lambda backing: None
        self._passed: dict[int, tuple[int, int]] = {}  # node and number, by handle
        self._passed_of: dict[int, tuple[int, int]] = {}  # number and count of handles, by node
        self._lock = threading.Lock()
        self._by_node: dict[int, list[OpenFile]] = {}
        self._inherited_of: Counter[int] = Counter()

    def is_open(self, node: int) -> bool:
        """Tell whether there is any handle of a node."""
        return node in self._by_node or node in self._inherited_of

    def backing_of(self, node: int) -> int | None:
        """Return the number that a node's handles are passed through by, 0 if they are not; None if there is no handle."""
        with self._lock:
            if node in self._passed_of:
                return self._passed_of[node][0]
            return 0 if self.is_open(node) else None

    def backings(self) -> list[int]:
        """Return the numbers of all that is passed through."""
        with self._lock:
            return [backing for backing, _ in self._passed_of.values()]

    def inherit(self, handle: int, node: int, traits: Traits) -> None:
        """Have a handle that a predecessor has given out."""
        with self._lock:
            self._inherited_of[node] += 1
            self._pass(handle, node, traits.backing)
            super().inherit(handle, node, traits)

    def add(self, what: OpenFile, step: Step) -> int:
        """Return a new handle, which is noted in `step` first."""
        with self._lock:
            self._by_node.setdefault(what.node.id, []).append(what)
            handle = super().add(what, step)
            self._pass(handle, what.node.id, what.backing)
            return handle

    def remove(self, handle: int) -> OpenFile | None:
        """Return the file a handle stood for, None if it was none or was not used in this life.

        Its descriptor is still to be retired.
        """
        with self._lock:
            if handle in self._inherited:
                self._disinherit(self._inherited[handle][0])
            what = super().remove(handle)
            if what is not None:
                siblings = self._by_node[what.node.id]
                siblings.remove(what)
                if not siblings:
                    del self._by_node[what.node.id]
            unused = self._pass_no_more(handle)
        if unused:
            self.on_unused(unused)
        return what

    def _pass(self, handle: int, node: int, backing: int) -> None:
        if backing:
            self._passed[handle] = (node, backing)
            self._passed_of[node] = (backing, self._passed_of.get(node, (backing, 0))[1] + 1)

    def _pass_no_more(self, handle: int) -> int:
        """Note that a handle is closed, and return the number that nobody uses any more, 0 if there is none."""
        node, backing = self._passed.pop(handle, (0, 0))
        if not backing:
            return 0
        count = self._passed_of[node][1] - 1
        if count:
            self._passed_of[node] = (backing, count)
            return 0
        del self._passed_of[node]
        return backing

    def node_of(self, handle: int) -> int | None:
        """Return the node of a handle, used in this life or not."""
        with self._lock:
            what = self._open.get(handle)
            if what is not None:
                return what.node.id
            inherited = self._inherited.get(handle)
            return None if inherited is None else inherited[0]

    def borrow_handle(self, handle: int) -> Descriptor | None:
        """Return a handle's descriptor for one use, if it is open in this life."""
        with self._lock:
            what = self._open.get(handle)
            return None if what is None else what.descriptor.borrow()

    def borrow(self, node: int) -> Descriptor | None:
        """Return a descriptor of a node for one use, if it is open anywhere."""
        with self._lock:
            siblings = self._by_node.get(node)
            return siblings[0].descriptor.borrow() if siblings else None

    def _enter(self, handle: int, what: OpenFile) -> None:
        with self._lock:
            self._by_node.setdefault(what.node.id, []).append(what)
            super()._enter(handle, what)
            self._disinherit(what.node.id)

    def _disinherit(self, node: int) -> None:
        self._inherited_of[node] -= 1
        if not self._inherited_of[node]:
            del self._inherited_of[node]
