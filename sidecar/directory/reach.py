"""From a node to the file itself: by an open descriptor, or by its links; and never to another file.

A name may by now belong to something else, because others change the source as well. So whatever a link leads to is compared with the
node's identity. If it is not the node, the answer is ESTALE: the kernel then looks the path up afresh.
"""

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from sidecar.directory.descriptors import Descriptor, Descriptors, SoleUse
from sidecar.directory.handles import OpenFiles
from sidecar.directory.nodes import Node, NodeTable
from sidecar.directory.status import DIRECTORY, Found, kind_of
from sidecar.directory.store import Store

T = TypeVar("T")

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP})
_PATIENCE = 100  # tries while other threads keep renaming


def stale() -> OSError:
    """Return the error for a node that cannot be reached any more."""
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


class Reach:
    """Finds the files of nodes in the store."""

    def __init__(self, store: Store, nodes: NodeTable, files: OpenFiles, descriptors: Descriptors) -> None:
        self._store = store
        self._nodes = nodes
        self._files = files
        self._descriptors = descriptors

    def status(self, node: Node) -> Found:
        """Return what a node is now."""
        descriptor = self._open_already(node)
        if descriptor is not None:
            with descriptor as fd:
                return self._store.status(fd, b"")
        if kind_of(node.identity) == DIRECTORY:
            with self.directory(node) as fd:
                return self._store.status(fd, b"")
        return self._by_link(node, self._status_at)

    def object(self, node: Node) -> Descriptor:
        """Return a descriptor that holds the node's file, to be used with `with`. It may be O_PATH."""
        descriptor = self._open_already(node)
        if descriptor is not None:
            return descriptor
        if kind_of(node.identity) == DIRECTORY:
            return self.directory(node)
        return self._by_link(node, self._pin_at)

    def directory(self, node: Node) -> Descriptor:
        """Return a descriptor of a directory, to be used with `with`."""
        descriptor = self._descriptors.borrow(node.id)
        if descriptor is not None:
            return descriptor
        return self._patiently(lambda: self._climb(node))

    def _open_already(self, node: Node) -> Descriptor | None:
        return self._descriptors.borrow(node.id) or self._files.borrow(node.id)

    def _climb(self, node: Node) -> Descriptor:
        """Open the directories from the nearest open one down to a node. A loop: trees may be deeper than Python's stack."""
        path: list[Node] = []
        at = node
        descriptor = self._descriptors.borrow(at.id)
        while descriptor is None:
            path.append(at)
            if at.parent is None:
                raise stale()
            at = at.parent
            descriptor = self._descriptors.borrow(at.id)
        for below in reversed(path):
            with descriptor as fd:
                found = self._pin_directory(fd, below)
            descriptor = self._descriptors.keep_directory(below.id, found)
        return descriptor

    def _pin_directory(self, above: int, node: Node) -> int:
        fd = self._store.pin_directory(above, node.name)
        return self._checked(fd, node)

    def _by_link(self, node: Node, look: Callable[[int, bytes, Node], T]) -> T:
        """Look at a node where its first link says; if it is not there, look more closely."""
        parent = node.parent
        if parent is not None:
            try:
                with self.directory(parent) as above:
                    return look(above, node.name, node)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        return self._patiently(lambda: self._try_links(node, look))

    def _try_links(self, node: Node, look: Callable[[int, bytes, Node], T]) -> T:
        for parent, name in self._nodes.links(node):
            try:
                with self.directory(parent) as above:
                    return look(above, name, node)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        raise stale()

    def _status_at(self, above: int, name: bytes, node: Node) -> Found:
        found = self._store.status(above, name)
        if found.identity != node.identity:
            raise stale()
        return found

    def _pin_at(self, above: int, name: bytes, node: Node) -> Descriptor:
        return SoleUse(self._checked(self._store.pin(above, name), node))

    def _checked(self, fd: int, node: Node) -> int:
        """Return the descriptor if it holds the node, else close it."""
        try:
            if self._store.status(fd, b"").identity == node.identity:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        raise stale()

    def _patiently(self, look: Callable[[], T]) -> T:
        """Look again if links changed meanwhile: another thread may be in the midst of a rename."""
        for _ in range(_PATIENCE):
            moves = self._nodes.moves
            try:
                return look()
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                if moves == self._nodes.moves and not self._nodes.wait_for_moves():
                    break
        raise stale()
