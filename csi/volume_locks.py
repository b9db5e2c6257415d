"""Locks on what a pool holds, against every other controller on it: ranges of one file, one byte a name.

Of an open file description, so that the kernel frees them when the process dies and two threads exclude each other.
Source: fcntl(2), "Open file description locks".
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Iterator

from sidemount.model.errors import HostFailure, OperationPending

_FLOCK = struct.Struct("hhqqi4x")
_BUSY = frozenset({errno.EACCES, errno.EAGAIN})
_AGAIN_S = 0.02
_PLACE_BITS = 62


@contextlib.contextmanager
def locked(file: str, *, own: str = "", shared: str = "", wait_s: float = 2.0) -> Iterator[int]:
    """Hold the lock of a name for oneself, or of one together with others, and yield the lock file's descriptor.

    Raises OperationPending if others hold one for longer than `wait_s`, HostFailure.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostFailure(f"lock {file}: {error.strerror}", errno=error.errno or 0) from error
    try:
        until = time.monotonic() + wait_s
        if own:
            _lock(descriptor, fcntl.F_WRLCK, own, until)
        if shared:
            _lock(descriptor, fcntl.F_RDLCK, shared, until)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int, name: str, until: float) -> None:
    digest = hashlib.sha256(name.encode()).digest()
    place = int.from_bytes(digest[:8], "big") >> (64 - _PLACE_BITS)
    asked = _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
            return
        except OSError as error:
            if error.errno not in _BUSY:
                raise HostFailure(f"lock {name}: {error.strerror}", errno=error.errno or 0) from error
        if time.monotonic() > until:
            raise OperationPending(f"{name}: another operation on it runs", hint="try again")
        time.sleep(_AGAIN_S)
