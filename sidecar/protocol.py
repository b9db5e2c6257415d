"""The FUSE protocol over any built-in filesystem: pyfuse3's Operations with an errno boundary around every one.

An exception that leaves a handler ends pyfuse3's worker, and with it the mount. So nothing but FUSEError leaves here, whatever
the filesystem raises or returns (all conversions happen inside the boundary), except what ends the process on
purpose (trio.Cancelled, KeyboardInterrupt, SystemExit).
"""

import contextlib
import errno
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3

from sidecar.daemon_work import CountingOperations, Work
from sidecar.detour import Detour
from sidecar.open_handles import OpenHandles
from sidecar.protocol_entry import EntryRenderer
from sidecar.protocol_errno import ErrnoTable, sane
from sidecar.protocol_filesystem import (
    Attributes,
    Changes,
    Entry,
    Opened,
    OperationAbsent,
    VirtualFilesystem,
)
from sidecar.protocol_umask import without_umask
from sidecar.takeover.drain import Drained
from sidecar.takeover.errand import Errands

_LOG = logging.getLogger(__name__)
_DEAD_MOUNT = frozenset(
    {errno.ENOTCONN, errno.ECONNABORTED}
)  # what the kernel says of a mount that nobody serves
_BUFFERS = (bytes, bytearray, memoryview)

P = ParamSpec("P")
R = TypeVar("R")
Handler = Callable[Concatenate["FilesystemOperations", P], Coroutine[Any, Any, R]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSettings:
    """How the kernel is to treat a mount.

    Timeouts are how long it may believe attributes and names without asking. `acl`: it reads and enforces POSIX ACLs.
    `writeback`: it collects writes; only for a source that nobody else writes to.
    """

    read_only: bool = False
    attribute_timeout_s: float = 1.0
    entry_timeout_s: float = 1.0
    acl: bool = True
    writeback: bool = False


def guarded(handler: Handler[P, R]) -> Handler[P, R]:
    """Let nothing out of a handler but FUSEError with an errno that the kernel takes."""
    return _bounded(handler, mutates=False)


def mutating(handler: Handler[P, R]) -> Handler[P, R]:
    """Be `guarded`, and refuse with EROFS on a read-only volume. The mount refuses as well: two locks on one door."""
    return _bounded(handler, mutates=True)


def _bounded(handler: Handler[P, R], *, mutates: bool) -> Handler[P, R]:
    operation = getattr(handler, "__name__", "operation")

    @functools.wraps(handler)
    async def boundary(self: "FilesystemOperations", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if mutates and self.settings.read_only:
            raise pyfuse3.FUSEError(errno.EROFS)
        work = self.work
        work.in_progress += 1
        try:
            return await handler(self, *args, **kwargs)
        except pyfuse3.FUSEError as error:
            number = error.errno if error.errno == errno.ENOSYS else sane(error.errno)
        except Exception as error:
            number = self.errnos.answer(operation, error)
        finally:
            work.in_progress -= 1
            work.handled += 1
        raise pyfuse3.FUSEError(number)

    boundary.__dict__["is_guarded"] = True
    return boundary


class FilesystemOperations(CountingOperations):
    """Serves one filesystem. `on_init` is called when pyfuse3 has read FUSE_INIT, before it answers.

    `detour` tells the kernel what pyfuse3 cannot; without it closes are told, and no file is passed through.
    """

    # The kernel may ask for "." and ".." of a node that it dropped from its caches (open_by_handle_at, NFS export of the mount).
    supports_dot_lookup = True

    def __init__(self, filesystem: VirtualFilesystem, settings: ProtocolSettings) -> None:
        super().__init__()
        self.settings = settings
        self.work = Work()
        self.enable_acl = settings.acl
        self.enable_writeback_cache = settings.writeback
        self.on_init: Callable[[], None] = _nothing
        self.init_error: Exception | None = None
        self.detour: Detour | None = None
        self.errnos = ErrnoTable()
        self.memory = filesystem.memory
        self.memory.on_waiting = self._note_waiting
        self._filesystem = filesystem
        self._open = OpenHandles()
        self._entries = EntryRenderer(
            attribute_timeout_s=settings.attribute_timeout_s, entry_timeout_s=settings.entry_timeout_s
        )

    def init(self) -> None:
        """Call the hook. An exception must not reach libfuse: it is logged and kept in `init_error`."""
        self.work.numbers = getattr(self._filesystem, "numbers", None)
        try:
            self.on_init()
            self._count_handles()
            self._filesystem.begin(self._kernel_knows)
        except Exception as error:
            self.init_error = error
            _LOG.critical("init_failed", exc_info=error)

    def _kernel_knows(self, inode: int) -> bool:
        """Ask in another thread than the serving one."""
        if self.detour is None:
            return kernel_knows(inode)
        with self.detour.writing:
            return kernel_knows(inode)

    def _count_handles(self) -> None:
        inheritance = self.memory.inheritance
        self._open = OpenHandles(() if inheritance is None else inheritance.handles)
        self.work.open_handles = self._open

    @property
    def errands(self) -> Errands:
        """What the serving thread has to do before it reads each request."""
        return self.memory.errands

    @property
    def state_id(self) -> str:
        """The id of what a successor could resume, "" if there is nothing."""
        return self.memory.state_id

    def resume(self, drained: Drained) -> None:
        """Be ready for what the kernel asks again, after a predecessor has died. Before INIT is played back."""
        self._filesystem.resume(drained)

    def close(self) -> None:
        """Have the filesystem come to its end, once nothing is served any more. Raises what goes wrong."""
        close = getattr(self._filesystem, "close", None)
        if close is not None:
            close()

    def _note_waiting(self) -> None:
        """Have the keeper see that the daemon works: whoever waits for another mount's turn would look hung otherwise."""
        self.work.handled += 1

    def stacktrace(self) -> None:
        """Do nothing: nobody may have our stacks written to the log by setting an attribute."""

    # Names.

    @guarded
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Find a name."""
        return self._render(await self._filesystem.lookup(parent_inode, name))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Take lookups back. Nobody waits for an answer, so a failure is only logged."""
        try:
            await self._filesystem.forget(inode_list)
        except Exception as error:
            self.errnos.answer("forget", error)
        finally:
            self.work.handled += 1

    @guarded
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """Return a symbolic link's target."""
        return bytes(await self._filesystem.readlink(inode))

    @mutating
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a regular or special file."""
        mode = await self._masked(parent_inode, mode, ctx)
        return self._render(await self._filesystem.mknod(parent_inode, name, mode, rdev, ctx))

    @mutating
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a directory."""
        mode = await self._masked(parent_inode, mode, ctx)
        return self._render(await self._filesystem.mkdir(parent_inode, name, mode, ctx))

    @mutating
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a symbolic link."""
        return self._render(await self._filesystem.symlink(parent_inode, name, target, ctx))

    @mutating
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Give a file one more name."""
        return self._render(await self._filesystem.link(inode, new_parent_inode, new_name))

    @mutating
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove a name that is not a directory's."""
        await self._filesystem.unlink(parent_inode, name)

    @mutating
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an empty directory."""
        await self._filesystem.rmdir(parent_inode, name)

    @mutating
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """Rename, with the flags of renameat2(2)."""
        await self._filesystem.rename(parent_inode_old, name_old, parent_inode_new, name_new, flags)

    # Attributes.

    @guarded
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Return a file's attributes."""
        return self._entries.render(inode, await self._filesystem.getattr(inode))

    @mutating
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Change a file's attributes. The change time is the store's own affair and never taken from the kernel."""
        changes = Changes(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return self._entries.render(inode, await self._filesystem.setattr(inode, changes, fh, ctx))

    @guarded
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        """Check mode bits. With `default_permissions`, which our mounts have, the kernel checks by itself and never asks."""
        attributes = await self._filesystem.getattr(inode)
        return may_access(attributes, mode, ctx.uid, {ctx.gid})

    @guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Return sizes and limits of the filesystem.

        By this call keepers and kubelets see whether a mount is dead: a store that is must not look like it.
        """
        try:
            statistics = await self._filesystem.statfs()
        except OSError as error:
            if error.errno in _DEAD_MOUNT:
                raise OSError(errno.EIO, os.strerror(errno.EIO)) from error
            raise
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = statistics.bsize
        answer.f_frsize = statistics.frsize
        answer.f_blocks = statistics.blocks
        answer.f_bfree = statistics.bfree
        answer.f_bavail = statistics.bavail
        answer.f_files = statistics.files
        answer.f_ffree = statistics.ffree
        answer.f_favail = statistics.favail
        answer.f_namemax = statistics.namemax
        return answer

    @guarded
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Return an extended attribute. pyfuse3 answers size probes and ERANGE itself."""
        return bytes(await self._filesystem.getxattr(inode, name))

    @mutating
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Set an extended attribute. pyfuse3 has checked XATTR_CREATE and XATTR_REPLACE with a getxattr before."""
        await self._filesystem.setxattr(inode, name, value, ctx)

    @guarded
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        return [bytes(name) for name in await self._filesystem.listxattr(inode)]

    @mutating
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an extended attribute."""
        await self._filesystem.removexattr(inode, name)

    # Open files.

    @guarded
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a regular file."""
        if self.settings.read_only and (flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC):
            raise pyfuse3.FUSEError(errno.EROFS)
        opened = await self._filesystem.open(inode, flags, ctx)
        self._open.file_opened(opened.handle)
        if opened.stale:
            _distrust_attributes(inode)
        answer = _file_info(opened)
        # Of a volume that is only read the kernel tells no close at all, once one was refused.
        if opened.backing or not (opened.flushes or self.settings.read_only):
            self._say_beside(opened)
        return answer

    def _say_beside(self, opened: Opened) -> None:
        if self.detour is not None:
            self.detour.begin(opened.handle, opened.backing)
        elif opened.backing:
            raise RuntimeError("a file is to be passed through, and nothing can tell the kernel so")

    @mutating
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Make a regular file and open it."""
        mode = await self._masked(parent_inode, mode, ctx)
        opened, entry = await self._filesystem.create(parent_inode, name, mode, flags, ctx)
        self._open.file_opened(opened.handle)
        return _file_info(opened), self._render(entry)

    @guarded
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Read. The kernel refuses an answer longer than it asked for."""
        content = self._filesystem.read_now(fh, off, size)
        if content is None:
            content = await self._filesystem.read(fh, off, size)
        if not isinstance(content, _BUFFERS) or len(content) > size:
            raise TypeError(f"read returned {type(content).__name__} of {len(content)} for {size} bytes")
        return content  # type: ignore[return-value]  # pyfuse3 takes any contiguous buffer

    @mutating
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """Write."""
        written = await self._filesystem.write(fh, off, buf)
        if not 0 <= written <= len(buf):
            raise ValueError(f"write returned {written} for {len(buf)} bytes")
        return written

    @guarded
    async def flush(self, fh: int) -> None:
        """Report what went wrong so far. Where nothing is ever written, this is said once and the kernel asks no more."""
        if self.settings.read_only:
            raise OperationAbsent
        await self._filesystem.flush(fh)

    @guarded
    async def fsync(self, fh: int, datasync: bool) -> None:
        """Make a file durable. Harmless on a read-only volume."""
        await self._filesystem.fsync(fh, datasync)

    @guarded
    async def release(self, fh: int) -> None:
        """Close a file."""
        await self._filesystem.release(fh)
        self._open.file_closed(fh)

    @guarded
    async def poll(
        self, inode: int, fh: int, poll_handle: pyfuse3.PollHandle | None, ctx: pyfuse3.RequestContext
    ) -> int:
        """Leave it to the kernel: files are always ready."""
        raise OperationAbsent

    # Open directories.

    @guarded
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """Open a directory."""
        handle = await self._filesystem.opendir(inode)
        if not 0 <= handle < 2**64:
            raise ValueError(f"opendir returned the handle {handle}")
        self._open.directory_opened(handle)
        return handle

    @guarded
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List a directory from a position on."""
        await self._filesystem.readdir(fh, start_id, self._entries.answer(token))

    @guarded
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Make a directory durable."""
        await self._filesystem.fsyncdir(fh, datasync)

    @guarded
    async def releasedir(self, fh: int) -> None:
        """Close a directory."""
        await self._filesystem.releasedir(fh)
        self._open.directory_closed(fh)

    def _render(self, entry: Entry) -> pyfuse3.EntryAttributes:
        return self._entries.render(entry.node, entry.attributes)

    async def _masked(self, parent: int, mode: int, ctx: pyfuse3.RequestContext) -> int:
        return await without_umask(self._filesystem, parent, mode, ctx.umask, acl=self.settings.acl)


def may_access(attributes: Attributes, mask: int, uid: int, groups: set[int]) -> bool:
    """Tell whether mode bits let a user do all of `mask` (R_OK, W_OK, X_OK), as access(2) does without ACLs."""
    mode = attributes.mode
    if uid == 0:
        return not mask & os.X_OK or bool(mode & 0o111) or mode & 0o170000 == 0o040000
    shift = 6 if uid == attributes.uid else 3 if attributes.gid in groups else 0
    return mask & ~(mode >> shift) & 0o7 == 0


def _file_info(opened: Opened) -> pyfuse3.FileInfo:
    return pyfuse3.FileInfo(fh=opened.handle, keep_cache=opened.keep_cache, direct_io=opened.direct)


def _distrust_attributes(inode: int) -> None:
    """Have the kernel ask for the attributes again: a neighbour's closed write must show its size at once.

    This only sets a flag in the kernel, so unlike other invalidations it cannot wait for ourselves. It fails if the kernel
    has dropped the inode meanwhile, and then there is nothing to invalidate.
    """
    with contextlib.suppress(OSError):
        pyfuse3.invalidate_inode(inode, attr_only=True)


def kernel_knows(inode: int) -> bool:
    """Tell whether the kernel has an inode, by having it ask for its attributes again: that fails if there is none."""
    try:
        pyfuse3.invalidate_inode(inode, attr_only=True)
    except OSError as error:
        return error.errno != errno.ENOENT
    return True


def _nothing() -> None:
    """The hook that is called when nobody set one."""
