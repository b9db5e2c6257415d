"""Removing and renaming names, with the node table kept in step."""

import errno
import os
from collections.abc import Callable

from sidecar.directory.nameless import Nameless
from sidecar.directory.names import single
from sidecar.directory.nodes import Link, Node, NodeTable
from sidecar.directory.reach import Reach
from sidecar.directory.status import DIRECTORY, Found, kind_of
from sidecar.directory.store import Store
from sidecar.directory.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sidecar.takeover import operation
from sidecar.takeover.journal import Journal, Step
from sidecar.takeover.operation import RMDIR, UNLINK


class Removal:
    """The operations that take names away. Each is one step: after an error nothing has changed.

    A step that is recalled is one that a predecessor began, and whose caller still waits: see `sidecar.takeover.journal`.
    """

    def __init__(
        self, store: Store, nodes: NodeTable, reach: Reach, nameless: Nameless, journal: Journal
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._reach = reach
        self._nameless = nameless
        self._journal = journal

    def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name that is not a directory's."""
        self._remove(UNLINK, parent, name, self._store.unlink)

    def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        self._remove(RMDIR, parent, name, self._store.rmdir)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """Rename, with NOREPLACE or EXCHANGE; any other flag is EINVAL."""
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        old = (self._nodes[parent], single(name))
        new = (self._nodes[new_parent], single(new_name))
        with (
            self._journal.step(*operation.rename(parent, name, new_parent, new_name, flags)) as step,
            self._reach.directory(old[0]) as directory,
            self._reach.directory(new[0]) as new_directory,
        ):
            if step.is_done:
                return
            if step.is_recalled and self._store.identity(directory, name) != step.first:
                # It has been renamed. Others may have gone on from there, even with another file of the old name.
                self._catch_up(step, new_directory, old, new, flags)
            else:
                self._rename(step, directory, new_directory, old, new, flags)
            step.done()

    def _remove(self, kind: int, parent: int, name: bytes, remove: Callable[[int, bytes], None]) -> None:
        above = self._nodes[parent]
        with (
            self._journal.step(kind, parent, single(name)) as step,
            self._reach.directory(above) as directory,
        ):
            if step.is_done:
                return
            if step.is_recalled and self._store.identity(directory, name) != step.first:
                gone = self._nodes.known(step.first)
                if gone is not None:
                    self._nodes.unlink(gone, above, name)
            else:
                held, identity = self._hold(directory, name)
                step.intend(first=identity)
                node = self._nodes.known(identity)
                self._nameless.lose(node, above, name, held, lambda: remove(directory, name))
            step.done()

    def _rename(
        self, step: Step, directory: int, new_directory: int, old: Link, new: Link, flags: int
    ) -> None:
        moved = self._store.status(directory, old[1])
        try:
            held, identity = self._hold(new_directory, new[1])
        except FileNotFoundError:
            step.intend(first=moved.identity)
            self._move(moved, None, directory, new_directory, old, new, flags)
            return
        victim = self._nodes.known(identity)
        step.intend(first=moved.identity, second=identity)

        def move() -> None:
            self._move(moved, victim, directory, new_directory, old, new, flags)

        if flags & RENAME_EXCHANGE or identity == moved.identity:
            os.close(held)  # renaming one name of a file to another of the same file does nothing
            move()
        else:
            self._nameless.lose(victim, *new, held, move)

    def _move(
        self,
        moved: Found,
        victim: Node | None,
        directory: int,
        new_directory: int,
        old: Link,
        new: Link,
        flags: int,
    ) -> None:
        with self._nodes.moving():
            self._store.rename(directory, old[1], new_directory, new[1], flags)
            self._relink(moved, victim, old, new, flags)

    def _relink(self, moved: Found, victim: Node | None, old: Link, new: Link, flags: int) -> None:
        node = self._nodes.known(moved.identity)
        if node is victim and node is not None:
            return
        if node is not None:
            self._nodes.rename(node, old, new, moved.links)
        if victim is not None and flags & RENAME_EXCHANGE:
            links = 1 if kind_of(victim.identity) == DIRECTORY else len(self._nodes.links(victim)) + 1
            self._nodes.rename(victim, new, old, links)

    def _catch_up(self, step: Step, new_directory: int, old: Link, new: Link, flags: int) -> None:
        """Have the node table say what a predecessor has done in the store."""
        moved, victim = self._nodes.known(step.first), self._nodes.known(step.second)
        try:
            found = self._store.status(new_directory, new[1])
        except FileNotFoundError:
            found = None
        if found is not None and found.identity == step.first:
            self._relink(found, victim, old, new, flags)
        elif moved is not None:
            self._nodes.unlink(moved, *old)
        if victim is not None and victim is not moved and not flags & RENAME_EXCHANGE:
            self._nodes.unlink(victim, *new)

    def _hold(self, directory: int, name: bytes) -> tuple[int, int]:
        """Hold open what a name is; return the descriptor and the file's identity."""
        fd = self._store.pin(directory, name)
        try:
            return fd, self._store.status(fd, b"").identity
        except BaseException:
            os.close(fd)
            raise
