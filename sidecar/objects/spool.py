"""The file on the volume's own storage that has what was written and is not in the store yet, each byte at its own offset."""

import contextlib
import errno
import mmap
import os

from sidecar.directory.syscalls import filesystem_type
from sidecar.takeover.mapping import give_back
from sidemount.stores.store import Buffer

_TMPFS = 0x01021994  # <linux/magic.h>
_MAPPED_BYTES = 256 << 10  # less is copied sooner than mapped


class Spool:
    """One draft's file. As long as the draft, with holes for what is not here."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_in_memory: bool | None = None

    @property
    def size(self) -> int:
        """How long it is."""
        return os.fstat(self._file).st_size

    @property
    def modified_ns(self) -> int:
        """When it was last written to."""
        return os.fstat(self._file).st_mtime_ns

    def write(self, offset: int, content: Buffer) -> int:
        """Write all, or as much as there is room for; an error only if that is nothing."""
        written = os.pwrite(self._file, content, offset)
        view = memoryview(content)
        with contextlib.suppress(OSError):
            while written < len(view):
                written += os.pwrite(self._file, view[written:], offset + written)
        return written

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Read; what is a hole or past the end is zeros."""
        at = 0
        while at < len(buffer):
            count = os.preadv(self._file, [buffer[at:]], offset + at)
            if not count:
                buffer[at:] = bytes(len(buffer) - at)
                return
            at += count

    def mapped(self, start: int, end: int) -> memoryview | None:
        """Return a large range without a copy; None unless it is in memory: a disk that cannot be read would kill who looks at it.

        Nobody may cut the file off for as long as the view lives.
        """
        if end - start < _MAPPED_BYTES:
            return None
        if self._is_in_memory is None:
            self._is_in_memory = filesystem_type(self._file) == _TMPFS
        if not self._is_in_memory:
            return None
        aligned = start - start % mmap.ALLOCATIONGRANULARITY
        found = mmap.mmap(self._file, end - aligned, mmap.MAP_SHARED, mmap.PROT_READ, offset=aligned)
        return memoryview(found)[start - aligned :]

    def set_size(self, size: int) -> None:
        """Cut it off, or have zeros at its end."""
        os.ftruncate(self._file, size)

    def punch(self, start: int, end: int) -> None:
        """Give the space of a range back. Where the filesystem cannot, the bytes stay and are in nobody's way."""
        if start < end:
            try:
                give_back(self._file, start, end - start)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                    raise

    def close(self) -> None:
        """Let go of it; the file stays. Whoever comes late gets EBADF, and never what is open in its place."""
        file, self._file = self._file, -1
        os.close(file)
