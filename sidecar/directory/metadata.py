"""Attributes, symbolic links' targets and extended attributes."""

import errno
import os

from sidecar.directory import ownership
from sidecar.directory.descriptors import Descriptor
from sidecar.directory.handles import OpenFiles
from sidecar.directory.nodes import NodeTable
from sidecar.directory.reach import Reach
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import Attributes, Caller, Changes
from sidecar.takeover.journal import Journal
from sidecar.takeover.operation import REMOVEXATTR, SETXATTR

_CAPABILITIES = b"security.capability"
_LABEL = b"security.selinux"
_ACLS = frozenset({b"system.posix_acl_access", b"system.posix_acl_default"})


class Metadata:
    """The operations on what a file is, apart from its names and its content."""

    def __init__(
        self, store: Store, nodes: NodeTable, reach: Reach, files: OpenFiles, journal: Journal
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._reach = reach
        self._files = files
        self._journal = journal

    def getattr(self, node: int) -> Attributes:
        """Return a node's attributes."""
        what = self._nodes[node]
        if what.parent is not None:
            self._nodes.interest.note(what.parent.id)
        return what.tell(self._reach.status(what))

    def setattr(self, node: int, changes: Changes, handle: int | None, caller: Caller) -> Attributes:
        """Change attributes: the owner first, because that drops set-id bits; times last, because a new size sets them."""
        with self.object(node, handle) as fd:
            if changes == _NOTHING:
                # The kernel asks for nothing when a chown(-1, -1), or a write of somebody without CAP_FSETID, is
                # to drop set-id bits and capabilities. That is what chown(2) does in the store.
                self._store.chown(fd, -1, -1)
            if changes.uid is not None or changes.gid is not None:
                self._store.chown(fd, _or_same(changes.uid), _or_same(changes.gid))
            if changes.mode is not None:
                self._store.chmod(fd, changes.mode)
            if changes.size is not None:
                self._resize(fd, changes.size, handle, caller)
            if changes.atime_ns is not None or changes.mtime_ns is not None:
                self._store.utimens(fd, changes.atime_ns, changes.mtime_ns)
            return self._nodes[node].tell(self._store.status(fd, b""))

    def readlink(self, node: int) -> bytes:
        """Return a symbolic link's target."""
        with self._reach.object(self._nodes[node]) as fd:
            return self._store.readlink(fd)

    def getxattr(self, node: int, name: bytes) -> bytes:
        """Return an extended attribute.

        A store without ACLs answers EOPNOTSUPP for them, which the kernel would take for a failed permission check; it
        has to be told that there are none. An attribute that a predecessor has just set with XATTR_CREATE does not exist until
        that is done again: pyfuse3 asks before it sets.

        Only a kernel without SELinux asks for labels at all. Where there are none, EOPNOTSUPP says so of the whole volume: `ls -l`
        then asks for one, and not for one of every file.
        """
        if self._journal.is_recalled(SETXATTR, node, name):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        with self._reach.object(self._nodes[node]) as fd:
            try:
                return self._store.getxattr(fd, name)
            except OSError as error:
                if name in _ACLS and error.errno == errno.EOPNOTSUPP:
                    raise OSError(errno.ENODATA, os.strerror(errno.ENODATA)) from None
                if name == _LABEL and error.errno == errno.ENODATA and not self._is_labelled():
                    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
                raise

    def setxattr(self, node: int, name: bytes, value: bytes, caller: Caller) -> None:
        """Set an extended attribute."""
        with self._journal.step(SETXATTR, node, name) as step, self._reach.object(self._nodes[node]) as fd:
            step.intend()
            self._store.setxattr(fd, name, value)
            ownership.drop_group_id_after_acl(self._store, fd, name, caller)
            step.done()

    def listxattr(self, node: int) -> list[bytes]:
        """Return the names of the extended attributes."""
        with self._reach.object(self._nodes[node]) as fd:
            return self._store.listxattr(fd)

    def removexattr(self, node: int, name: bytes) -> None:
        """Remove an extended attribute."""
        with self._journal.step(REMOVEXATTR, node, name) as step, self._reach.object(self._nodes[node]) as fd:
            if step.is_done or (step.is_recalled and not self._has_xattr(fd, name)):
                step.done()
                return
            if self._journal.is_kept and self._has_xattr(fd, name):
                step.intend()  # without it, the end of an attribute that never was would pass for ours
            self._remove(fd, name)
            step.done()

    def _remove(self, fd: int, name: bytes) -> None:
        try:
            self._store.removexattr(fd, name)
        except PermissionError:
            if name != _CAPABILITIES:
                raise
            # Whoever asks may do that, or is the kernel, for whom a write takes capabilities away; only we may not.
            ownership.drop_capabilities(self._store, fd)

    def _is_labelled(self) -> bool:
        """Tell whether the root has a label: files have, then."""
        try:
            return self._has_xattr(self._store.root, _LABEL)
        except OSError:
            return True  # it cannot be told

    def _has_xattr(self, fd: int, name: bytes) -> bool:
        try:
            self._store.getxattr(fd, name)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return False
            raise
        return True

    def object(self, node: int, handle: int | None) -> Descriptor:
        if handle is None:
            return self._reach.object(self._nodes[node])
        return self._files[handle].descriptor.borrow()

    def _resize(self, fd: int, size: int, handle: int | None, caller: Caller) -> None:
        if handle is not None and self._files[handle].writable:
            self._store.set_size(fd, size)
        else:
            self._store.truncate(fd, size)
        if caller.uid != 0:
            ownership.drop_privileges(self._store, fd)


_NOTHING = Changes()


def _or_same(number: int | None) -> int:
    return -1 if number is None else number
