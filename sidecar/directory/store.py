"""The store: a tree of the machine, reached by descriptors and single names only, never by a path and never through a symbolic link.

A descriptor of a file may be O_PATH. Where a system call wants more than that, it gets `/proc/self/fd/N`, which leads to exactly the file
that the descriptor holds, whatever its name is by now.
"""

import functools
import os
import stat
import struct
import time
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.directory import syscalls
from sidecar.directory.status import Found, birth_ns_of, device_of, kind_of, parse_statx
from sidecar.protocol_filesystem import Statistics

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_REOPEN_FLAGS = os.O_ACCMODE | os.O_SYNC | os.O_DSYNC | os.O_NOATIME | os.O_LARGEFILE
_LISTING_BYTES = 32768
_DIRENT = struct.Struct("=QqHB")
_OVERLAYFS = 0x794C7630
_REMOTE_TYPES = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x65735546: "fuse",
    0x00C36400: "ceph",
    0x01021997: "9p",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x5346414F: "afs",
    0x013111A8: "ibrix",
}
_CLOCK_REALTIME_COARSE = 5  # <linux/time.h>; Python has no name for it
_CAP_CHOWN = 0
_CAP_FSETID = 4


def is_plain_filesystem(kind: int) -> bool:
    """Tell whether files of a filesystem are on this node, and its own: not a server's, nor those of another filesystem beneath."""
    return kind not in _REMOTE_TYPES and kind != _OVERLAYFS


class Listed(NamedTuple):
    """One directory entry: `kind` is `mode >> 12`, `position` the place after it."""

    name: bytes
    ino: int
    kind: int
    position: int


@dataclass(frozen=True, slots=True)
class Powers:
    """What this process may do. Without `chown` new files belong to it; without `fsetid` the kernel itself drops set-id bits."""

    chown: bool
    fsetid: bool
    gid: int


def read_powers() -> Powers:
    """Return the powers of this process. Source: capabilities(7), proc_pid_status(5)."""
    with open("/proc/self/status") as lines:
        effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return Powers(bool(effective >> _CAP_CHOWN & 1), bool(effective >> _CAP_FSETID & 1), os.getegid())


