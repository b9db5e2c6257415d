"""Manifest files of a directory: which there are, whether they changed, and their text. Bounded; never blocks on a pipe."""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sidemount.model.errors import HostFailure, InvalidRequest

SUFFIXES = (".yaml", ".yml", ".json")
MAX_FILES = 4096
MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What changes whenever a file's content may have: identity, size and both times of the file itself."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


def list_manifests(directory: Path) -> dict[str, Signature | None]:
    """Return the manifest files of a directory by name, sorted; None for one that cannot be looked at.

    Symlinks are followed, hidden names (the `..data` of a mounted ConfigMap, an editor's swap file) are not listed.
    Raises: HostFailure if the directory cannot be read, InvalidRequest if it holds too many.
    """
    try:
        names = sorted(
            name for name in os.listdir(directory) if name.endswith(SUFFIXES) and not name.startswith(".")
        )
    except OSError as error:
        raise HostFailure(
            f"the facts directory {directory} cannot be read: {error.strerror}", errno=error.errno or 0
        ) from error
    if len(names) > MAX_FILES:
        raise InvalidRequest(
            f"the facts directory {directory} holds {len(names)} manifests; at most {MAX_FILES} are read"
        )
    return {name: _signature(directory / name) for name in names}


def read_manifest(path: Path) -> tuple[Signature, str]:
    """Return a file's text and the signature of exactly that text.

    Raises: HostFailure if it cannot be opened or changed while it was read, InvalidRequest if it is no regular file,
    too big, or not UTF-8.
    """
    try:
        # O_NONBLOCK: a pipe that somebody put here must not hang the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise HostFailure(f"cannot be opened: {error.strerror}", errno=error.errno or 0) from error
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise InvalidRequest("is not a regular file")
        content = _read(descriptor, before.st_size)
        if _signature_of(os.fstat(descriptor)) != _signature_of(before):
            raise HostFailure("changed while it was read", errno=errno.EAGAIN)
    except OSError as error:
        raise HostFailure(f"cannot be read: {error.strerror}", errno=error.errno or 0) from error
    finally:
        os.close(descriptor)
    try:
        return _signature_of(before), content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"is not UTF-8 text (byte {error.start})") from error


def _read(descriptor: int, size: int) -> bytes:
    if size > MAX_FILE_BYTES:
        raise InvalidRequest(f"is {size} bytes; at most {MAX_FILE_BYTES} are read")
    chunks = []
    left = MAX_FILE_BYTES + 1
    while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    if left <= 0:
        raise InvalidRequest(f"is larger than {MAX_FILE_BYTES} bytes")
    return b"".join(chunks)


def _signature(path: Path) -> Signature | None:
    try:
        return _signature_of(path.stat())
    except OSError:
        return None


def _signature_of(status: os.stat_result) -> Signature:
    return Signature(
        device=status.st_dev,
        inode=status.st_ino,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )
