"""Files of a pool that the controller alone writes: whole or not at all, and there after a power cut; and what their failures mean."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from csi.faults import NoRoom
from sidemount.host.regular_file import read_regular
from sidemount.model.errors import BadMessage, HostFailure, InvalidRequest, NotReady, VolumeError

_MAX_BYTES = 1 << 16
_ASIDE = ".new"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMLINK})
_DOWN = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ECONNREFUSED,
        errno.ECONNABORTED,
        errno.EROFS,
    }
)


def read_text(path: str) -> str | None:
    """Return a file's text, None if there is no such file. Raises HostFailure, BadMessage."""
    try:
        return read_regular(Path(path), max_bytes=_MAX_BYTES)[1].decode("utf-8")
    except HostFailure as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise HostFailure(f"{path} {error.message}", errno=error.errno) from error
    except (InvalidRequest, UnicodeDecodeError) as error:
        raise BadMessage(f"{path} is no record of ours") from error


def write_text(path: str, text: str) -> None:
    """Make or replace a file. Raises OSError."""
    descriptor = os.open(
        f"{path}{_ASIDE}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.replace(f"{path}{_ASIDE}", path)
    sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Wait until what a directory lists is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def told_of(pool: str) -> Iterator[None]:
    """Turn what the machine refuses into what the caller can make of it: no room, not now, or a failure."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename!s}: {error.strerror}" if error.filename else str(error.strerror)
        raise _failure(pool, what, error.errno or 0) from error
    except HostFailure as error:
        if type(error) is not HostFailure:
            raise
        raise _failure(pool, error.message, error.errno) from error


def _failure(pool: str, what: str, number: int) -> VolumeError:
    if number in _FULL:
        return NoRoom(f"pool {pool} is full", errno=number, hint="free space in it, or make it larger")
    if number in _DOWN:
        return NotReady(f"pool {pool} does not work: {what}", hint="try again")
    return HostFailure(f"pool {pool}: {what}", errno=number)