class Store:
    """Operations on a tree whose root is an open descriptor. All raise OSError; none keeps state but the root's."""

    def __init__(self, root: int) -> None:
        self.attach(root)

    @functools.cached_property
    def powers(self) -> Powers:
        """What this process may do. Looked up when first needed: it gives up privileges only after it has set everything up."""
        return read_powers()

    def attach(self, root: int) -> None:
        """Take a (new) descriptor of the root; the caller keeps it open."""
        kind = syscalls.filesystem_type(root)
        self._with_birth = kind != _OVERLAYFS  # a copy-up there makes a new file of the same inode number
        self.is_remote = kind in _REMOTE_TYPES
        self._device = device_of(syscalls.statx(root, b""))
        self.root = root
        self.root_ino = self.status(root, b"").attributes.ino

    # Looking.

    def status(self, directory: int, name: bytes) -> Found:
        """Return what a name is; of the descriptor itself if the name is empty."""
        return parse_statx(syscalls.statx(directory, name), self._device, self._with_birth)

    def identity(self, directory: int, name: bytes) -> int:
        """Return which file a name is, 0 if there is none."""
        try:
            return self.status(directory, name).identity
        except FileNotFoundError:
            return 0

    def pin(self, directory: int, name: bytes) -> int:
        """Open whatever a name is, without any effect on it."""
        return os.open(name, _PATH, dir_fd=directory)

    def pin_directory(self, directory: int, name: bytes) -> int:
        """Open a directory as a place to start from."""
        return os.open(name, _PATH | os.O_DIRECTORY, dir_fd=directory)

    def readlink(self, fd: int) -> bytes:
        """Return a symbolic link's target."""
        return os.readlink(b"", dir_fd=fd)

    def statistics(self) -> Statistics:
        """Return statvfs of the root."""
        found = os.fstatvfs(self.root)
        return Statistics(
            found.f_bsize,
            found.f_frsize,
            found.f_blocks,
            found.f_bfree,
            found.f_bavail,
            found.f_files,
            found.f_ffree,
            found.f_favail,
            found.f_namemax,
        )

    # Making. Permissions are applied as if the caller had made the file in the bare directory.

    def create(self, directory: int, name: bytes, flags: int, mode: int) -> int:
        """Make a regular file that must not exist, and open it."""
        access = flags & _REOPEN_FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, access, mode & 0o777, dir_fd=directory)

    def mknod(self, directory: int, name: bytes, mode: int, rdev: int) -> None:
        """Make a regular or special file without set-id bits."""
        os.mknod(name, stat.S_IFMT(mode) | mode & 0o777, rdev, dir_fd=directory)

    def mkdir(self, directory: int, name: bytes, mode: int) -> None:
        """Make a directory."""
        os.mkdir(name, mode & 0o1777, dir_fd=directory)

    def symlink(self, directory: int, name: bytes, target: bytes) -> None:
        """Make a symbolic link."""
        os.symlink(target, name, dir_fd=directory)

    def link(self, fd: int, directory: int, name: bytes) -> None:
        """Give the file that a descriptor holds one more name."""
        os.link(_path_of(fd), name, dst_dir_fd=directory, follow_symlinks=True)

    def now_ns(self) -> int:
        """Return the clock that new files get their time of birth from."""
        return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)

    def is_newborn(self, found: Found, kind: int, since_ns: int) -> bool:
        """Tell whether a file can be the one that was just made by name.

        Only such a one may change its owner: somebody who can write to the directory through another mount may have put another
        file in its place. As fine as a tick of the kernel's clock.
        """
        if kind_of(found.identity) != kind or found.attributes.uid != os.geteuid():
            return False
        birth = birth_ns_of(found.identity)
        return self.is_remote or birth == 0 or birth >= since_ns

    # Removing and renaming.

    def unlink(self, directory: int, name: bytes) -> None:
        """Remove a name that is not a directory's."""
        os.unlink(name, dir_fd=directory)

    def rmdir(self, directory: int, name: bytes) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=directory)

    def rename(self, directory: int, name: bytes, new_directory: int, new_name: bytes, flags: int) -> None:
        """Rename, with NOREPLACE or EXCHANGE."""
        if flags:
            syscalls.renameat2(directory, name, new_directory, new_name, flags)
        else:
            os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=new_directory)

    # Changing.

    def chmod(self, fd: int, mode: int) -> None:
        """Set permission and set-id bits."""
        os.chmod(_path_of(fd), mode & 0o7777)

    def chown(self, fd: int, uid: int, gid: int) -> None:
        """Set owner and group, -1 leaves one; even two of them drop set-id bits, as chown(2) does."""
        os.chown(_path_of(fd), uid, gid)

    def truncate(self, fd: int, size: int) -> None:
        """Set the size of a file by any descriptor of it."""
        os.truncate(_path_of(fd), size)

    def utimens(self, fd: int, atime_ns: int | None, mtime_ns: int | None) -> None:
        """Set times; None leaves one."""
        syscalls.utimens(_path_of(fd).encode(), atime_ns, mtime_ns)

    def getxattr(self, fd: int, name: bytes) -> bytes:
        """Return an extended attribute."""
        return os.getxattr(_path_of(fd), name)

    def setxattr(self, fd: int, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        os.setxattr(_path_of(fd), name, value)

    def listxattr(self, fd: int) -> list[bytes]:
        """Return the names of the extended attributes."""
        return [os.fsencode(name) for name in os.listxattr(_path_of(fd))]

    def removexattr(self, fd: int, name: bytes) -> None:
        """Remove an extended attribute."""
        os.removexattr(_path_of(fd), name)

    # Open files.

    def open(self, fd: int, flags: int) -> int:
        """Open the regular file that a descriptor holds, for reading or writing at explicit offsets.

        O_APPEND is dropped: pwrite would ignore the offset, which the kernel has worked out already. O_DIRECT is dropped: it
        keeps the kernel's page cache out, while alignment rules of the store are not the caller's business.
        """
        access = flags & _REOPEN_FLAGS | os.O_CLOEXEC | os.O_NOCTTY
        try:
            return os.open(_path_of(fd), access)
        except PermissionError:
            if not flags & os.O_NOATIME:
                raise
            return os.open(_path_of(fd), access & ~os.O_NOATIME)  # only a file's owner may ask for it

    def read(self, fd: int, offset: int, size: int) -> bytes:
        """Read, waiting for the disk."""
        return os.pread(fd, size, offset)

    def read_cached(self, fd: int, offset: int, buffer: memoryview) -> int:
        """Read only what is in memory. Raises BlockingIOError if nothing is, OSError(EOPNOTSUPP) if the store cannot tell."""
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)

    def write(self, fd: int, offset: int, content: bytes | memoryview) -> int:
        """Write and return how much was written."""
        return os.pwrite(fd, content, offset)

    def set_size(self, fd: int, size: int) -> None:
        """Set the size of a file that is open for writing."""
        os.ftruncate(fd, size)

    def sync(self, fd: int, datasync: bool) -> None:
        """Make a file or directory durable."""
        if datasync:
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def settle(self, fd: int) -> None:
        """Report what a close would: some network filesystems write, and fail, only then."""
        os.close(os.dup(fd))

    # Open directories.

    def open_listing(self, directory: int) -> int:
        """Open a directory for listing."""
        return os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)

    def seek_listing(self, fd: int, position: int) -> None:
        """Go to a position that an entry came with."""
        os.lseek(fd, position, os.SEEK_SET)

    def begin_listing_again(self, fd: int) -> None:
        """Go to the beginning, as if the descriptor had just been opened.

        Seeking is not enough: ext4 finds nothing any more if the first thing read from a descriptor was its end
        (fs/ext4/dir.c, ext4_dx_readdir: `last_pos` is not set there), and who takes over may have to begin there.
        """
        again = os.open(_path_of(fd), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.dup2(again, fd, inheritable=False)
        finally:
            os.close(again)

    def list(self, fd: int) -> list[Listed]:
        """Return the next entries, none at the end."""
        return parse_dirents(syscalls.getdents64(fd, _LISTING_BYTES))


def parse_dirents(content: bytes) -> list[Listed]:
    """Return the entries of struct linux_dirent64 records."""
    entries = []
    at = 0
    while at < len(content):
        ino, position, length, kind = _DIRENT.unpack_from(content, at)
        name_at = at + _DIRENT.size
        entries.append(Listed(content[name_at : content.index(b"\0", name_at)], ino, kind, position))
        at += length
    return entries


def _path_of(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
