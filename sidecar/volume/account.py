"""What a mount does under the lock of its volume's budget: files that become longer or shorter, and names that go.

Every change is noted before it is made and counted after it, both by what the file itself says then. So a change that fails halfway, or
whose author dies, counts as what it has come to.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sidecar.volume.measure import Measured
from sidecar.volume.opening import OpenVolume
from sidecar.volume.places import Place, Places
from sidemount.host import budget_locks as locks
from sidemount.host.budget_file import NO_SHARE, Head, Kind, Pending
from sidemount.host.budget_settlement import settle, settled
from sidemount.host.budget_shares import reclaim, write_share


class Account:
    """The account of one mount. Everything but `try_lock` needs the lock.

    `charges` has what open files without a name hold, by node: as much as this mount's share counts of them.
    """

    def __init__(self, volume: OpenVolume, share: int, measure: Callable[[int], Measured]) -> None:
        self.charges: dict[int, int] = {}
        self.measure = measure
        self._volume = volume
        self._budget = volume.budget
        self._share = share
        self._places = Places(volume.directory, volume.data, b"pending-%d" % share)
        self._turn = threading.Lock()
        self._head: Head

    def try_lock(self) -> bool:
        """Lock the budget, and settle what a dead mount has left. Return whether that worked at once. Raises OSError, BadMessage."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            is_locked = locks.try_exclusive(self._budget.fd, locks.BUDGET)
        except BaseException:
            self._turn.release()
            raise
        if not is_locked:
            self._turn.release()
            return False
        try:
            self._head = settle(self._budget, self._volume.directory, self._volume.data)
        except BaseException:
            self.unlock()
            raise
        return True

    def unlock(self) -> None:
        """Let others go on."""
        try:
            locks.unlock(self._budget.fd, locks.BUDGET)
        finally:
            self._turn.release()

    def room(self, wanted: int) -> int:
        """Return by how many bytes the volume may grow, looking hard only if `wanted` do not fit."""
        if self._head.limit - self._head.used < wanted:
            self._head = reclaim(self._budget, self._head, self._share)
        return max(0, self._head.limit - self._head.used)

    @contextmanager
    def resizing(self, node: int, fd: int, before: Measured, wanted: int) -> Iterator[None]:
        """Count what becomes of a file's size in the block. `wanted` is the size it is to have."""
        if before.links == 0 or node in self.charges:
            with self._resizing_nameless(node, fd, before, wanted):
                yield
            return
        place = self._places.of_file(fd, before.inode)
        self._note(Pending(Kind.RESIZE, before.inode, before.size), place, fd)
        try:
            yield
        finally:
            self._count(self.measure(fd).size - before.size)

    @contextmanager
    def _resizing_nameless(self, node: int, fd: int, before: Measured, wanted: int) -> Iterator[None]:
        """Count beforehand: nobody could look at the file. What is counted too much ends with the file."""
        growth = max(0, wanted - before.size)
        self.charge(node, growth)
        try:
            yield
        finally:
            self.charge(node, self.measure(fd).size - before.size - growth)

    @contextmanager
    def removing(self, directory: int, name: bytes, node: int | None) -> Iterator[None]:
        """Count what the block takes away with a name. `node` is the file's if it is open, else None.

        A file that is open is this mount's from then on, until it is closed.
        """
        fd = self._pin(directory, name)
        if fd is None:
            yield
            return
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                yield
                return
            with self._removing_file(directory, name, fd, node):
                yield
        finally:
            os.close(fd)

    @contextmanager
    def _removing_file(self, directory: int, name: bytes, fd: int, node: int | None) -> Iterator[None]:
        found = self.measure(fd)
        is_counted = found.size > 0
        if is_counted:
            place = self._places.of_name(directory, name, found.inode)
            self._note(self._removal(found, is_kept=node is not None), place, fd)
        try:
            yield
        finally:
            is_gone = not self._leads_to(directory, name, found.inode)
            if is_gone and node is not None:
                self.charges[node] = found.size
            if is_counted and is_gone and node is not None:
                self._budget.set_share(self._share, self._share_size() + found.size)
            if is_counted:
                self._count(-found.size if is_gone and node is None else 0)

    def charge(self, node: int, change: int) -> None:
        """Count more, or less, of a file without a name; never less than nothing."""
        before = self.charges.get(node, 0)
        after = self.charges[node] = max(0, before + change)
        if after != before:
            size = max(0, self._share_size() + after - before)
            self._head = write_share(self._budget, self._head, self._share, size, after - before)

    def discharge(self, node: int) -> None:
        """Count nothing more of a file that was closed."""
        self.charge(node, -self.charges.get(node, 0))
        del self.charges[node]

    def inherit(self, sizes: dict[int, int]) -> None:
        """Have a predecessor's files without a name, by node: those that are open still. What it has counted is not counted again."""
        counted = self._share_size() if self._volume.is_inherited else sum(sizes.values())
        for node, size in sizes.items():
            self.charges[node] = min(size, counted)
            counted -= self.charges[node]
        total, before = sum(self.charges.values()), self._share_size()
        if total != before:
            self._head = write_share(self._budget, self._head, self._share, total, total - before)

    def _removal(self, found: Measured, *, is_kept: bool) -> Pending:
        return Pending(
            Kind.REMOVE,
            found.inode,
            found.size,
            share=self._share if is_kept else NO_SHARE,
            share_before=self._share_size() if is_kept else 0,
        )

    def _share_size(self) -> int:
        return self._budget.share(self._share)

    def _note(self, pending: Pending, place: Place, fd: int) -> None:
        """Note what is going to be done. A further name is noted before it is made: nobody else would remove it.

        Without a place the death of this process is not settled, and the volume has to be counted again then.
        """
        if place.is_linked:
            about_to = Pending(path=place.path, is_linked=True)
            self._head = self._budget.write(self._head._replace(pending=about_to))
            if not self._places.link(fd):
                place = Place(b"")
        pending = pending._replace(path=place.path, is_linked=place.is_linked)
        self._head = self._budget.write(self._head._replace(pending=pending))

    def _count(self, change: int) -> None:
        used = max(0, self._head.used + change)
        self._head = settled(self._budget, self._head._replace(used=used), self._volume.directory)

    def _pin(self, directory: int, name: bytes) -> int | None:
        try:
            return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            return None

    def _leads_to(self, directory: int, name: bytes, inode: int) -> bool:
        try:
            return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino == inode
        except FileNotFoundError:
            return False
