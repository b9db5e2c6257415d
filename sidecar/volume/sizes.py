"""The operations that change how much a volume holds. All but `overwrite` need the budget's lock; none waits for it."""

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sidecar.directory.content import Content
from sidecar.directory.descriptors import Descriptors
from sidecar.directory.handles import OpenFiles
from sidecar.directory.metadata import Metadata
from sidecar.directory.names import single
from sidecar.directory.nodes import NodeTable
from sidecar.directory.reach import Reach
from sidecar.directory.removal import Removal
from sidecar.directory.store import Store
from sidecar.directory.syscalls import RENAME_EXCHANGE
from sidecar.protocol_filesystem import ROOT, Attributes, Caller, Changes, Opened
from sidecar.volume.account import Account
from sidecar.volume.measure import size_of, size_of_remote


class Sizes:
    """The operations of one mount. A None instead of an answer: it has to be done in another way, which the method says."""

    def __init__(
        self,
        account: Account,
        *,
        store: Store,
        nodes: NodeTable,
        reach: Reach,
        files: OpenFiles,
        content: Content,
        metadata: Metadata,
        removal: Removal,
        is_remote: bool,
    ) -> None:
        self._account = account
        self._measure = account.measure
        self._charges = account.charges
        self._store = store
        self._nodes = nodes
        self._reach = reach
        self._files = files
        self._content = content
        self._metadata = metadata
        self._removal = removal
        self._is_remote = is_remote
        self._size_of = size_of_remote if is_remote else size_of
        self._being_opened: Counter[int] = Counter()

    def overwrite(self, handle: int, offset: int, content: bytes) -> int | None:
        """Write into what is there already; None if the file would become longer."""
        if offset + len(content) > self._size_of(self._files[handle].fd):
            return None
        return self._content.write(handle, offset, content)

    def extend(self, handle: int, offset: int, content: bytes) -> int:
        """Write, the file becoming longer. All or nothing: EDQUOT if there is not room for all of it.

        So what an application is refused is not there in part, and a kernel that collects writes has lost nothing it took for written.
        """
        file = self._files[handle]
        before = self._measure(file.fd)
        end = offset + len(content)
        growth = end - before.size
        if growth <= 0:
            return self._content.write(handle, offset, content)
        if self._account.room(growth) < growth:
            raise _over_quota()
        with self._account.resizing(file.node.id, file.fd, before, end):
            written = self._content.write(handle, offset, content)
            if self._is_remote:
                # Until the server has it, the next mount that gets the lock would count it once more.
                self._store.sync(file.fd, datasync=True)
            return written

    def is_longer(self, node: int, handle: int | None, size: int) -> bool:
        """Tell whether a file is longer than that."""
        with self._metadata.object(node, handle) as fd:
            return self._measure(fd).size > size

    def resize(
        self,
        node: int,
        changes: Changes,
        handle: int | None,
        caller: Caller,
        *,
        size: int,
        may_shrink: bool,
    ) -> Attributes | None:
        """Change attributes, the size among them; None if the file would become shorter and may not. EDQUOT if there is no room."""
        with self._metadata.object(node, handle) as fd:
            before = self._measure(fd)
            growth = size - before.size
            if growth < 0 and not may_shrink:
                return None
            if growth > 0 and self._account.room(growth) < growth:
                raise _over_quota()
            with self._account.resizing(node, fd, before, size):
                return self._metadata.setattr(node, changes, handle, caller)

    def open_empty(self, node: int, flags: int, caller: Caller, *, may_shrink: bool) -> Opened | None:
        """Open a file and have nothing in it; None if there is something and it may not become shorter."""
        with self._reach.object(self._nodes[node]) as fd:
            before = self._measure(fd)
            if before.size and not may_shrink:
                return None
            with self._account.resizing(node, fd, before, 0):
                return self._content.open(node, flags, caller)

    def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name that is not a directory's."""
        with (
            self._reach.directory(self._nodes[parent]) as directory,
            self._removing(directory, single(name)),
        ):
            self._removal.unlink(parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """Rename. What had the new name goes."""
        if flags & RENAME_EXCHANGE:
            self._removal.rename(parent, name, new_parent, new_name, flags)
            return
        with (
            self._reach.directory(self._nodes[new_parent]) as directory,
            self._removing(directory, single(new_name)),
        ):
            self._removal.rename(parent, name, new_parent, new_name, flags)

    @contextmanager
    def opening(self, node: int) -> Iterator[None]:
        """Have a file count as open already: others may take its name away meanwhile. For the serving thread alone."""
        self._being_opened[node] += 1
        try:
            yield
        finally:
            self._being_opened[node] -= 1
            if not self._being_opened[node]:
                del self._being_opened[node]

    def is_charged_when_opened(self, node: int) -> bool:
        """Tell whether a file that was just opened may have no name, and not count any more."""
        what = self._nodes.all.get(node)
        return what is not None and what.parent is None and node != ROOT and node not in self._charges

    def charge_opened(self, node: int, handle: int) -> None:
        """Count a file without a name again that nobody had open, and somebody has now. EDQUOT if there is no room."""
        found = self._measure(self._files[handle].fd)
        if found.links == 0 and node not in self._charges:
            if self._account.room(found.size) < found.size:
                raise _over_quota()
            self._account.charge(node, found.size)

    def is_discharged(self, node: int) -> bool:
        """Tell whether a file without a name counts and is not open any more. Needs no lock."""
        return node in self._charges and not self._is_open(node)

    def discharge_closed(self, node: int) -> None:
        """Count a file without a name no more, unless it is open still."""
        if self.is_discharged(node):
            self._account.discharge(node)

    def inherit(self, nodes: set[int], descriptors: Descriptors) -> None:
        """Have the files without a name among those that a predecessor had open."""
        sizes = {}
        for node in nodes & self._nodes.all.keys():
            descriptor = descriptors.borrow_nameless(node) or self._files.borrow(node)
            if descriptor is not None:
                with descriptor as fd:
                    found = self._measure(fd)
                if found.links == 0 or self._nodes[node].parent is None:
                    sizes[node] = found.size
        self._account.inherit(sizes)

    @contextmanager
    def _removing(self, directory: int, name: bytes) -> Iterator[None]:
        """Count what the block takes away with a name. Another thread may close the file at the same time."""
        node = self._open_node(directory, name)
        try:
            with self._account.removing(directory, name, node):
                yield
        finally:
            if node is not None:
                self.discharge_closed(node)

    def _open_node(self, directory: int, name: bytes) -> int | None:
        """Return the node of a name if it is open here."""
        node = self._nodes.known(self._store.identity(directory, name))
        return node.id if node is not None and self._is_open(node.id) else None

    def _is_open(self, node: int) -> bool:
        return node in self._being_opened or self._files.is_open(node)


def _over_quota() -> OSError:
    return OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
