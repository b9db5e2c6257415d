"""The kernel's control of FUSE connections: how many requests wait, and the way to end one.

It lists every connection of the node, other pods' too: the number must be exact.
Source: https://www.kernel.org/doc/html/latest/filesystems/fuse/fuse.html#control-filesystem
"""

import errno as errnos
import os
from collections.abc import Callable

from sidemount.host import mount_api, syscalls
from sidemount.model.errors import HostFailure

_SYSTEM_PLACE = "/sys/fs/fuse/connections"


class FuseControl:
    """An own mount of the control filesystem, attached nowhere: nobody else sees or needs it."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        """Open it. Raises HostFailure."""
        self._root = _open_detached()

    def close(self) -> None:
        """Give it up."""
        os.close(self._root)

    def waiting(self, connection: int) -> int | None:
        """Return how many requests have no answer yet; None if there is no such connection (any more)."""
        try:
            descriptor = os.open(f"{connection}/waiting", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._root)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise syscalls.failure("open", _name(connection, "waiting"), error.errno or 0) from error
        try:
            return int(os.read(descriptor, 32) or b"0")
        finally:
            os.close(descriptor)

    def abort(self, connection: int, is_ours: Callable[[], bool]) -> bool:
        """End the connection: what waits gets ECONNABORTED, what comes ENOTCONN. False if there is no such one, or not ours.

        A number is another's as soon as its connection is gone. `is_ours` is asked when the file is open, and an open file
        stays with its connection: if ours is there then, it was there before, and the file can be no other's.
        """
        try:
            descriptor = os.open(f"{connection}/abort", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._root)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise syscalls.failure("open", _name(connection, "abort"), error.errno or 0) from error
        try:
            if not is_ours():
                return False
            os.write(descriptor, b"1")
        finally:
            os.close(descriptor)
        return True


def _open_detached() -> int:
    try:
        context = mount_api.fsopen("fusectl")
    except HostFailure as error:
        if error.errno != errnos.ENOSYS:
            raise
        return _open_attached()
    try:
        mount_api.fsconfig_create(context)
        return mount_api.fsmount(context, mount_api.MOUNT_ATTR_NOSUID | mount_api.MOUNT_ATTR_NODEV)
    finally:
        os.close(context)


def _open_attached() -> int:
    """Kernels before 5.2: use the system's mount, or make it in this namespace."""
    if not os.listdir(_SYSTEM_PLACE):
        flags = mount_api.MS_NOSUID | mount_api.MS_NODEV
        mount_api.mount("none", _SYSTEM_PLACE, "fusectl", flags)
    return os.open(_SYSTEM_PLACE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _name(connection: int, file: str) -> str:
    return f"{_SYSTEM_PLACE}/{connection}/{file}"
