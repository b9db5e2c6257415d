"""Ids and lookup counts of nodes, and whoever is to remember the nodes themselves.

An id is a number that is never used again and the slot where its count is. Counting is a store into an array, so that the
most frequent operation, looking up a known name, costs no more with a state that outlives the process than without.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import Protocol

from sidecar.takeover.layout import SLOT, SLOT_BITS

ROOT = 1  # the kernel's own id of a mount's root
_AT_A_TIME = 64  # nodes, each some hundred bytes and a name


class RecordedNode(Protocol):
    """What is remembered of a node: `parent` and `name` are its first link, if it has any."""

    @property
    def id(self) -> int:
        """Its id."""
        ...

    @property
    def identity(self) -> int:
        """Which file of the store it is."""
        ...

    @property
    def parent(self) -> "RecordedNode | None":
        """The directory that its first link is in."""
        ...

    @property
    def name(self) -> bytes:
        """The name of its first link."""
        ...


class RecordedNodes(Protocol):
    """The node table, as far as it must be asked which records still hold."""

    @property
    def all(self) -> Mapping[int, RecordedNode]:
        """All nodes by id."""
        ...

    def has_further_link(self, node: int, parent: int, name: bytes) -> bool:
        """Tell whether a node has a link besides its first."""
        ...


class Counts(Protocol):
    """Numbers by slot."""

    def __getitem__(self, slot: int, /) -> int: ...

    def __setitem__(self, slot: int, count: int, /) -> None: ...


class Ledger:
    """Remembers nothing. Not safe to use from several threads: the node table's lock guards it.

    `lookups` has the count of each slot. Nobody may keep it: it is another object after it has grown.
    """

    def __init__(self) -> None:
        self._private = array("Q", (0, 0))
        self.lookups: Counts = self._private
        self._nodes: RecordedNodes
        self._free: list[int] = []
        self._last_slot = ROOT & SLOT
        self._next = 1
        self._has_room: Callable[[], bool] = _always
        self._fitting = 0  # nodes that there is room for

    def follow(self, nodes: RecordedNodes) -> None:
        """Take the table that this ledger belongs to."""
        self._nodes = nodes

    @property
    def next_id(self) -> int:
        """Return a number that every id from now on is at least, and every one so far is below."""
        return self._next << SLOT_BITS

    def bound_by(self, has_room: Callable[[], bool]) -> None:
        """Have new nodes only while that says yes; what was known before is known to fit. Asked once for many of them."""
        self._fitting = len(self._nodes.all)
        self._has_room = has_room

    def new_id(self) -> int:
        """Return an id that no node ever had. Its count is 0. Raises MemoryError."""
        if self._has_room is not _always and len(self._nodes.all) >= self._fitting:
            self._make_room()
        slot = self._free.pop() if self._free else self._new_slot()
        number = self._next
        self._next = number + 1
        self.lookups[slot] = 0
        return number << SLOT_BITS | slot

    def node(self, node: RecordedNode) -> None:
        """Remember a new node, or its first link, as they are now."""

    def link(self, node: int, parent: int, name: bytes) -> None:
        """Remember a further link."""

    def unlink(self, node: int, parent: int, name: bytes) -> None:
        """Remember that a further link is gone."""

    def gone(self, node: int) -> None:
        """Forget a node. Its slot is another's from now on."""
        self._free.append(node & SLOT)

    def _make_room(self) -> None:
        known = len(self._nodes.all)
        if not self._has_room():
            raise MemoryError(f"no room for more than {known} names that the kernel has not forgotten")
        self._fitting = known + _AT_A_TIME

    def _new_slot(self) -> int:
        slot = self._last_slot + 1
        if slot > SLOT:
            raise MemoryError(f"more than {SLOT} nodes")
        self._reserve(slot)
        self._last_slot = slot
        return slot

    def _reserve(self, slot: int) -> None:
        self._private.append(0)


def _always() -> bool:
    return True
