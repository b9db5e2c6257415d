"""The files that the kernel knows, by node id.

A node is stored as its links (parent node, name), so that a renamed directory is one change however much lies beneath it. A node lives
as long as the kernel has looked it up more often than it forgot it, or as long as a living node hangs beneath it. Every change goes
through the methods of `NodeTable`, and is in its ledger before they return: a successor of this process finds the same nodes there.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from sidecar.directory.interest import Interest
from sidecar.directory.status import Found, is_settled
from sidecar.protocol_filesystem import ROOT, Attributes
from sidecar.takeover.layout import SLOT
from sidecar.takeover.ledger import Ledger
from sidecar.takeover.leftovers import Leftovers
from sidecar.takeover.table import Table, without_collection

_LONGEST_MOVE_S = 30.0


class Node:
    """One file. A million of them are normal: nothing but what every one needs.

    `identity` tells the file from any other (see `Found`). `parent` is None if no name of it is known any more.
    `children` counts links of other nodes that name this one as their parent. `told_ns` is the change time that came
    with the attributes the kernel was last told, `opened_ns` that at the last open; 0 if there is none to be relied on.
    """

    __slots__ = ("children", "id", "identity", "name", "opened_ns", "parent", "told_ns")

    def __init__(self, node_id: int, identity: int, parent: "Node | None", name: bytes) -> None:
        self.id = node_id
        self.identity = identity
        self.parent = parent
        self.name = name
        self.children = 0
        self.told_ns = 0
        self.opened_ns = 0

    def tell(self, found: Found) -> Attributes:
        """Return attributes to be told to the kernel, and remember it."""
        self.told_ns = found.attributes.ctime_ns if is_settled(found) else 0
        return found.attributes


Link = tuple[Node, bytes]


class NodeTable:
    """All nodes of one volume. Safe to use from several threads. `on_gone` is called with the id of every node that ends."""

    def __init__(
        self, root_identity: int, on_gone: Callable[[int], None], ledger: Ledger | None = None
    ) -> None:
        self._settled = threading.Condition()  # its lock guards everything here
        self._on_gone = on_gone
        self._ledger = ledger or Ledger()
        self.root = Node(ROOT, root_identity, None, b"")
        self._nodes = {ROOT: self.root}
        self._by_identity = {root_identity: self.root}
        self._more: dict[int, list[Link]] = {}  # further links of a node, oldest first
        self._moving = 0
        self.moves = 0  # grows with every link that is taken away
        self.interest = Interest()
        self._leftovers: Leftovers | None = None
        self._own_from = 0  # the first id of this process

    def restore(self, table: Table, leftovers: Leftovers) -> None:
        """Have the nodes that a predecessor has left, with the counts that are in the ledger."""
        with self._settled, without_collection():
            nodes, by_identity = self._nodes, self._by_identity
            for node_id, (identity, _, name) in table.nodes.items():
                if node_id != ROOT:
                    nodes[node_id] = by_identity[identity] = Node(node_id, identity, None, name)
            for node_id, (_, parent_id, _) in table.nodes.items():
                parent = nodes.get(parent_id)
                if parent is not None and node_id != ROOT:
                    nodes[node_id].parent = parent
                    parent.children += 1
            for node_id, links in table.more.items():
                known = [(nodes[parent], name) for parent, name in links if parent in nodes]
                for above, _ in known:
                    above.children += 1
                if known:
                    self._more[node_id] = known
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
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    @property
    def all(self) -> Mapping[int, Node]:
        """All nodes by id."""
        return self._nodes

    def has_further_link(self, node: int, parent: int, name: bytes) -> bool:
        """Tell whether a node has a link besides its first."""
        return any((above.id, other) == (parent, name) for above, other in self._more.get(node, ()))

    def known(self, identity: int) -> Node | None:
        """Return the node of a file, if the kernel knows it."""
        return self._by_identity.get(identity)

    def links(self, node: Node) -> list[Link]:
        """Return the known links of a node, the newest first."""
        with self._settled:
            links = [*reversed(self._more.get(node.id, ()))]
            if node.parent is not None:
                links.insert(0, (node.parent, node.name))
            return links

    def admit(self, identity: int, parent: Node, name: bytes, links: int) -> Node:
        """Return the node of a file that was found at a link, with one lookup more.

        `links` is how many names the file can have: with one, an older link is known to be gone.
        """
        with self._settled:
            node = self._by_identity.get(identity)
            if node is None:
                node = Node(self._ledger.new_id(), identity, parent, name)
                parent.children += 1
                self._nodes[node.id] = node
                self._by_identity[identity] = node
                self._ledger.node(node)
            elif node is not self.root:
                self._add_link(node, parent, name, links)
            self._ledger.lookups[node.id & SLOT] += 1
            return node

    def again(self, node: Node) -> Node:
        """Return a node that is known by other means than a link, with one lookup more."""
        with self._settled:
            self._ledger.lookups[node.id & SLOT] += 1
            return node

    def lookups(self, node: Node) -> int:
        """Return how often the kernel has looked a node up and not forgotten it."""
        return self._ledger.lookups[node.id & SLOT]

    def count_of(self, node: int) -> int:
        """Return how often the kernel has looked a node up, 0 if there is none."""
        with self._settled:
            return self.lookups(self._nodes[node]) if node in self._nodes else 0

    def give_up(self, node: int, count: int) -> None:
        """End a node that the kernel does not know, if its count is still that."""
        with self._settled:
            if self.count_of(node) == count:
                self.forget(node, count)

    def forget(self, node_id: int, count: int) -> None:
        """Take lookups back."""
        with self._settled:
            node = self._nodes.get(node_id)
            if node is None:
                return
            left = self._ledger.lookups[node_id & SLOT] = max(0, self.lookups(node) - count)
            if self._leftovers is not None and node_id < self._own_from:
                self._leftovers.forgot(node_id, left)
            self._collect(node)

    def unlink(self, node: Node, parent: Node, name: bytes) -> bool:
        """Take a link away. Return whether any other is known."""
        with self._settled:
            self._remove_link(node, parent, name)
            return node.parent is not None

    def rename(self, node: Node, old: Link, new: Link, links: int) -> None:
        """Put one link of a node into the place of another."""
        with self._settled:
            if (node.parent, node.name) == old and node.id not in self._more:
                self._replace_link(node, *new)
            else:
                self._remove_link(node, *old)
                self._add_link(node, *new, links)
            self._collect(node)

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Hold while the store is renaming and the links do not say so yet."""
        with self._settled:
            self._moving += 1
        try:
            yield
        finally:
            with self._settled:
                self._moving -= 1
                self._settled.notify_all()

    def wait_for_moves(self) -> bool:
        """Wait until no rename is under way. Return whether there was any."""
        with self._settled:
            if not self._moving:
                return False
            self._settled.wait_for(lambda: not self._moving, _LONGEST_MOVE_S)
            return True

    # Changes of links. Each is recorded before anything is let go: whoever is killed in between leaves a link too many.

    def _add_link(self, node: Node, parent: Node, name: bytes, links: int) -> None:
        """Make a link the first one of a node, unless it is known."""
        if (node.parent is parent and node.name == name) or node is parent:
            return
        others = self._more.get(node.id, [])
        if (parent, name) in others:
            return
        if not others and (node.parent is None or links <= 1):
            self._replace_link(node, parent, name)
            return
        self._break_cycle(node, parent)
        parent.children += 1
        if node.parent is not None:
            others.append((node.parent, node.name))
            self._more[node.id] = others
            self._ledger.link(node.id, node.parent.id, node.name)
        node.parent, node.name = parent, name
        self._ledger.node(node)
        while len(others) >= max(links, 1):
            self._remove_further_link(node, *others[0])

    def _replace_link(self, node: Node, parent: Node, name: bytes) -> None:
        """Put a link into the place of a node's only one, if it has any."""
        self._break_cycle(node, parent)
        old_parent = node.parent
        parent.children += 1
        node.parent, node.name = parent, name
        self._ledger.node(node)
        if old_parent is not None:
            self._let_go(old_parent)

    def _remove_link(self, node: Node, parent: Node, name: bytes) -> None:
        """Take a link away if it is known."""
        if node.parent is not parent or node.name != name:
            if (parent, name) in self._more.get(node.id, ()):
                self._remove_further_link(node, parent, name)
            return
        others = self._more.get(node.id)
        node.parent, node.name = others[-1] if others else (None, b"")
        self._ledger.node(node)
        self._let_go(parent)
        if others:
            others[-1][0].children += 1  # which is taken back with the further link
            self._remove_further_link(node, *others[-1])

    def _remove_further_link(self, node: Node, parent: Node, name: bytes) -> None:
        others = self._more[node.id]
        others.remove((parent, name))
        if not others:
            del self._more[node.id]
        self._ledger.unlink(node.id, parent.id, name)
        self._let_go(parent)

    def _let_go(self, parent: Node) -> None:
        self.moves += 1
        parent.children -= 1
        self._collect(parent)

    def _break_cycle(self, node: Node, parent: Node) -> None:
        """Cut the parent's own link if it leads through the node: somebody moved directories behind our back."""
        above: Node | None = parent
        while above is not None and above is not node:
            above = above.parent
        if above is node and parent.parent is not None:
            node.children += (
                1  # it may be there for the sake of what is cut off now, and is about to be needed
            )
            self._remove_link(parent, parent.parent, parent.name)
            node.children -= 1

    def _collect(self, node: Node) -> None:
        """End a node that nothing needs any more, then its parents for which the same has become true."""
        ending = [node]
        while ending:
            node = ending.pop()
            if node is self.root or node.children or node.id not in self._nodes or self.lookups(node):
                continue
            del self._nodes[node.id]
            if self._by_identity.get(node.identity) is node:
                del self._by_identity[node.identity]
            parents = [parent for parent, _ in self._more.pop(node.id, ())]
            if node.parent is not None:
                parents.append(node.parent)
                node.parent = None
            for parent in parents:
                parent.children -= 1
            ending += parents
            self._ledger.gone(node.id)
            self._on_gone(node.id)
