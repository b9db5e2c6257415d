"""What a built-in filesystem is to the FUSE protocol: values and one interface, free of pyfuse3.

A node id names a file for as long as the kernel knows it, a handle names an open file or directory. Both come from counters
of the filesystem and are never used twice. Every operation may raise OSError (the caller gets its errno) or
`OperationAbsent`; anything else is a defect, which the adapter logs and answers with EIO.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sidecar.takeover.drain import Drained
from sidecar.takeover.memory import Memory

ROOT = 1  # the kernel's own id of a mount's root


class OperationAbsent(Exception):
    """Answers ENOSYS: the kernel will not send this operation again for the life of the mount, and does what it can without."""


class Attributes(NamedTuple):
    """What stat tells about a file. A tuple, because several thousand are made every second.

    `ino` is the inode number that applications see; `mode` includes the file type.
    """

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blksize: int
    blocks: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int


class Entry(NamedTuple):
    """A name that was found or made. Whoever returns one has counted one lookup of the node."""

    node: int
    attributes: Attributes


class Opened(NamedTuple):
    """An open file.

    `flushes`: a close of it may have something to wait for, or to report. If not, the kernel need not tell of closes.
    `keep_cache`: the kernel's cached pages are still the file's. `direct`: no page cache at all.
    `stale`: what the kernel remembers of the attributes is not to be trusted any more. `backing`: under what number the kernel knows the
    file that it is to read without asking again, 0 if under none.
    """

    handle: int
    flushes: bool = True
    keep_cache: bool = False
    direct: bool = False
    stale: bool = False
    backing: int = 0


class Statistics(NamedTuple):
    """What statvfs tells about a filesystem. Sizes in units of `frsize` bytes."""

    bsize: int
    frsize: int
    blocks: int
    bfree: int
    bavail: int
    files: int
    ffree: int
    favail: int
    namemax: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The attributes that a setattr changes; None leaves one as it is. All None still means "somebody changes this"."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class Caller(Protocol):
    """Who asks. pyfuse3's RequestContext is one."""

    @property
    def uid(self) -> int:
        """Filesystem user id of the calling thread."""
        ...

    @property
    def gid(self) -> int:
        """Filesystem group id of the calling thread."""
        ...

    @property
    def pid(self) -> int:
        """Thread id of the caller in the mount's pid namespace, 0 if it has none there."""
        ...


class Emit(Protocol):
    """Takes the entries of a directory. False: no room, neither this nor any later entry is taken."""

    @property
    def takes_names(self) -> bool:
        """Whether `name_alone` works. If not, it does so for the dots only, and raises OSError for any other name."""
        ...

    def __call__(self, name: bytes, node: int, attributes: Attributes, position: int) -> bool:
        """Take a name with its node, of which one lookup is counted, and the position after it."""
        ...

    def name_alone(self, name: bytes, ino: int, kind: int, position: int) -> bool:
        """Take a name of which no lookup is counted. `kind` is `mode >> 12`."""
        ...


class VirtualFilesystem(Protocol):
    """One volume's files. Names are single path components of any bytes but NUL and slash."""

    @property
    def memory(self) -> Memory:
        """Where it keeps what a successor needs."""
        ...

    def resume(self, drained: Drained) -> None:
        """Be ready for what the kernel asks again, after a predecessor has died."""
        ...

    def begin(self, kernel_knows: Callable[[int], bool]) -> None:
        """Be served from now on. `kernel_knows` asks whether the kernel has a node; not for the serving thread."""
        ...

    async def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name."""
        ...

    async def forget(self, counts: Sequence[tuple[int, int]]) -> None:
        """Take back (node, lookups) pairs; a node without lookups is not known to the kernel any more."""
        ...

    async def getattr(self, node: int) -> Attributes:
        """Return a node's attributes."""
        ...

    async def setattr(self, node: int, changes: Changes, handle: int | None, caller: Caller) -> Attributes:
        """Change attributes and return all of them. `handle` is the open file the change came through, if any.

        To change nothing is to drop set-id bits and capabilities, as a chown to nobody does: the kernel leaves that to us.
        """
        ...

    async def readlink(self, node: int) -> bytes:
        """Return a symbolic link's target."""
        ...

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Entry:
        """Make a regular or special file."""
        ...

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        """Make a directory."""
        ...

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        """Make a symbolic link."""
        ...

    async def link(self, node: int, parent: int, name: bytes) -> Entry:
        """Give a node one more name."""
        ...

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name that is not a directory's. An open file lives on until its last release."""
        ...

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        ...

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """Rename, with the flags of renameat2(2)."""
        ...

    async def open(self, node: int, flags: int, caller: Caller) -> Opened:
        """Open a regular file with the flags of open(2)."""
        ...

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Opened, Entry]:
        """Make a regular file and open it."""
        ...

    def read_now(self, handle: int, offset: int, size: int) -> bytes | bytearray | memoryview | None:
        """Read as `read` does if nothing has to be waited for; else None, and `read` is asked."""
        ...

    async def read(self, handle: int, offset: int, size: int) -> bytes | bytearray | memoryview:
        """Return up to `size` bytes; fewer only at the end of the file. The buffer is used up before any other call."""
        ...

    async def write(self, handle: int, offset: int, content: bytes) -> int:
        """Write at `offset` and return how many bytes were."""
        ...

    async def flush(self, handle: int) -> None:
        """Report what went wrong so far: somebody closes one of the descriptors of this handle."""
        ...

    async def fsync(self, handle: int, datasync: bool) -> None:
        """Make a file's content (and, unless `datasync`, all its attributes) durable."""
        ...

    async def release(self, handle: int) -> None:
        """Close a file. An unknown handle is no error."""
        ...

    async def opendir(self, node: int) -> int:
        """Open a directory and return its handle."""
        ...

    async def readdir(self, handle: int, position: int, emit: Emit) -> None:
        """Emit entries from a position on: 0, or one that was emitted with an entry, by this process or an earlier one."""
        ...

    async def fsyncdir(self, handle: int, datasync: bool) -> None:
        """Make a directory's entries durable."""
        ...

    async def releasedir(self, handle: int) -> None:
        """Close a directory. An unknown handle is no error."""
        ...

    async def statfs(self) -> Statistics:
        """Return sizes and limits of the filesystem."""
        ...

    async def getxattr(self, node: int, name: bytes) -> bytes:
        """Return an extended attribute; ENODATA if there is none."""
        ...

    async def setxattr(self, node: int, name: bytes, value: bytes, caller: Caller) -> None:
        """Set an extended attribute, whether it exists or not."""
        ...

    async def listxattr(self, node: int) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        ...

    async def removexattr(self, node: int, name: bytes) -> None:
        """Remove an extended attribute; ENODATA if there is none."""
        ...
