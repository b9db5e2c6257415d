"""Open files: opening, reading, writing, making durable."""

import errno
import os

from sidecar.directory import ownership
from sidecar.directory.handles import OpenFile, OpenFiles, Traits
from sidecar.directory.nodes import Node, NodeTable
from sidecar.directory.passage import Passage
from sidecar.directory.reach import Reach
from sidecar.directory.settings import PageCache
from sidecar.directory.status import REGULAR, Found, is_settled, kind_of
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import Caller, Opened
from sidecar.takeover import operation
from sidecar.takeover.journal import Journal


class Content:
    """The operations on file content. `read_now` is for one thread alone; everything else for any."""

    def __init__(
        self,
        store: Store,
        nodes: NodeTable,
        reach: Reach,
        files: OpenFiles,
        page_cache: PageCache,
        writeback: bool,
        journal: Journal,
        passage: Passage,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._reach = reach
        self._files = files
        self._page_cache = page_cache
        self._writeback = writeback
        self._journal = journal
        self._passage = passage
        self._buffer = memoryview(bytearray(1 << 20))
        self._tells_cached = not store.is_remote

    def open(self, node_id: int, flags: int, caller: Caller) -> Opened:
        """Open a regular file. Nothing happens to it before it is known to be the right one."""
        node = self._nodes[node_id]
        if kind_of(node.identity) != REGULAR:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))  # special files are the kernel's own
        with self._journal.step(*operation.open_file(node_id, flags)) as step:
            flags = self.needed(flags)
            with self._reach.object(node) as held:
                fd = self._store.open(held, flags)
            try:
                if flags & os.O_TRUNC:
                    is_writable = flags & os.O_ACCMODE != os.O_RDONLY  # it need not be, for Linux
                    (self._store.set_size if is_writable else self._store.truncate)(fd, 0)
                    if caller.uid != 0:
                        ownership.drop_privileges(self._store, fd)
                found = self._store.status(fd, b"")
                with self._passage.chosen(node.id, fd, flags, found.attributes.size) as backing:
                    step.intend()
                    drops = caller.uid != 0
                    file = OpenFile(node, fd, flags, drops_privileges=drops, backing=backing)
                    handle = self._files.add(file, step)
            except BaseException:
                os.close(fd)
                raise
            step.done()
        return self._opened(handle, node, found) if not backing else self._passed(file, handle, found)

    def needed(self, flags: int) -> int:
        """Return flags to open a file with: a kernel that collects writes also reads, what it fills pages up with."""
        if self._writeback and flags & os.O_ACCMODE == os.O_WRONLY:
            return flags & ~os.O_ACCMODE | os.O_RDWR
        return flags

    def created(self, handle: int) -> Opened:
        """Return what the kernel may do with a file that was just made."""
        return Opened(
            handle,
            keep_cache=self._page_cache is PageCache.KEEP,
            direct=self._page_cache is PageCache.DIRECT,
        )

    def read_now(self, handle: int, offset: int, size: int) -> bytes | memoryview | None:
        """Return content that is in memory already; None if the disk has to be waited for.

        The buffer may be the same every time: the answer must be used up before the next call.
        """
        file = self._files[handle]
        if not self._tells_cached:
            return self._store.read(file.fd, offset, size)
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        try:
            got = self._store.read_cached(file.fd, offset, self._buffer[:size])
            while 0 < got < size:  # the end of the file, or of what is in memory
                count = self._store.read_cached(file.fd, offset + got, self._buffer[got:size])
                if not count:
                    break
                got += count
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._tells_cached = False  # tmpfs and the like: all of it is in memory
            return self._store.read(file.fd, offset, size)
        return self._buffer[:got]

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Read, waiting for the disk. Short only at the end of the file."""
        file = self._files[handle]
        content = self._store.read(file.fd, offset, size)
        while content and len(content) < size:
            more = self._store.read(file.fd, offset + len(content), size - len(content))
            if not more:
                break
            content += more
        return content

    def write_waits(self, handle: int) -> bool:
        """Tell whether a write waits for the disk."""
        return self._files[handle].waits

    def write(self, handle: int, offset: int, content: bytes) -> int:
        """Write all, or as much as there is room for; an error only if that is nothing."""
        file = self._files[handle]
        if file.drops_privileges:
            ownership.drop_privileges(self._store, file.fd)
        written = self._store.write(file.fd, offset, content)
        if written == len(content):
            return written
        view = memoryview(content)
        try:
            while written < len(content):
                count = self._store.write(file.fd, offset + written, view[written:])
                if not count:
                    break
                written += count
        except OSError:
            if not written:
                raise
        return written

    def settle(self, handle: int) -> None:
        """Report what a close of a written file would."""
        file = self._files[handle]
        if file.writable:
            self._store.settle(file.fd)

    def fsync(self, handle: int, datasync: bool) -> None:
        """Make a file durable."""
        self._store.sync(self._files[handle].fd, datasync)

    def release(self, handle: int) -> None:
        """Close a file. A handle of an earlier life of the daemon is no error."""
        file = self._files.remove(handle)
        if file is not None:
            file.descriptor.retire()

    def reopen(self, node_id: int, traits: Traits) -> OpenFile:
        """Open what a predecessor had open: the very file, whatever has become of its name."""
        node = self._nodes[node_id]
        with self._reach.object(node) as held:
            fd = self._store.open(held, traits.flags)
        return OpenFile(
            node, fd, traits.flags, drops_privileges=traits.drops_privileges, backing=traits.backing
        )

    def _passed(self, file: OpenFile, handle: int, found: Found) -> Opened:
        """Return what the kernel does with a file that it reads by itself, unless reads have to bypass its cache."""
        stale = file.node.told_ns != found.attributes.ctime_ns
        direct = bool(file.flags & os.O_DIRECT) or self._page_cache is PageCache.DIRECT
        return Opened(handle, direct=direct, stale=stale, backing=file.backing)

    def _opened(self, handle: int, node: Node, found: Found) -> Opened:
        changed_ns = found.attributes.ctime_ns
        unchanged = node.opened_ns == changed_ns
        stale = node.told_ns != changed_ns
        node.opened_ns = changed_ns if is_settled(found) else 0
        match self._page_cache:
            case PageCache.AUTO:
                return Opened(handle, keep_cache=unchanged, stale=stale)
            case PageCache.KEEP:
                return Opened(handle, keep_cache=True)
            case PageCache.DIRECT:
                return Opened(handle, direct=True, stale=stale)
