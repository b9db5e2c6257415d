"""Opening what lies beneath a directory, whatever anyone renames or links meanwhile.

Source: openat2(2).
"""

import ctypes
import errno as errnos
import os

from sidemount.host import syscalls
from sidemount.model.errors import HostFailure

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
_CONFINED = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV

_ATTEMPTS = 64


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_directory_beneath(root: int, path: str, target: str, *, crosses_mounts: bool = False) -> int:
    """Return an O_PATH descriptor of the directory `path` beneath the open directory `root`; "" is the root itself.

    No symbolic link is followed, even one that stays inside, and no mount point is crossed unless `crosses_mounts`. `target` names
    it in the error. Raises HostFailure: ELOOP a symbolic link, EXDEV a way out or another mount, ENOENT, ENOTDIR.
    """
    resolve = _CONFINED & ~RESOLVE_NO_XDEV if crosses_mounts else _CONFINED
    return _open(root, path, os.O_PATH | os.O_DIRECTORY, resolve, target)


def look_beneath(root: int, path: str, target: str) -> int:
    """Return an O_PATH descriptor of whatever `path` leads to beneath the open directory `root`; links that stay inside are followed.

    Mount points are crossed. Raises HostFailure: EXDEV a way out, ELOOP links without end, ENOENT, ENOTDIR.
    """
    return _open(root, path, os.O_PATH, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS, target)


def _open(root: int, path: str, flags: int, resolve: int, target: str) -> int:
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=0, resolve=resolve)
    name = os.fsencode(path) or b"."
    for attempt in range(_ATTEMPTS):
        try:
            return syscalls.call(syscalls.OPENAT2, root, name, how, ctypes.sizeof(how), target=target)
        except HostFailure as error:
            # EAGAIN: a rename somewhere on the machine raced with the look-up; the kernel asks to try again.
            if error.errno not in (errnos.EAGAIN, errnos.EINTR) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")
