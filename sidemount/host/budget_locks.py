"""The locks of a budget: bytes far behind its content, locked by open file description. The kernel frees them with the last descriptor.

Order: TURNSTILE, STANDSTILL, BUDGET. Whoever changes files has STANDSTILL shared; whoever wants nobody to (a cut, or a file
that is made shorter) takes TURNSTILE, so that no one comes in any more, and then STANDSTILL.
"""

import errno
import fcntl
import struct
import time
from collections.abc import Callable

_BASE = 1 << 40
BUDGET = _BASE
STANDSTILL = _BASE + 1
TURNSTILE = _BASE + 2
FIRST_SHARE = _BASE + 64

_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of <fcntl.h>: type, whence, start, length, pid
_BUSY = (errno.EAGAIN, errno.EACCES)
_PAUSE_S = 0.002


def try_exclusive(fd: int, byte: int) -> bool:
    """Lock a byte against everybody else. Return whether that worked at once."""
    return _try(fd, byte, fcntl.F_WRLCK)


def try_shared(fd: int, byte: int) -> bool:
    """Lock a byte against exclusive locks. Return whether that worked at once."""
    return _try(fd, byte, fcntl.F_RDLCK)


def unlock(fd: int, byte: int) -> None:
    """Let go of a byte."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, byte, 1, 0))


def is_taken(fd: int, byte: int) -> bool:
    """Tell whether somebody else has locked a byte exclusively."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, 0, byte, 1, 0))
    kind: int = _FLOCK.unpack_from(answer)[0]
    return kind != fcntl.F_UNLCK


def is_any_taken(fd: int, first: int, count: int) -> bool:
    """Tell whether somebody else has locked one of so many bytes, in whatever way."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, first, count, 0))
    kind: int = _FLOCK.unpack_from(answer)[0]
    return kind != fcntl.F_UNLCK


def wait_for(attempt: Callable[[], bool], deadline: float) -> bool:
    """Try again and again until it works; False if it does not before the deadline (monotonic)."""
    while not attempt():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def _try(fd: int, byte: int, kind: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, byte, 1, 0))
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True
