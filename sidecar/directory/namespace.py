"""Names: finding, making, removing and renaming them, with the node table kept in step."""

import contextlib
import errno
import os
import stat

from sidecar.directory import ownership
from sidecar.directory.descriptors import Descriptors
from sidecar.directory.handles import OpenFile, OpenFiles
from sidecar.directory.nodes import Node, NodeTable
from sidecar.directory.reach import Reach, stale
from sidecar.directory.status import DIRECTORY, Found, kind_of
from sidecar.directory.store import Store
from sidecar.directory.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sidecar.protocol_filesystem import Caller, Entry


class Namespace:
    """The operations on names of one volume. Each is one step: after an error nothing has changed."""

    def __init__(
        self, store: Store, nodes: NodeTable, reach: Reach, files: OpenFiles, descriptors: Descriptors
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._reach = reach
        self._files = files
        self._descriptors = descriptors

    def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name. "." and ".." lead to a node itself and above it, never above the root."""
        above = self._nodes[parent]
        if name == b".":
            return self._again(above)
        if name == b"..":
            return self._again(above.parent or self._nodes.root)
        with self._reach.directory(above) as directory:
            found = self._store.status(directory, _single(name))
        return self._admit(found, above, name)

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Entry:
        """Make a regular or special file."""
        above = self._nodes[parent]
        with self._reach.directory(above) as directory:
            since_ns = self._store.now_ns()
            self._store.mknod(directory, _single(name), mode, rdev)
            found = self._give(directory, name, mode, since_ns, caller)
        return self._admit(found, above, name)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        """Make a directory."""
        above = self._nodes[parent]
        with self._reach.directory(above) as directory:
            since_ns = self._store.now_ns()
            self._store.mkdir(directory, _single(name), mode)
            found = self._give(directory, name, stat.S_IFDIR | mode & 0o1777, since_ns, caller)
        return self._admit(found, above, name)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        """Make a symbolic link."""
        above = self._nodes[parent]
        with self._reach.directory(above) as directory:
            since_ns = self._store.now_ns()
            self._store.symlink(directory, _single(name), target)
            found = self._give(directory, name, stat.S_IFLNK, since_ns, caller)
        return self._admit(found, above, name)

    def link(self, node: int, parent: int, name: bytes) -> Entry:
        """Give a node one more name."""
        above = self._nodes[parent]
        with self._reach.object(self._nodes[node]) as fd, self._reach.directory(above) as directory:
            self._store.link(fd, directory, _single(name))
            found = self._store.status(fd, b"")
        return self._admit(found, above, name)

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[int, Entry]:
        """Make a regular file and open it; return handle and entry.

        The kernel found no such name. If somebody else has made one since, it has to look again (ESTALE), because only
        the kernel can tell whether this caller may open that file.
        """
        above = self._nodes[parent]
        with self._reach.directory(above) as directory:
            try:
                fd = self._store.create(directory, _single(name), flags, mode)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
                raise stale() from None
            try:
                found = ownership.give(self._store, fd, directory, mode, caller)
            except BaseException:
                os.close(fd)
                self._store.unlink(directory, name)
                raise
        entry = self._admit(found, above, name)
        file = OpenFile(self._nodes[entry.node], fd, flags, drops_privileges=caller.uid != 0)
        return self._files.add(file), entry

    def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name that is not a directory's."""
        above = self._nodes[parent]
        with self._reach.directory(above) as directory:
            held, node = self._hold(directory, _single(name))
            try:
                self._store.unlink(directory, name)
            except BaseException:
                os.close(held)
                raise
        self._retire(node, above, name, held)

    def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        above = self._nodes[parent]
        with self._reach.directory(above) as directory:
            held, node = self._hold(directory, _single(name))
            try:
                self._store.rmdir(directory, name)
            except BaseException:
                os.close(held)
                raise
        self._retire(node, above, name, held)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """Rename, with NOREPLACE or EXCHANGE; any other flag is EINVAL."""
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        old = (self._nodes[parent], _single(name))
        new = (self._nodes[new_parent], _single(new_name))
        with self._reach.directory(old[0]) as directory, self._reach.directory(new[0]) as new_directory:
            moved = self._store.status(directory, name)
            held, victim = self._hold_if_any(new_directory, new_name)
            try:
                with self._nodes.moving():
                    self._store.rename(directory, name, new_directory, new_name, flags)
                    self._relink(moved, victim, old, new, flags)
            except BaseException:
                if held is not None:
                    os.close(held)
                raise
        if held is None:
            return
        if flags & RENAME_EXCHANGE or victim is None or victim is self._nodes.known(moved.identity):
            os.close(held)  # renaming one name of a file to another of the same file does nothing
        else:
            self._retire(victim, *new, held)

    def _admit(self, found: Found, above: Node, name: bytes) -> Entry:
        node = self._nodes.admit(found.identity, above, name, found.links)
        return Entry(node.id, node.tell(found))

    def _again(self, node: Node) -> Entry:
        found = self._reach.status(node)
        return Entry(self._nodes.again(node).id, node.tell(found))

    def _give(self, directory: int, name: bytes, mode: int, since_ns: int, caller: Caller) -> Found:
        """Give away what was just made by name, or remove it again.

        Between making and opening it, somebody who can write to the directory another way may have put something else there:
        that is neither given away nor removed.
        """
        made = None
        try:
            fd = self._store.pin(directory, name)
            try:
                found = self._store.status(fd, b"")
                if not self._store.is_newborn(found, stat.S_IFMT(mode) >> 12, since_ns):
                    raise stale()
                made = found.identity
                return ownership.give(self._store, fd, directory, mode, caller)
            finally:
                os.close(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                found = self._store.status(directory, name)
                newborn = self._store.is_newborn(found, stat.S_IFMT(mode) >> 12, since_ns)
                if found.identity == made or (made is None and newborn):
                    remove = self._store.rmdir if stat.S_ISDIR(mode) else self._store.unlink
                    remove(directory, name)
            raise

    def _hold(self, directory: int, name: bytes) -> tuple[int, Node | None]:
        """Hold open what a name is, and return its node if the kernel knows it."""
        fd = self._store.pin(directory, name)
        try:
            return fd, self._nodes.known(self._store.status(fd, b"").identity)
        except BaseException:
            os.close(fd)
            raise

    def _hold_if_any(self, directory: int, name: bytes) -> tuple[int | None, Node | None]:
        try:
            return self._hold(directory, name)
        except FileNotFoundError:
            return None, None

    def _retire(self, node: Node | None, above: Node, name: bytes, held: int) -> None:
        """Take away the link that the store has lost. `held` keeps the file reachable if it was the last one known.

        The one place that decides what becomes of a file which loses its name while somebody may still have it open.
        """
        if node is None or self._nodes.unlink(node, above, name) or not node.lookups:
            os.close(held)
        else:
            self._descriptors.keep_nameless(node.id, held)

    def _relink(
        self,
        moved: Found,
        victim: Node | None,
        old: tuple[Node, bytes],
        new: tuple[Node, bytes],
        flags: int,
    ) -> None:
        node = self._nodes.known(moved.identity)
        if node is victim and node is not None:
            return
        if node is not None:
            self._nodes.rename(node, old, new, moved.links)
        if victim is not None and flags & RENAME_EXCHANGE:
            links = 1 if kind_of(victim.identity) == DIRECTORY else len(self._nodes.links(victim)) + 1
            self._nodes.rename(victim, new, old, links)


def _single(name: bytes) -> bytes:
    """Return a name if it is one: not a path, not a dot. The kernel never sends another."""
    if b"/" in name or name in (b"", b".", b".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return name
