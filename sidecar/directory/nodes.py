"""The files that the kernel knows, by node id.

A node is stored as its links (parent node, name), so that a renamed directory is one change however much lies beneath it. Ids come from
a counter and are never used again. A node lives as long as the kernel has looked it up more often than it forgot it, or as
long as a living node hangs beneath it. Every change goes through the methods of `NodeTable`.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator

from sidecar.directory.status import Found, is_settled
from sidecar.protocol_filesystem import ROOT, Attributes

_LONGEST_MOVE_S = 30.0


class Node:
    """One file. A million of them are normal: nothing but what every one needs.

    `identity` tells the file from any other (see `Found`). `parent` is None if no name of it is known any more.
    `children` counts links of other nodes that name this one as their parent. `told_ns` is the change time that came
    with the attributes the kernel was last told, `opened_ns` that at the last open; 0 if there is none to be relied on.
    """

    __slots__ = ("children", "id", "identity", "lookups", "name", "opened_ns", "parent", "told_ns")

    def __init__(self, node_id: int, identity: int, parent: "Node | None", name: bytes) -> None:
        self.id = node_id
        self.identity = identity
        self.parent = parent
        self.name = name
        self.lookups = 0
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

    def __init__(self, root_identity: int, on_gone: Callable[[int], None]) -> None:
        self._settled = threading.Condition()  # its lock guards everything here
        self._on_gone = on_gone
        self.root = Node(ROOT, root_identity, None, b"")
        self._nodes = {ROOT: self.root}
        self._by_identity = {root_identity: self.root}
        self._more: dict[int, list[Link]] = {}  # further links of a node, oldest first
        self._next_id = ROOT + 1
        self._moving = 0
        self.moves = 0  # grows with every link that is taken away

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, node_id: int) -> Node:
        """Return a node. ESTALE if there is none: the kernel then looks its path up again."""
        node = self._nodes.get(node_id)
        if node is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

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
                node = Node(self._next_id, identity, parent, name)
                self._next_id += 1
                parent.children += 1
                self._nodes[node.id] = node
                self._by_identity[identity] = node
            elif node is not self.root:
                self._add_link(node, parent, name, links)
            node.lookups += 1
            return node

    def again(self, node: Node) -> Node:
        """Return a node that is known by other means than a link, with one lookup more."""
        with self._settled:
            node.lookups += 1
            return node

    def forget(self, node_id: int, count: int) -> None:
        """Take lookups back."""
        with self._settled:
            node = self._nodes.get(node_id)
            if node is not None:
                node.lookups = max(0, node.lookups - count)
                self._collect(node)

    def unlink(self, node: Node, parent: Node, name: bytes) -> bool:
        """Take a link away. Return whether any other is known."""
        with self._settled:
            self._remove_link(node, parent, name)
            return node.parent is not None

    def rename(self, node: Node, old: Link, new: Link, links: int) -> None:
        """Put one link of a node into the place of another."""
        with self._settled:
            self._remove_link(node, *old)
            self._add_link(node, *new, links)

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

    def _add_link(self, node: Node, parent: Node, name: bytes, links: int) -> None:
        if node.parent is parent and node.name == name:
            return
        others = self._more.get(node.id, [])
        if (parent, name) in others:
            return
        self._break_cycle(node, parent)
        parent.children += 1
        if node.parent is not None:
            others = [*others, (node.parent, node.name)]
        node.parent, node.name = parent, name
        excess = max(0, len(others) + 1 - links)
        self._set_more(node, others[excess:])
        for old_parent, _ in others[:excess]:
            self._let_go(old_parent)

    def _remove_link(self, node: Node, parent: Node, name: bytes) -> None:
        others = self._more.get(node.id, [])
        if node.parent is parent and node.name == name:
            node.parent, node.name = others.pop() if others else (None, b"")
        elif (parent, name) in others:
            others.remove((parent, name))
        else:
            return
        self._set_more(node, others)
        self._let_go(parent)

    def _set_more(self, node: Node, links: list[Link]) -> None:
        if links:
            self._more[node.id] = links
        else:
            self._more.pop(node.id, None)

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
            self._remove_link(parent, parent.parent, parent.name)

    def _collect(self, node: Node) -> None:
        """End a node that nothing needs any more, then its parents for which the same has become true."""
        ending = [node]
        while ending:
            node = ending.pop()
            if node is self.root or node.lookups or node.children or node.id not in self._nodes:
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
            self._on_gone(node.id)
