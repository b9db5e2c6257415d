"""Descriptors that another process has sent: what they are, and how to be rid of them, without ever waiting for whoever serves them.

A file's status is asked of its filesystem, and so is its end: where that is away, either may last for ever. A socket is no better: the
last close of one closes the files that are still on their way through it.
"""

import _thread
import ctypes
import fcntl
import os
import stat
import struct
from collections import deque
from collections.abc import Callable
from functools import partial

from sidemount.host import syscalls

_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE = 1
_STATX = struct.Struct("=28xH98xII120x")  # mode; device's major and minor
_FUSE_DEVICE = (10, 229)
_CLOSERS_MAX = 64


def is_fuse_device(descriptor: int) -> bool:
    """Tell whether it is an open /dev/fuse. Raises HostFailure."""
    mode, *device = _known_status(descriptor)
    return stat.S_ISCHR(mode) and tuple(device) == _FUSE_DEVICE


def is_socket(descriptor: int) -> bool:
    """Tell whether it is a socket: whoever closes it, and does not do so last, waits for nobody. Raises HostFailure."""
    return stat.S_ISSOCK(_known_status(descriptor)[0])


def _known_status(descriptor: int) -> tuple[int, int, int]:
    """Return mode and device numbers as the kernel knows them, without asking anybody else."""
    result = ctypes.create_string_buffer(_STATX.size)
    flags = syscalls.AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
    if syscalls.LIBC.statx(descriptor, b"", flags, ctypes.c_uint(_STATX_TYPE), result) != 0:
        raise syscalls.last_failure("statx", f"descriptor {descriptor}")
    mode, major, minor = _STATX.unpack(result.raw)
    return mode, major, minor


def is_read_only_file(descriptor: int) -> bool:
    """Tell whether it is a regular file, open for reading alone. Raises HostFailure."""
    if not stat.S_ISREG(_known_status(descriptor)[0]):
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    return flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_PATH


def let_go(descriptor: int) -> None:
    """Close it in a thread of its own, which nobody waits for."""
    _CLOSERS.run(partial(os.close, descriptor))


def do_aside(work: Callable[[], None]) -> None:
    """Do in such a thread what may have to wait as a close may. An OSError is passed over. A child of ours does not do it."""
    _CLOSERS.run(work)


class _Closers:
    """A few threads that close one descriptor after the other. While all of them hang, descriptors wait."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget threads that are not there: a child has none of its parent's, and has copies of descriptors closed by itself."""
        self._lock = _thread.allocate_lock()
        self._works: deque[Callable[[], None]] = deque()
        self._running = 0

    def run(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._works.append(work)
            if self._running == _CLOSERS_MAX:
                return
            self._running += 1
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # no thread can be made: whoever comes next tries again
            with self._lock:
                self._running -= 1

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._works:
                    self._running -= 1
                    return
                work = self._works.popleft()
            try:
                work()
            except OSError:  # what could not be written at the end: nobody here has written anything
                continue


_CLOSERS = _Closers()
os.register_at_fork(after_in_child=_CLOSERS.begin_anew)
