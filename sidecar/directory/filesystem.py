"""The `directory` filesystem: where each operation runs.

A local store answers from memory nearly always, and a thread costs more than the operation itself; so operations run at once, and only
what waits for the disk (reads that the page cache does not hold, syncs, synchronous writes) goes into a thread. A remote
store may hang at any time: there every operation goes into a thread.
"""

import errno
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from sidecar.directory.content import Content
from sidecar.directory.descriptors import Descriptors
from sidecar.directory.handles import OpenFile, OpenFiles, Traits, parse_traits
from sidecar.directory.lasting import Lasting
from sidecar.directory.listing import Directories
from sidecar.directory.metadata import Metadata
from sidecar.directory.nameless import Nameless
from sidecar.directory.namespace import Namespace
from sidecar.directory.nodes import NodeTable
from sidecar.directory.passage import Passage, Registrar
from sidecar.directory.reach import Reach
from sidecar.directory.removal import Removal
from sidecar.directory.root import open_root
from sidecar.directory.settings import DirectorySettings, PageCache, Storage
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import (
    ROOT,
    Attributes,
    Caller,
    Changes,
    Emit,
    Entry,
    Opened,
    OperationAbsent,
    Statistics,
)
from sidecar.takeover.drain import Drained
from sidecar.takeover.journal import Step
from sidecar.takeover.leftovers import sweep
from sidecar.takeover.memory import Inheritance, Memory
from sidemount.model.errors import HostFailure

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_ROOT_LOST = frozenset({errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ESHUTDOWN})


