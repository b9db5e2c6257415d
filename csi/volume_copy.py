"""A volume's files, copied in rounds: while others change it, until little changes; the last round while it is held still.

What is known to be copied is told by a fingerprint of everything that changes whenever a file does, of the file's inode and of its
path. Fingerprints are on disk only after what they tell of is, so that a copy goes on after any crash.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from csi.faults import WrongState
from csi.volume_file_copy import copy_entry, give_directory
from csi.volume_tree import Stop, check_going_on, opened, opened_root, remove_tree
from sidemount.host.logs import log
from sidemount.host.syscalls import LIBC, last_failure
from sidemount.model.errors import HostFailure, NotReady, shown

# Two changes within a clock's tick leave the same times. NFS and old filesystems tick in seconds.
_TICK_NS = 2_000_000_000
_SYNC_FILES = 4096
_SYNC_BYTES = 1 << 30
_TELL_S = 5.0
_VANISHED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_FINGERPRINT = 8
_BLOCK = 512  # of st_blocks, whatever the filesystem's own
_FIELDS = struct.Struct("<QQQqqQ")
_NEVER = 1 << 62


class Copied:
    """The fingerprints of what is copied, durable in a file."""

    def __init__(self, path: str) -> None:
        """Take up what the file has. A last one that is cut is no fingerprint."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._new: list[bytes] = []
        self._known: set[int] = set()
        size = os.fstat(self._file).st_size
        os.ftruncate(self._file, size - size % _FINGERPRINT)
        at = 0
        while chunk := os.pread(self._file, _FINGERPRINT << 16, at):
            at += len(chunk)
            self._known.update(struct.unpack(f"<{len(chunk) // _FINGERPRINT}Q", chunk))

    def has(self, status: os.stat_result, path: str) -> bool:
        """Tell whether just this is copied."""
        return _fingerprint(status, path) in self._known

    def add(self, status: os.stat_result, path: str) -> None:
        """Note a copy."""
        number = _fingerprint(status, path)
        self._known.add(number)
        self._new.append(struct.pack("<Q", number))

    def __len__(self) -> int:
        return len(self._known)

    def write(self) -> None:
        """Put on disk what was noted; what it tells of has to be there already."""
        new = b"".join(self._new)
        if os.write(self._file, new) != len(new):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._new.clear()
        os.fdatasync(self._file)

    def close(self) -> None:
        """Forget what is not written."""
        os.close(self._file)


@dataclass(slots=True)
class Round:
    """What one round has found and done. `size_bytes`: of all regular files, each once."""

    files: int = 0
    copied_files: int = 0
    copied_bytes: int = 0
    size_bytes: int = 0
    links: dict[int, str] = field(default_factory=dict)


class Progress:
    """What is copied into a pool, by all threads together, since this process began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.under_way = 0
        self.files = 0
        self.size_bytes = 0

    def copied(self, size_bytes: int) -> None:
        """Count a file."""
        with self._lock:
            self.files += 1
            self.size_bytes += size_bytes

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count as a copy under way meanwhile."""
        with self._lock:
            self.under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self.under_way -= 1


