"""Read a whole ordinary file: bounded, and never waiting for a pipe, a device or a terminal."""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sidemount.model.errors import HostFailure, InvalidRequest

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What changes whenever a file's content may have: identity, size and both times of the file itself."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


def look_at(path: Path) -> Signature | None:
    """Return the signature of what a path leads to, None if it leads to nothing that can be looked at."""
    try:
        return _signature_of(path.stat())
    except OSError:
        return None


def read_regular(path: Path, *, max_bytes: int) -> tuple[Signature, bytes]:
    """Return a file's content and the signature of exactly that content. Symlinks are followed.

    Raises: HostFailure if it cannot be read or changed meanwhile, InvalidRequest if it is no regular file or too big.
    The messages begin after the file's name, which the caller gives.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise _failure(error) from error
    try:
        before = os.fstat(descriptor)
        if stat.S_ISDIR(before.st_mode):
            raise InvalidRequest("is a directory")
        if not stat.S_ISREG(before.st_mode):
            raise InvalidRequest("is not a regular file")
        content = _read(descriptor, before.st_size, max_bytes)
        if _signature_of(os.fstat(descriptor)) != _signature_of(before):
            raise HostFailure("changed while it was read", errno=errno.EAGAIN)
    except OSError as error:
        raise _failure(error) from error
    finally:
        os.close(descriptor)
    return _signature_of(before), content


def _failure(error: OSError) -> HostFailure:
    return HostFailure(f"cannot be read: {error.strerror}", errno=error.errno or 0)


def _read(descriptor: int, size: int, max_bytes: int) -> bytes:
    if size > max_bytes:
        raise InvalidRequest(f"is {size} bytes; at most {max_bytes} are read")
    chunks = []
    left = max_bytes + 1
    while left > 0 and (chunk := os.read(descriptor, min(left, _CHUNK))):
        chunks.append(chunk)
        left -= len(chunk)
    if left <= 0:
        raise InvalidRequest(f"is larger than {max_bytes} bytes")
    return b"".join(chunks)


def _signature_of(status: os.stat_result) -> Signature:
    return Signature(
        device=status.st_dev,
        inode=status.st_ino,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )
