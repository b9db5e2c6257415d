"""Names: finding and making them, with the node table kept in step. Removing and renaming them: `sidecar.directory.removal`."""

import contextlib
import os
import stat
from collections.abc import Callable

from sidecar.directory import ownership
from sidecar.directory.handles import OpenFile, OpenFiles
from sidecar.directory.names import single
from sidecar.directory.nodes import Node, NodeTable
from sidecar.directory.reach import Reach, stale
from sidecar.directory.status import REGULAR, Found
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import Caller, Entry
from sidecar.takeover import operation
from sidecar.takeover.journal import Journal, Step
from sidecar.takeover.operation import CREATE, MKDIR, MKNOD, SYMLINK


class Namespace:
    """The operations that find or make names. Each is one step: after an error nothing has changed.

    A step that is recalled is one that a predecessor began, and whose caller still waits: see `sidecar.takeover.journal`.
    """

    def __init__(
        self, store: Store, nodes: NodeTable, reach: Reach, files: OpenFiles, journal: Journal
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._reach = reach
        self._files = files
        self._journal = journal

    def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name. "." and ".." lead to a node itself and above it, never above the root."""
        above = self._nodes[parent]
        if name == b".":
            return self._again(above)
        if name == b"..":
            return self._again(above.parent or self._nodes.root)
        with self._reach.directory(above) as directory:
            found = self._store.status(directory, single(name))
        self._nodes.interest.note(parent)
        return self._admit(found, above, name)

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Entry:
        """Make a regular or special file."""

        def make(directory: int) -> None:
            self._store.mknod(directory, name, mode, rdev)

        return self._make(MKNOD, parent, name, mode, caller, make)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        """Make a directory."""

        def make(directory: int) -> None:
            self._store.mkdir(directory, name, mode)

        return self._make(MKDIR, parent, name, stat.S_IFDIR | mode & 0o1777, caller, make)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        """Make a symbolic link."""

        def make(directory: int) -> None:
            self._store.symlink(directory, name, target)

        return self._make(SYMLINK, parent, name, stat.S_IFLNK, caller, make)

    def link(self, node: int, parent: int, name: bytes) -> Entry:
        """Give a node one more name."""
        what, above = self._nodes[node], self._nodes[parent]
        with (
            self._journal.step(*operation.link(node, parent, single(name))) as step,
            self._reach.object(what) as fd,
            self._reach.directory(above) as directory,
        ):
            if step.is_done:
                return self._same_answer(what)
            if not (step.is_recalled and self._store.identity(directory, name) == what.identity):
                step.intend()
                self._store.link(fd, directory, name)
            entry = self._admit(self._store.status(fd, b""), above, name)
            step.done(entry.node)
            return entry

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[int, Entry]:
        """Make a regular file and open it; return handle and entry.

        The kernel found no such name. If somebody else has made one since, it has to look again (ESTALE), because only
        the kernel can tell whether this caller may open that file.
        """
        above = self._nodes[parent]
        with (
            self._journal.step(CREATE, parent, single(name)) as step,
            self._reach.directory(above) as directory,
        ):
            fd = self._created_before(step, directory, name, flags) if step.is_recalled else None
            is_new = fd is None
            if fd is None:
                step.intend(since_ns=self._store.now_ns())
                fd = self._create(directory, name, flags, mode)
            try:
                found = self._store.status(fd, b"")
                if is_new:
                    step.made(found.identity)
                found = ownership.give(self._store, fd, found, directory, mode, caller)
            except BaseException:
                os.close(fd)
                self._store.unlink(directory, name)
                raise
            is_counted = step.is_done and not is_new
            node = self._nodes[step.node] if is_counted else self._admitted(found, above, name)
            file = OpenFile(node, fd, flags, drops_privileges=caller.uid != 0)
            handle = self._files.add(file, step)
            step.done(node.id)
            return handle, Entry(node.id, node.tell(found))

    def _make(
        self,
        kind: int,
        parent: int,
        name: bytes,
        mode: int,
        caller: Caller,
        make: Callable[[int], None],
    ) -> Entry:
        above = self._nodes[parent]
        with (
            self._journal.step(kind, parent, single(name)) as step,
            self._reach.directory(above) as directory,
        ):
            if step.is_done:
                return self._same_answer(self._nodes[step.node])
            found = self._finish(step, directory, name, mode, caller) if step.is_recalled else None
            if found is None:
                since_ns = self._store.now_ns()
                step.intend(since_ns=since_ns)
                make(directory)
                found = self._give(step, directory, name, mode, since_ns, caller)
            entry = self._admit(found, above, name)
            step.done(entry.node)
            return entry

    def _create(self, directory: int, name: bytes, flags: int, mode: int) -> int:
        try:
            return self._store.create(directory, name, flags, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            raise stale() from None

    def _admitted(self, found: Found, above: Node, name: bytes) -> Node:
        return self._nodes.admit(found.identity, above, name, found.links)

    def _admit(self, found: Found, above: Node, name: bytes) -> Entry:
        node = self._admitted(found, above, name)
        return Entry(node.id, node.tell(found))

    def _again(self, node: Node) -> Entry:
        found = self._reach.status(node)
        return Entry(self._nodes.again(node).id, node.tell(found))

    def _same_answer(self, node: Node) -> Entry:
        """Return the entry that a predecessor has made and counted, and could not tell."""
        return Entry(node.id, node.tell(self._reach.status(node)))

    def _give(
        self, step: Step, directory: int, name: bytes, mode: int, since_ns: int, caller: Caller
    ) -> Found:
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
                step.made(made)
                return ownership.give(self._store, fd, found, directory, mode, caller)
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

    def _finish(self, step: Step, directory: int, name: bytes, mode: int, caller: Caller) -> Found | None:
        """Give away what a predecessor has made by name; None if it has made nothing."""
        fd = self._made_before(step, directory, name, stat.S_IFMT(mode) >> 12)
        if fd is None:
            return None
        try:
            return ownership.give(self._store, fd, self._store.status(fd, b""), directory, mode, caller)
        finally:
            os.close(fd)

    def _created_before(self, step: Step, directory: int, name: bytes, flags: int) -> int | None:
        """Open what a predecessor has created; None if it has not. The handle it had for it was never told."""
        if step.handle:
            self._files.remove(step.handle)
        made = self._made_before(step, directory, name, REGULAR)
        if made is None:
            return None
        try:
            return self._store.open(made, flags)
        finally:
            os.close(made)

    def _made_before(self, step: Step, directory: int, name: bytes, kind: int) -> int | None:
        """Pin what a predecessor has made by name; None if there is nothing that it can have made.

        It noted which file that was before giving it away. So what belongs to another by now without having been noted is somebody
        else's, who was quicker.
        """
        try:
            fd = self._store.pin(directory, name)
        except FileNotFoundError:
            return None
        try:
            found = self._store.status(fd, b"")
            if step.is_done or step.is_made:
                is_made = found.identity == step.second
            else:
                is_made = self._store.is_newborn(found, kind, step.since_ns)
            if is_made:
                step.made(found.identity)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None
