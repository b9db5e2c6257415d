"""The files and directories that the kernel knows, by node id.

A node is its directory and its name there, so a renamed directory is one change however much lies beneath it. An object has one name. A
node lives as long as the kernel has looked it up more often than it forgot it, or as long as a living node lies in it. Every change goes
through the methods of `NodeTable`, and is in its ledger before they return: a successor of this process finds the same nodes there.
"""

import errno
import os
import threading
from collections.abc import Iterator, Mapping

from sidecar.objects.keys import ino_of
from sidecar.protocol_filesystem import ROOT
from sidecar.takeover.layout import SLOT
from sidecar.takeover.ledger import Ledger
from sidecar.takeover.leftovers import Leftovers
from sidecar.takeover.table import Table, without_collection

_DIRECTORY = 1
_KEPT = 2
_FLAG_BITS = 8


class Node:
    """One file or directory. A million of them are normal: nothing but what every one needs.

    `identity` says what it is, for a successor: the inode number and flags. `parent` is None if it has no name any more.
    `children` counts the nodes in it, and what else it has to stay for. `opened_etag` is the version whose pages the kernel may have, `told_etag` the one whose attributes it
    was last told, "" if there is none.
    """

    __slots__ = ("children", "id", "identity", "name", "opened_etag", "parent", "told_etag")

    def __init__(self, node_id: int, identity: int, parent: "Node | None", name: bytes) -> None:
        self.id = node_id
        self.identity = identity
        self.parent = parent
        self.name = name
        self.children = 0
        self.opened_etag = ""
        self.told_etag = ""

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory; that never changes."""
        return bool(self.identity & _DIRECTORY)

    @property
    def is_kept(self) -> bool:
        """Whether it is a directory that is there although no key may say so."""
        return bool(self.identity & _KEPT)

    @property
    def ino(self) -> int:
        """The inode number that it was found with."""
        return self.identity >> _FLAG_BITS


class NodeTable:
    """All nodes of one volume. Safe to use from several threads."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._lock = threading.RLock()
        self._ledger = ledger or Ledger()
        self.root = Node(ROOT, _identity(1, is_directory=True), None, b"")
        self._nodes = {ROOT: self.root}
        self._by_link: dict[tuple[int, bytes], Node] = {}
        self._leftovers: Leftovers | None = None
        self._own_from = 0  # the first id of this process

    def restore(self, table: Table, leftovers: Leftovers) -> None:
        """Have the nodes that a predecessor has left, with the counts that are in the ledger."""
        with self._lock, without_collection():
            nodes = self._nodes
            for node_id, (identity, _, name) in table.nodes.items():
                if node_id != ROOT:
                    nodes[node_id] = Node(node_id, identity, None, name)
            for node_id, (_, parent_id, name) in sorted(table.nodes.items()):
                parent = nodes.get(parent_id)
                if parent is not None and node_id != ROOT:
                    # A kill between two records can leave a name to two nodes: the younger one has it.
                    other = self._by_link.get((parent_id, name))
                    if other is not None:
                        self._cut(other)
                    self._tie(nodes[node_id], parent, name)
            self._leftovers = leftovers
            self._own_from = self._ledger.next_id
            lookups = self._ledger.lookups
            for node in [node for node in nodes.values() if not lookups[node.id & SLOT]]:
                self._collect(node)

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, node_id: int) -> Node:
        """Return a node. ESTALE if there is none: the kernel then looks its path up again."""
        node = self._nodes.get(node_id)
        if node is None:
            raise stale()
        return node

    @property
    def all(self) -> Mapping[int, Node]:
        """All nodes by id."""
        return self._nodes

    def has_further_link(self, node: int, parent: int, name: bytes) -> bool:
        """Tell that no node has any: an object has one name."""
        return False

    def child(self, parent: Node, name: bytes) -> Node | None:
        """Return the node that has a name in a directory, if the kernel knows it."""
        return self._by_link.get((parent.id, name))

    def children(self, parent: Node) -> list[Node]:
        """Return the nodes that the kernel knows in a directory. Goes through all nodes."""
        with self._lock:
            return [node for (above, _), node in self._by_link.items() if above == parent.id]

    def path(self, node: Node) -> str:
        """Return a node's path. ESTALE if it has none any more."""
        found = self.known_path(node)
        if found is None:
            raise stale()
        return found

    def known_path(self, node: Node) -> str | None:
        """Return a node's path, None if it has none any more."""
        root = self.root
        if node.parent is root:
            return node.name.decode()
        names: list[bytes] = []
        with self._lock:
            while node is not root:
                if node.parent is None:
                    return None
                names.append(node.name)
                node = node.parent
        return b"/".join(reversed(names)).decode()

    def lineage(self, node: Node) -> Iterator[Node]:
        """Yield a node and the directories above it."""
        with self._lock:
            above: Node | None = node
            while above is not None:
                yield above
                above = above.parent

    def admit(self, parent: Node, name: bytes, path: str, *, is_directory: bool) -> Node:
        """Return the node of what was found at a name, with one lookup more."""
        with self._lock:
            node = self._by_link.get((parent.id, name))
            if node is not None and node.is_directory != is_directory:
                self.detach(
                    node
                )  # somebody has put a file in the place of a directory, or the other way round
                node = None
            if node is None:
                identity = _identity(ino_of(path), is_directory=is_directory)
                node = Node(self._ledger.new_id(), identity, None, name)
                self._tie(node, parent, name)
                self._nodes[node.id] = node
                self._ledger.node(node)
            self._ledger.lookups[node.id & SLOT] += 1
            return node

    def again(self, node: Node) -> Node:
        """Return a node that is known by other means than its name, with one lookup more."""
        with self._lock:
            self._ledger.lookups[node.id & SLOT] += 1
            return node

    def keep(self, node: Node, *, is_kept: bool) -> None:
        """Note whether a directory is there without a key that says so."""
        with self._lock:
            if node.is_kept != is_kept and node is not self.root and node.id in self._nodes:
                node.identity ^= _KEPT
                self._ledger.node(node)

    def pin(self, node: Node) -> None:
        """Have a node stay, with its name, even if the kernel forgets it."""
        with self._lock:
            node.children += 1

    def unpin(self, node: Node) -> None:
        """Let it end with the kernel's knowledge of it."""
        with self._lock:
            node.children -= 1
            self._collect(node)

    def detach(self, node: Node) -> None:
        """Take a node's name away."""
        with self._lock:
            parent = node.parent
            if parent is None:
                return
            self._cut(node)
            if node.id in self._nodes:
                self._ledger.node(node)
            self._collect(parent)

    def move(self, node: Node, parent: Node, name: bytes) -> None:
        """Give a node another name; whatever had it loses it."""
        with self._lock:
            other = self._by_link.get((parent.id, name))
            if other is node:
                return
            if other is not None:
                self.detach(other)
            old = node.parent
            if old is not None:
                self._cut(node)
            self._tie(node, parent, name)
            self._ledger.node(node)
            if old is not None:
                self._collect(old)

    # Counts.

    def lookups(self, node: Node) -> int:
        """Return how often the kernel has looked a node up and not forgotten it."""
        return self._ledger.lookups[node.id & SLOT]

    def count_of(self, node: int) -> int:
        """Return how often the kernel has looked a node up, 0 if there is none."""
        with self._lock:
            return self.lookups(self._nodes[node]) if node in self._nodes else 0

    def give_up(self, node: int, count: int) -> None:
        """End a node that the kernel does not know, if its count is still that."""
        with self._lock:
            if self.count_of(node) == count:
                self.forget(node, count)

    def forget(self, node_id: int, count: int) -> None:
        """Take lookups back."""
        with self._lock:
            node = self._nodes.get(node_id)
            if node is None:
                return
            left = self._ledger.lookups[node_id & SLOT] = max(0, self.lookups(node) - count)
            if self._leftovers is not None and node_id < self._own_from:
                self._leftovers.forgot(node_id, left)
            self._collect(node)

    def _tie(self, node: Node, parent: Node, name: bytes) -> None:
        node.parent, node.name = parent, name
        parent.children += 1
        self._by_link[parent.id, name] = node

    def _cut(self, node: Node) -> None:
        """Take a node out of its directory, without any record."""
        parent = node.parent
        if parent is None:
            return
        if self._by_link.get((parent.id, node.name)) is node:
            del self._by_link[parent.id, node.name]
        parent.children -= 1
        node.parent = None

    def _collect(self, node: Node) -> None:
        """End a node that nothing needs any more, then its directories for which the same has become true."""
        at: Node | None = node
        while at is not None and at is not self.root:
            if at.children or at.id not in self._nodes or self.lookups(at):
                return
            del self._nodes[at.id]
            parent = at.parent
            self._cut(at)
            self._ledger.gone(at.id)
            at = parent


def stale() -> OSError:
    """Return the error that has the kernel look a path up again."""
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def _identity(ino: int, *, is_directory: bool) -> int:
    return ino << _FLAG_BITS | (_DIRECTORY if is_directory else 0)