class InThread(Protocol):
    """Runs a function in a thread and waits for it, while other requests are served."""

    def __call__(self, function: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Return what the function returns."""
        ...


class DirectoryFilesystem:
    """One volume of the filesystem `directory`. Source of the interface: `sidecar.protocol_filesystem.VirtualFilesystem`."""

    def __init__(
        self,
        store: Store,
        settings: DirectorySettings,
        in_thread: InThread,
        directories_open: int,
        memory: Memory | None = None,
        registrar: Registrar | None = None,
    ) -> None:
        """`registrar` has files passed through; only for a volume that nobody writes to."""
        self._store = store
        self._settings = settings
        self._in_thread = in_thread
        self._is_remote = settings.storage is Storage.REMOTE or (
            settings.storage is Storage.AUTO and store.is_remote
        )
        self.memory = memory = memory or Memory()
        journal, errands = memory.journal, memory.errands
        self.descriptors = Descriptors(directories_open)
        self.descriptors.keep_nameless(ROOT, store.root)
        self.nodes = NodeTable(
            store.status(store.root, b"").identity, lambda node: self._nameless.discard(node), memory.ledger
        )
        self.files = OpenFiles(memory.handles)
        self._nameless = Nameless(self.nodes, self.files, self.descriptors, memory.holder, errands)
        self._lasting = Lasting(self.files, memory.holder, errands, most=2 * directories_open)
        self._reach = reach = Reach(store, self.nodes, self.files, self.descriptors)
        self._namespace = Namespace(store, self.nodes, reach, self.files, journal)
        self._removal = Removal(store, self.nodes, reach, self._nameless, journal)
        self._metadata = Metadata(store, self.nodes, reach, self.files, journal)
        self._passage = Passage(
            self.files,
            registrar,
            # Where reading by the kernel is what reading by us would be.
            may_begin=settings.read_only
            and settings.page_cache is not PageCache.DIRECT
            and not (self._is_remote or store.is_remote),
        )
        self._content = Content(
            store,
            self.nodes,
            reach,
            self.files,
            settings.page_cache,
            settings.writeback,
            journal,
            self._passage,
        )
        self.directories = Directories(store, self.nodes, reach, journal, memory.handles)
        memory.ledger.follow(self.nodes)
        journal.in_threads = self._is_remote
        journal.untold = self._close_untold
        if (
            memory.inheritance is None or not memory.inheritance.nodes.nodes
        ):  # who began it never came to serve
            memory.ledger.node(self.nodes.root)
        else:
            self._inherit(memory.inheritance)
        self._passage.begin()

    def resume(self, drained: Drained) -> None:
        """Be ready for what the kernel asks again: what a predecessor has done of it is not to be done twice."""
        self.memory.journal.resume(drained.operations, drained.newcomers)
        for node, count in drained.forgets:
            self.nodes.forget(node, count)

    def begin(self, kernel_knows: Callable[[int], bool]) -> None:
        """Begin to look for nodes that the kernel has forgotten while nobody listened."""
        inheritance = self.memory.inheritance
        if inheritance is not None:
            arguments = (inheritance.leftovers, self.nodes, kernel_knows)
            try:
                threading.Thread(target=sweep, args=arguments, name="leftovers", daemon=True).start()
            except RuntimeError as error:  # no memory for a thread; the next successor will look
                _LOG.warning("leftovers_not_sought", extra={"fault": str(error)})

    async def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name."""
        return await self._run(self._namespace.lookup, parent, name)

    async def forget(self, counts: Sequence[tuple[int, int]]) -> None:
        """Take lookups back."""
        for node, count in counts:
            self.nodes.forget(node, count)

    async def getattr(self, node: int) -> Attributes:
        """Return a node's attributes."""
        return await self._run(self._metadata.getattr, node)

    async def setattr(self, node: int, changes: Changes, handle: int | None, caller: Caller) -> Attributes:
        """Change attributes."""
        return await self._run(self._metadata.setattr, node, changes, handle, caller)

    async def readlink(self, node: int) -> bytes:
        """Return a symbolic link's target."""
        return await self._run(self._metadata.readlink, node)

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Entry:
        """Make a regular or special file."""
        return await self._run(self._namespace.mknod, parent, name, mode, rdev, caller)

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        """Make a directory."""
        return await self._run(self._namespace.mkdir, parent, name, mode, caller)

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        """Make a symbolic link."""
        return await self._run(self._namespace.symlink, parent, name, target, caller)

    async def link(self, node: int, parent: int, name: bytes) -> Entry:
        """Give a node one more name."""
        return await self._run(self._namespace.link, node, parent, name)

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name that is not a directory's."""
        await self._run(self._removal.unlink, parent, name)

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        await self._run(self._removal.rmdir, parent, name)

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """Rename."""
        await self._run(self._removal.rename, parent, name, new_parent, new_name, flags)

    async def open(self, node: int, flags: int, caller: Caller) -> Opened:
        """Open a regular file."""
        opened = await self._run(self._content.open, node, flags, caller)
        self._lasting.opened(opened.handle)
        return opened

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Opened, Entry]:
        """Make a regular file and open it."""
        flags = self._content.needed(flags)
        handle, entry = await self._run(self._namespace.create, parent, name, mode, flags, caller)
        self._lasting.opened(handle)
        return self._content.created(handle), entry

    def read_now(self, handle: int, offset: int, size: int) -> bytes | memoryview | None:
        """Read what is in memory already."""
        return None if self._is_remote else self._content.read_now(handle, offset, size)

    async def read(self, handle: int, offset: int, size: int) -> bytes | bytearray | memoryview:
        """Read, waiting for the disk."""
        return await self._in_thread(self._content.read, handle, offset, size)

    async def write(self, handle: int, offset: int, content: bytes) -> int:
        """Write."""
        if self._is_remote or self._content.write_waits(handle):
            return await self._in_thread(self._write, handle, offset, content)
        return self._write(handle, offset, content)

    async def flush(self, handle: int) -> None:
        """Report what a close would. A local file's close reports nothing, so the kernel need not ask again."""
        if not self._is_remote:
            raise OperationAbsent
        await self._in_thread(self._content.settle, handle)

    async def fsync(self, handle: int, datasync: bool) -> None:
        """Make a file durable."""
        await self._in_thread(self._content.fsync, handle, datasync)

    async def release(self, handle: int) -> None:
        """Close a file."""
        self._lasting.closed(handle)
        await self._run(self._content.release, handle)

    async def opendir(self, node: int) -> int:
        """Open a directory."""
        return await self._run(self.directories.opendir, node)

    async def readdir(self, handle: int, position: int, emit: Emit) -> None:
        """Emit entries."""
        await self._run(self.directories.readdir, handle, position, emit)

    async def fsyncdir(self, handle: int, datasync: bool) -> None:
        """Make a directory's entries durable."""
        await self._in_thread(self.directories.fsyncdir, handle, datasync)

    async def releasedir(self, handle: int) -> None:
        """Close a directory."""
        await self._run(self.directories.releasedir, handle)

    async def statfs(self) -> Statistics:
        """Return sizes and limits of the source."""
        return await self._run(self._store.statistics)

    async def getxattr(self, node: int, name: bytes) -> bytes:
        """Return an extended attribute."""
        return await self._run(self._with_xattrs(self._metadata.getxattr), node, name)

    async def setxattr(self, node: int, name: bytes, value: bytes, caller: Caller) -> None:
        """Set an extended attribute."""
        await self._run(self._with_xattrs(self._metadata.setxattr), node, name, value, caller)

    async def listxattr(self, node: int) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        return await self._run(self._with_xattrs(self._metadata.listxattr), node)

    async def removexattr(self, node: int, name: bytes) -> None:
        """Remove an extended attribute."""
        await self._run(self._with_xattrs(self._metadata.removexattr), node, name)

    def _with_xattrs(self, operation: Callable[..., T]) -> Callable[..., T]:
        if not self._settings.extended_attributes:
            raise OperationAbsent
        return operation

    async def _run(self, operation: Callable[..., T], *args: Any) -> T:
        """Run an operation where it belongs, and once more if it failed for want of something that could be freed."""
        try:
            if self._is_remote:
                return await self._run_in_thread(operation, *args)
            return operation(*args)
        except OSError as error:
            if error.errno in _ROOT_LOST:
                await self._in_thread(self._find_root_again)
            if not self._make_room(error.errno):
                raise
        if self._is_remote:
            return await self._run_in_thread(operation, *args)
        return operation(*args)

    async def _run_in_thread(self, operation: Callable[..., T], *args: Any) -> T:
        journal = self.memory.journal

        def run() -> tuple[T, list[Step]]:
            return operation(*args), journal.take_finished()

        journal.entered()
        try:
            result, steps = await self._in_thread(run)
        finally:
            journal.left()
        journal.answer(steps)
        return result

    def _inherit(self, inheritance: Inheritance) -> None:
        root = inheritance.nodes.nodes.get(ROOT)
        if root is None or root[0] != self.nodes.root.identity:
            raise HostFailure(
                f"source {self._settings.source}: its root is not the directory that a predecessor has served",
                errno=errno.ESTALE,
                hint="the volume is mounted afresh",
            )
        self.nodes.restore(inheritance.nodes, inheritance.leftovers)
        self.files.reopen = self._reopen
        for handle, (node, number) in inheritance.handles.items():
            traits = parse_traits(number)
            if node not in self.nodes.all:
                self.memory.handles.closed(handle)
            elif traits.is_directory:
                self.directories.handles.inherit(handle, node, traits)
            else:
                self.files.inherit(handle, node, traits)
        others = self._lasting.restore(inheritance.held, inheritance.handles, self.nodes)
        self._nameless.restore(others)

    def _close_untold(self, handle: int) -> None:
        self._lasting.closed(handle)
        self._content.release(handle)
        self.directories.releasedir(handle)

    def _write(self, handle: int, offset: int, content: bytes) -> int:
        try:
            return self._content.write(handle, offset, content)
        except OSError as error:
            if not self._make_room(error.errno):
                raise
        return self._content.write(handle, offset, content)

    def _reopen(self, node: int, traits: Traits) -> OpenFile:
        try:
            return self._content.reopen(node, traits)
        except OSError as error:
            if not self._make_room(error.errno):
                raise
        return self._content.reopen(node, traits)

    def _make_room(self, number: int | None) -> bool:
        """Free what an operation lacked. Return whether there was anything to free."""
        match number:
            case errno.EMFILE | errno.ENFILE:
                return self.descriptors.shed_directories()
            case errno.ENOSPC | errno.EDQUOT:
                return self._nameless.shed()
        return False

    def _find_root_again(self) -> None:
        """Open the source afresh if the root that is open is dead: a server came back, or a filesystem was mounted again."""
        try:
            self._store.status(self._store.root, b"")
        except OSError as error:
            if error.errno not in _ROOT_LOST:
                return
        else:
            return
        try:
            root = open_root(self._settings.source, self._settings.sub_path)
        except OSError:
            return  # not back yet; the next failed operation tries again
        try:
            self._store.attach(root)
        except OSError:
            os.close(root)
            return
        self.descriptors.shed_directories()
        self.descriptors.keep_nameless(ROOT, root)
