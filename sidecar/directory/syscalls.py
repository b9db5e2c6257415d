"""System calls that Python's `os` lacks, as functions that raise OSError. Each releases the interpreter lock."""

import ctypes
import errno
import os

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_NO_AUTOMOUNT = 0x800
AT_EMPTY_PATH = 0x1000
AT_STATX_FORCE_SYNC = 0x2000

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

STATX_SIZE = 256
_STATX_BASIC_STATS_AND_BTIME = 0xFFF
_STATX_TYPE_NLINK_INO_SIZE = 0x305
_SYS_OPENAT2 = 437  # the same on every architecture since 5.6
_UTIME_OMIT = (1 << 30) - 2
_NANOS = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Statfs(ctypes.Structure):
    # Only the type is read. Longer than struct statfs of any architecture.
    _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_char * 248))


_statx = _libc.statx
_statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
_renameat2 = _libc.renameat2
_renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_utimensat = _libc.utimensat
_utimensat.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_Timespec), ctypes.c_int)
_getdents64 = _libc.getdents64
_getdents64.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_getdents64.restype = ctypes.c_ssize_t
_fstatfs = _libc.fstatfs
_fstatfs.argtypes = (ctypes.c_int, ctypes.POINTER(_Statfs))
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def statx(directory: int, name: bytes) -> bytes:
    """Return struct statx of a name, never following a symbolic link; of the descriptor itself if the name is empty."""
    buffer = ctypes.create_string_buffer(STATX_SIZE)
    flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | (0 if name else AT_EMPTY_PATH)
    if _statx(directory, name, flags, _STATX_BASIC_STATS_AND_BTIME, buffer):
        raise _error()
    return buffer.raw


def statx_now(fd: int) -> bytes:
    """Return struct statx of a descriptor with kind, links, inode number and size as a server has them, not as it had."""
    buffer = ctypes.create_string_buffer(STATX_SIZE)
    if _statx(fd, b"", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, _STATX_TYPE_NLINK_INO_SIZE, buffer):
        raise _error()
    return buffer.raw


def syncfs(fd: int) -> None:
    """Write back what the filesystem of a descriptor has in memory."""
    if _libc.syncfs(ctypes.c_int(fd)):
        raise _error()


def openat2(directory: int, path: bytes, flags: int, resolve: int) -> int:
    """Open a path beneath a directory under the given rules of resolution."""
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=0, resolve=resolve)
    fd: int = _syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if fd < 0:
        raise _error()
    return fd


def renameat2(directory: int, name: bytes, new_directory: int, new_name: bytes, flags: int) -> None:
    """Rename with flags."""
    if _renameat2(directory, name, new_directory, new_name, flags):
        raise _error()


def utimens(path: bytes, atime_ns: int | None, mtime_ns: int | None) -> None:
    """Set access and modification time of the file a path leads to; None leaves one as it is."""
    times = (_Timespec * 2)(_timespec(atime_ns), _timespec(mtime_ns))
    if _utimensat(AT_FDCWD, path, times, 0):
        raise _error()


def getdents64(fd: int, size: int) -> bytes:
    """Return the next struct linux_dirent64 records of a directory, b"" at its end."""
    buffer = ctypes.create_string_buffer(size)
    got: int = _getdents64(fd, buffer, size)
    if got < 0:
        raise _error()
    return buffer.raw[:got]


def filesystem_type(fd: int) -> int:
    """Return f_type of statfs(2): which kind of filesystem a descriptor is on."""
    answer = _Statfs()
    if _fstatfs(fd, ctypes.byref(answer)):
        raise _error()
    return int(answer.f_type) & 0xFFFFFFFF


def _timespec(time_ns: int | None) -> _Timespec:
    if time_ns is None:
        return _Timespec(0, _UTIME_OMIT)
    seconds, nanoseconds = divmod(time_ns, _NANOS)
    return _Timespec(seconds, nanoseconds)


def _error() -> OSError:
    number = ctypes.get_errno() or errno.EIO
    return OSError(number, os.strerror(number))