class TreeCopy:
    """Copies the directory `source` to `target`, both of which exist."""

    def __init__(
        self,
        source: str,
        target: str,
        copied: Copied,
        stop: Stop,
        clock: Callable[[], int] | None,
        progress: Progress | None = None,
    ) -> None:
        """`clock` gives the time of the filesystem that changes; None if the source never does."""
        self._source = source
        self._target = target
        self._copied = copied
        self._stop = stop
        self._clock = clock
        self._progress = progress or Progress()
        self._now = _NEVER if clock is None else clock()
        self._device = 0
        self._is_still = clock is None
        self._unsynced = [0, 0]
        self._told = time.monotonic()

    def run(self, *, is_still: bool) -> Round:
        """Make the target what the source is; unless the source stands still, some of it may be of another moment, or missing.

        Raises OSError, HostFailure, WrongState for a mount in it, NotReady to end.
        """
        done = Round()
        self._is_still = is_still
        with (
            self._progress.counted(),
            opened_root(self._source) as source,
            opened_root(self._target) as target,
        ):
            self._device = os.fstat(source).st_dev
            pending = [("", False)]
            while pending:
                check_going_on(self._stop)
                path, is_left = pending.pop()
                try:
                    with opened(source, path) as here:
                        if is_left:
                            with opened(target, path) as there:
                                give_directory(here, there, os.fstat(here))
                        else:
                            pending.append((path, True))
                            pending += [
                                (name, False) for name in self._copy_directory(target, path, here, done)
                            ]
                except HostFailure as error:
                    if self._is_still or error.errno not in _VANISHED:
                        raise
            if not self._is_held:
                self._sync(target)
        return done

    @property
    def _is_held(self) -> bool:
        """Tell whether somebody waits for the round's end; what it copies is synced afterwards."""
        return self._is_still and self._clock is not None

    def _copy_directory(self, root: int, path: str, here: int, done: Round) -> list[str]:
        """Copy what is in a directory, and return the directories in it."""
        directories = []
        prefix = f"{path}/" if path else ""
        with opened(root, path) as there:
            os.fchmod(there, 0o700)
            old = set(os.listdir(there))
            with os.scandir(here) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                try:
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                    self._check_device(status, prefix + name)
                    if stat.S_ISDIR(status.st_mode):
                        self._make_directory(there, name)
                        directories.append(prefix + name)
                    else:
                        self._copy(root, here, there, name, prefix + name, status, name in old, done)
                except OSError as error:
                    if self._is_still or error.errno not in _VANISHED:
                        raise
                    continue
                old.discard(name)
            for name in sorted(old):
                remove_tree(there, name, self._stop)
        return directories

    def _copy(
        self,
        root: int,
        here: int,
        there: int,
        name: str,
        path: str,
        status: os.stat_result,
        is_old: bool,
        done: Round,
    ) -> None:
        check_going_on(self._stop)
        done.files += 1
        if status.st_nlink > 1:
            first = done.links.setdefault(status.st_ino, path)
            if first != path:
                self._link(root, there, name, first, is_old=is_old)
                return
        if stat.S_ISREG(status.st_mode):
            done.size_bytes += status.st_size
        if is_old:
            if self._copied.has(status, path):
                return
            remove_tree(there, name, self._stop)
        stood_still = copy_entry(here, there, name, status, self._stop)
        if self._is_still and not stood_still:
            raise NotReady(f"{shown(path)} changes although the volume is held still", hint="try again")
        size_bytes = min(status.st_size, status.st_blocks * _BLOCK)  # a hole costs nothing
        done.copied_files += 1
        done.copied_bytes += size_bytes
        self._progress.copied(size_bytes)
        if stood_still and self._is_settled(status):
            self._copied.add(status, path)
        self._tell(done)
        self._unsynced[0] += 1
        self._unsynced[1] += size_bytes
        is_much = self._unsynced[0] >= _SYNC_FILES or self._unsynced[1] >= _SYNC_BYTES
        if is_much and not self._is_held:
            self._sync(there)

    def _link(self, root: int, there: int, name: str, first: str, *, is_old: bool) -> None:
        above, _, last = first.rpartition("/")
        with opened(root, above) as directory:
            if is_old:
                mine = os.stat(name, dir_fd=there, follow_symlinks=False)
                if mine.st_ino == os.stat(last, dir_fd=directory, follow_symlinks=False).st_ino:
                    return
                remove_tree(there, name, self._stop)
            os.link(last, name, src_dir_fd=directory, dst_dir_fd=there, follow_symlinks=False)

    def _make_directory(self, there: int, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=there)
            return
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=there, follow_symlinks=False).st_mode):
                return
        remove_tree(there, name, self._stop)
        os.mkdir(name, 0o700, dir_fd=there)

    def _check_device(self, status: os.stat_result, path: str) -> None:
        if status.st_dev != self._device:
            raise WrongState(
                f"{shown(path)} in the volume is of another filesystem", hint="unmount what is there"
            )

    def _is_settled(self, status: os.stat_result) -> bool:
        """Tell whether any later change shows in the file's times."""
        newest = max(status.st_ctime_ns, status.st_mtime_ns) + _TICK_NS
        if newest >= self._now and self._clock is not None:
            self._now = self._clock()
        return newest < self._now

    def _sync(self, descriptor: int) -> None:
        sync_filesystem(descriptor)
        self._copied.write()
        self._unsynced = [0, 0]

    def _tell(self, done: Round) -> None:
        now = time.monotonic()
        if now - self._told >= _TELL_S:
            self._told = now
            log("csi.pool").info(
                "copying",
                source=self._source,
                files=done.files,
                copied_files=done.copied_files,
                copied_bytes=done.copied_bytes,
            )


def sync_filesystem(descriptor: int) -> None:
    """Wait until everything that was written to a filesystem is on its disk. Raises HostFailure. Source: syncfs(2)."""
    if LIBC.syncfs(ctypes.c_int(descriptor)) != 0:
        raise last_failure("syncfs", "pool")


def filesystem_clock(descriptor: int) -> Callable[[], int]:
    """Return a clock that a filesystem's own times go by, read off a file of ours on it."""

    def now() -> int:
        with contextlib.suppress(PermissionError):
            os.utime(descriptor)
        return os.fstat(descriptor).st_mtime_ns

    return now


def _fingerprint(status: os.stat_result, path: str) -> int:
    fields = _FIELDS.pack(
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_uid << 32 | status.st_gid,
    )
    digest = hashlib.blake2b(fields + os.fsencode(path), digest_size=_FINGERPRINT)
    return int.from_bytes(digest.digest(), "little")
