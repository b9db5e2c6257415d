"""A daemon that is killed at the very moment when the kernel finds a page of its read buffer absent.

Chance would show that once in hundreds of kills. Here userfaultfd(2) tells of the first touch of such a page, and holds up who
touches it; a second process kills the daemon then. A buffer that is resident is never told of.
"""

import ctypes
import fcntl
import mmap
import os
import signal
import struct
from collections.abc import Callable

from sidemount.host.syscalls import LIBC

_SYS_USERFAULTFD = 323  # x86-64 and others but arm64
_SYS_USERFAULTFD_ARM64 = 282
_UFFD_API = 0xAA
_UFFDIO_API = 0xC018AA3F
_UFFDIO_REGISTER = 0xC020AA00
_MISSING = 1
_MADV_DONTNEED = 4
_PR_SET_PDEATHSIG = 1
LIBC.malloc.restype = ctypes.c_void_p
_BUFFER_BYTES = (1 << 20) + (1 << 13)
_EVENT_BYTES = 32


class AbsentPages:
    """Watches the read buffers of this process."""

    def __init__(self) -> None:
        number = _SYS_USERFAULTFD_ARM64 if os.uname().machine == "aarch64" else _SYS_USERFAULTFD
        self._faults = LIBC.syscall(ctypes.c_long(number), ctypes.c_int(os.O_CLOEXEC))
        if self._faults < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        fcntl.ioctl(self._faults, _UFFDIO_API, bytearray(struct.pack("QQQ", _UFFD_API, 0, 0)))
        _kill_at_the_first(self._faults)

    def watch(self, prepare: Callable[[], None] | None) -> None:
        """Watch the buffer that is made next. `prepare` makes it resident; without it, its pages are absent."""
        if prepare is not None:
            prepare()
        block = LIBC.malloc(ctypes.c_size_t(_BUFFER_BYTES))
        begin = (block + 2 * mmap.PAGESIZE) & -mmap.PAGESIZE  # what malloc itself writes to stays as it is
        size = _BUFFER_BYTES - 4 * mmap.PAGESIZE & -mmap.PAGESIZE
        if prepare is None:
            LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), ctypes.c_int(_MADV_DONTNEED))
        fcntl.ioctl(self._faults, _UFFDIO_REGISTER, bytearray(struct.pack("QQQQ", begin, size, _MISSING, 0)))
        LIBC.free(ctypes.c_void_p(block))


def _kill_at_the_first(faults: int) -> None:
    """Start the process that kills this one at the first event."""
    watched = os.getpid()
    if os.fork():
        return
    try:
        LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() == watched and os.read(faults, _EVENT_BYTES):
            os.kill(watched, signal.SIGKILL)
    finally:
        os._exit(0)
