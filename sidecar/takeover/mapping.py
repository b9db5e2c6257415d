"""Parts of a state file as arrays in memory, and space for them."""

import ctypes
import mmap
import os

from sidecar.takeover import layout

_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # <linux/falloc.h>
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def map_bytes(file: int, offset: int, size: int) -> memoryview:
    """Map a part of a file, shared. It stays mapped for as long as a view of it lives."""
    return memoryview(mmap.mmap(file, size, offset=offset))


def map_words(file: int, offset: int, count: int) -> memoryview:
    """Map a part of a file as 64-bit numbers, each of which is stored in one piece."""
    return map_bytes(file, offset, count * layout.WORD).cast("Q")


def reserve(file: int, offset: int, size: int) -> None:
    """Have space for a part of a file. Raises OSError (ENOSPC): storing into a mapping without space kills the process."""
    os.posix_fallocate(file, offset, size)


def give_back(file: int, offset: int, size: int) -> None:
    """Free the space of a part of a file. Raises OSError."""
    if _fallocate(file, _PUNCH_HOLE_KEEP_SIZE, offset, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
