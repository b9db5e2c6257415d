"""The log of one draft: what a successor must know, a line a record, appended.

Only the death of processes matters here: when a machine dies, its mounts do. So nothing is synced; a record that was written is there.
"""

import ctypes
import errno
import json
import os
import zlib
from typing import Any

_AHEAD = (
    16 << 10
)  # space that a log has before it needs it: what gives space back on a full volume is a record, too
_KEEP_SIZE = 0x01  # <linux/falloc.h>
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

Record = dict[str, Any]  # JSON, of `draft_state` alone


class DraftLog:
    """A log that is being written. Not safe to use from several threads. It is open for as long as anybody has it."""

    _file = -1

    def __init__(self, path: str, *, is_new: bool = False) -> None:
        """`is_new`: nobody has made it yet."""
        self.path = path
        only = os.O_EXCL if is_new else 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | only, 0o600)
        self.size = 0 if is_new else os.fstat(self._file).st_size
        self._reserved = 0
        self._reserve()

    def append(self, record: Record) -> None:
        """Add a record. Raises OSError; then there is none of it."""
        line = _line(record)
        try:
            written = os.write(self._file, line)
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        if written < len(line):
            os.ftruncate(self._file, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(line)
        if self.size + _AHEAD // 2 > self._reserved:
            self._reserve()

    def rewrite(self, record: Record) -> None:
        """Have one record in place of all. Raises OSError; then the log is as before."""
        fresh = f"{self.path}.new"
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            line = _line(record)
            if os.write(file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.rename(fresh, self.path)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self.size, self._reserved = file, len(line), 0
        self._reserve()

    def clear(self) -> None:
        """Have no record."""
        os.ftruncate(self._file, 0)
        self.size = self._reserved = 0

    def close(self) -> None:
        """Write no more. Whoever comes late gets EBADF, and never writes to what is open in its place."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()

    def _reserve(self) -> None:
        """Have space ahead, if there is some and the filesystem can."""
        if not _fallocate(self._file, _KEEP_SIZE, self.size, _AHEAD):
            self._reserved = self.size + _AHEAD


def read_log(path: str) -> list[Record]:
    """Return the records of a log; none if there is no log. What is torn at its end is cut off, so that it can go on."""
    if not os.path.exists(path):
        return []
    with open(path, "r+b") as file:
        content = file.read()
        records: list[Record] = []
        at = 0
        while (end := content.find(b"\n", at)) >= 0:
            checksum, _, body = content[at:end].partition(b" ")
            if checksum != b"%08x" % zlib.crc32(body):
                break
            records.append(json.loads(body))
            at = end + 1
        if at < len(content):
            file.truncate(at)
    return records


def _line(record: Record) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)
