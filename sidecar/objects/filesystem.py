"""The `objects` filesystem: where each operation runs.

What memory answers is answered at once: names and attributes that are known, entries of a page that has come, bytes that are cached. Everything
that may ask the store goes into a thread, for a store may take its time, and that must hold up only those who ask it.
"""

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sidecar.directory.filesystem import InThread
from sidecar.objects.content import Content
from sidecar.objects.directories import Directories
from sidecar.objects.handles import Handles, flags_in
from sidecar.objects.known import Known
from sidecar.objects.listing_records import ListingRecords
from sidecar.objects.metrics import Metrics, numbers_in
from sidecar.objects.moves import Moves
from sidecar.objects.namespace import Namespace
from sidecar.objects.nodes import Node, NodeTable
from sidecar.objects.patience import Patience
from sidecar.objects.places import Places
from sidecar.objects.reading import Reading
from sidecar.objects.removal import Removal
from sidecar.objects.renaming import Renaming
from sidecar.objects.settings import ObjectsSettings
from sidecar.objects.tree import Tree
from sidecar.objects.volume import Volume
from sidecar.objects.writing import Drafts
from sidecar.protocol_filesystem import (
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
from sidemount.stores.store import ObjectStore, StoreFault

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_COPIERS = 6
_PAGERS = 3
_FINISH_S = 15.0
_ORPHANED_S = 90.0  # after which the kernel asks nothing again that a predecessor was asked
_UNIT_BYTES = 4096
_UNITS = (1 << 50) // _UNIT_BYTES  # a bucket has no size: "enough" for whoever looks before writing
_FILES = 1 << 32
_NAME_MAX = 255


class ObjectsFilesystem:
    """One volume of the filesystem `objects`. Source of the interface: `sidecar.protocol_filesystem.VirtualFilesystem`."""

    def __init__(
        self,
        store: ObjectStore,
        settings: ObjectsSettings,
        in_thread: InThread,
        places: Places,
        memory: Memory | None = None,
    ) -> None:
        self.memory = memory = memory or Memory()
        self._in_thread = in_thread
        self._store = store
        memory.journal.in_threads = True
        self.volume = volume = _volume(store, settings, places, memory)
        self.metrics = volume.metrics
        self.nodes = volume.nodes
        self._copiers = ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy")
        self._pagers = ThreadPoolExecutor(_PAGERS, thread_name_prefix="pages")
        self._content = Content(volume)
        self._namespace = Namespace(volume)
        self._removal = Removal(volume)
        self._patience = Patience(lambda: memory.on_waiting())
        self._renaming = Renaming(
            volume, self._content, self._removal, self._copiers, self._patience.progress
        )
        self.directories = Directories(
            volume, self._namespace.interest, memory.handles, ListingRecords(places.listings), self._pagers
        )
        memory.ledger.follow(volume.nodes)
        memory.journal.untold = self._close_untold
        if (
            memory.inheritance is None or not memory.inheritance.nodes.nodes
        ):  # who began it never came to serve
            memory.ledger.node(volume.nodes.root)
            volume.drafts.begin()
        else:
            self._inherit(memory.inheritance)

    # The life of the volume.

    def resume(self, drained: Drained) -> None:
        """Be ready for what the kernel asks again: what a predecessor has done of it is not to be done twice."""
        self.memory.journal.resume(drained.operations, drained.newcomers)
        for node, count in drained.forgets:
            self.nodes.forget(node, count)

    def begin(self, kernel_knows: Callable[[int], bool]) -> None:
        """Begin to look for nodes that the kernel has forgotten while nobody listened, and to fetch what is wanted beforehand."""
        self._patience.begin()
        self.metrics.begin()
        self.volume.reading.begin()
        inheritance = self.memory.inheritance
        if inheritance is not None:
            arguments = (inheritance.leftovers, self.nodes, kernel_knows)
            orphans = [node for node in self.volume.drafting() if not self.volume.files.of(node.id)]
            try:
                threading.Thread(target=sweep, args=arguments, name="leftovers", daemon=True).start()
                if orphans:
                    threading.Thread(
                        target=self._finish_orphans, args=(orphans,), name="orphans", daemon=True
                    ).start()
            except RuntimeError as error:  # no memory for a thread; the next successor will look
                _LOG.warning("leftovers_not_sought", extra={"fault": str(error)})

    def close(self) -> None:
        """Have everything that was written in the store, and let go of it. Raises OSError if that fails."""
        is_done = self.volume.drafts.finish(time.monotonic() + _FINISH_S)
        self.metrics.close()
        self.stop()
        if not is_done:
            raise OSError(errno.EIO, "not everything that was written has reached the store")

    def numbers(self) -> dict[str, int]:
        """Return what the volume counts, by name."""
        return self.metrics.numbers()

    def stop(self) -> None:
        """End all threads. What has not reached the store stays for a successor."""
        self.volume.drafts.close()
        self.volume.next_files.close()
        self.volume.reading.close()
        for pool in (self._copiers, self._pagers):
            pool.shutdown(wait=False, cancel_futures=True)
        self.volume.tree.close()
        self._store.close()

    def _inherit(self, inheritance: Inheritance) -> None:
        volume, nodes = self.volume, self.volume.nodes
        nodes.restore(inheritance.nodes, inheritance.leftovers)
        for node in nodes.all.values():
            path = nodes.known_path(node) if node.is_kept else None
            if path is not None:
                volume.tree.keep(path)
        directories = {}
        for handle, (node_id, traits) in inheritance.handles.items():
            found = nodes.all.get(node_id)
            if found is None:
                self.memory.handles.closed(handle)
            elif flags_in(traits)[0]:
                directories[handle] = found
            else:
                self._content.inherit(handle, found, traits)
        self.directories.inherit(directories)
        for draft in volume.drafts.resume():
            found = nodes.all.get(draft.node_id)
            if found is not None:
                volume.note_draft(found)
            else:
                volume.drafts.forget(draft.node_id)

    def _finish_orphans(self, nodes: Sequence[Node]) -> None:
        """Store what nobody has open: whoever made it was killed with our predecessor, and the kernel does not ask again."""
        time.sleep(_ORPHANED_S)
        for node in nodes:
            with self.volume.moves.of_file(node.id):
                if not self.volume.files.of(node.id):
                    self._content.finish(node)

    def _close_untold(self, handle: int) -> None:
        if self.volume.files.get(handle) is not None:
            self.volume.files.remove(handle)
        else:
            self.directories.releasedir(handle)

    # Names.

    async def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name."""
        entry = self._namespace.lookup_now(parent, name)
        return await self._run(self._namespace.lookup, parent, name) if entry is None else entry

    async def forget(self, counts: Sequence[tuple[int, int]]) -> None:
        """Take lookups back."""
        for node, count in counts:
            self.nodes.forget(node, count)

    async def readlink(self, node: int) -> bytes:
        """There are no symbolic links."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Entry:
        """Make a regular file."""
        self._must_write()
        return await self._run(self._namespace.mknod, parent, name, mode)

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        """Make a directory."""
        self._must_write()
        return await self._run(self._namespace.mkdir, parent, name)

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        """There are no symbolic links."""
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    async def link(self, node: int, parent: int, name: bytes) -> Entry:
        """An object has one name."""
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file."""
        self._must_write()
        await self._run(self._removal.unlink, parent, name)

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        self._must_write()
        await self._run(self._removal.rmdir, parent, name)

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """Rename."""
        self._must_write()
        await self._run(self._renaming.rename, parent, name, new_parent, new_name, flags)

    # Attributes.

    async def getattr(self, node: int) -> Attributes:
        """Return a node's attributes."""
        found = self.nodes[node]
        self._note_interest(found.parent)
        now = self.volume.attributes_now(found)
        return await self._run(self.volume.attributes, found) if now is None else now

    async def setattr(self, node: int, changes: Changes, handle: int | None, caller: Caller) -> Attributes:
        """Change the size. A store has no owners and modes, and keeps its own times."""
        found = self.nodes[node]
        self._check_changes(found.is_directory, changes)
        if changes.size is None:
            return await self.getattr(node)
        if found.is_directory:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._must_write()
        return await self._run(self._content.set_size, found, changes.size, handle)

    def _check_changes(self, is_directory: bool, changes: Changes) -> None:
        settings = self.volume.settings
        mode = settings.directory_mode if is_directory else settings.file_mode
        is_same = (
            (changes.mode is None or stat.S_IMODE(changes.mode) == mode)
            and changes.uid in (None, settings.uid)
            and changes.gid in (None, settings.gid)
        )
        if not is_same and not settings.ignore_permissions:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def _note_interest(self, parent: Any) -> None:
        if parent is not None:
            self._namespace.interest.note(parent.id)

    async def statfs(self) -> Statistics:
        """Return what a bucket has: no bounds that anybody could tell."""
        return Statistics(_UNIT_BYTES, _UNIT_BYTES, _UNITS, _UNITS, _UNITS, _FILES, _FILES, _FILES, _NAME_MAX)

    async def getxattr(self, node: int, name: bytes) -> bytes:
        """There are none."""
        raise OperationAbsent

    async def setxattr(self, node: int, name: bytes, value: bytes, caller: Caller) -> None:
        """There are none."""
        raise OperationAbsent

    async def listxattr(self, node: int) -> Sequence[bytes]:
        """There are none."""
        raise OperationAbsent

    async def removexattr(self, node: int, name: bytes) -> None:
        """There are none."""
        raise OperationAbsent

    # Open files.

    async def open(self, node: int, flags: int, caller: Caller) -> Opened:
        """Open a file."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            self._must_write()
        believed = self._content.believed(node, flags)
        if believed is None:
            return await self._run(self._content.open, node, flags)
        opened = self._content.open(node, flags, believed)
        journal = self.memory.journal
        journal.answer(journal.take_finished())
        return opened

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Opened, Entry]:
        """Make a file and open it."""
        self._must_write()
        handle, entry = await self._run(self._namespace.create, parent, name, flags)
        return Opened(handle), entry

    def read_now(self, handle: int, offset: int, size: int) -> bytes | memoryview | None:
        """Read what is in memory already."""
        return self._content.read_now(handle, offset, size)

    async def read(self, handle: int, offset: int, size: int) -> bytes | bytearray | memoryview:
        """Read, waiting for the store."""
        return await self._run(self._content.read, handle, offset, size)

    async def write(self, handle: int, offset: int, content: bytes) -> int:
        """Write."""
        return await self._run(self._content.write, handle, offset, content)

    async def flush(self, handle: int) -> None:
        """Have what was written in the store."""
        if self._content.must_flush(handle):
            await self._run(self._content.flush, handle)

    async def fsync(self, handle: int, datasync: bool) -> None:
        """Have what was written in the store."""
        await self._run(self._content.fsync, handle)

    async def release(self, handle: int) -> None:
        """Close a file. Only what was written has to be waited for."""
        if self._content.must_finish(handle):
            await self._run(self._content.release, handle)
        else:
            self._content.release(handle)

    # Open directories.

    async def opendir(self, node: int) -> int:
        """Open a directory."""
        journal = self.memory.journal
        handle = self.directories.opendir(node)
        journal.answer(journal.take_finished())
        return handle

    async def readdir(self, handle: int, position: int, emit: Emit) -> None:
        """Emit entries."""
        if self.directories.is_ready(handle, position):
            if self.directories.readdir(handle, position, emit, at_once=True):
                return
            # What was there has been removed; the position to go on from is where the stream is now.
            position = self.directories.position(handle)
        await self._run(self.directories.readdir, handle, position, emit)

    async def fsyncdir(self, handle: int, datasync: bool) -> None:
        """A change of names is in the store when it is answered."""

    async def releasedir(self, handle: int) -> None:
        """Close a directory."""
        self.directories.releasedir(handle)

    def _must_write(self) -> None:
        """Refuse what a store cannot do at all."""
        if not self._store.abilities.writing:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async def _run(self, operation: Callable[..., T], *args: Any) -> T:
        """Run an operation that may wait for the store."""
        journal = self.memory.journal

        def run() -> tuple[T, list[Step]]:
            try:
                return operation(*args), journal.take_finished()
            except StoreFault as fault:
                self.metrics.fault(fault)
                raise

        journal.entered()
        try:
            with self._patience.waiting():
                result, steps = await self._in_thread(run)
        finally:
            journal.left()
        journal.answer(steps)
        return result


def _volume(store: ObjectStore, settings: ObjectsSettings, places: Places, memory: Memory) -> Volume:
    """Return the parts of a volume."""
    known = Known(known_s=settings.known_timeout_s, missing_s=settings.missing_timeout_s)
    metrics = Metrics()
    tree = Tree(store, known, metrics, f"{settings.sub_path}/" if settings.sub_path else "")
    reading = Reading(store, settings, places.blocks)
    volume = Volume(
        settings=settings,
        store=store,
        tree=tree,
        nodes=NodeTable(memory.ledger),
        files=Handles(memory.handles),
        reading=reading,
        next_files=reading.next_files(known, settings.open_timeout_s, tree.root),
        drafts=Drafts(store, settings, places.drafts),
        journal=memory.journal,
        metrics=metrics,
        moves=Moves(),
        began_ns=places.began_ns(),
    )
    metrics.sources |= {
        "read": lambda: numbers_in(volume.reading.statistics()),
        "ahead": volume.next_files.numbers,
        "write": volume.drafts.statistics,
        "store": lambda: getattr(store, "counts", {}),
        "names": lambda: {"known": len(known), "nodes": len(volume.nodes)},
    }
    return volume
