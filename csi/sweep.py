"""The work of a child that takes a dead mount away: by descriptor, so that no path can be exchanged meanwhile. Standard library only."""

import errno
import os
from collections.abc import Callable

from sidemount.host import mount_api
from sidemount.host.disposable import Reporter
from sidemount.host.mount_table import mount_by_id, mount_id_of, read_mount_table
from sidemount.model.errors import HostFailure

_LAYERS_MAX = 64
_DEAD = frozenset({errno.ENOTCONN, errno.ECONNABORTED})


def sweep_work(directory: str, mount_point: str, mount_id: int) -> Callable[[Reporter], None]:
    """Return the work of detaching what is dead and ours at a place beneath a directory. `mount_id`: what was seen on top there."""

    def work(reporter: Reporter) -> None:
        reporter.send({"found": {"detached": _sweep(directory, mount_point, mount_id)}})

    return work


def _sweep(directory: str, mount_point: str, mount_id: int) -> int:
    detached = 0
    while detached < _LAYERS_MAX:
        try:
            top = _open_beneath(directory, mount_point)
        except FileNotFoundError:
            break
        try:
            on_top = mount_id_of(top)
            mount = mount_by_id(read_mount_table(), on_top)
            is_ours = mount is not None and mount.is_ours and mount.mount_point == mount_point
            if not is_ours or (detached == 0 and on_top != mount_id) or not _is_dead(top):
                break
            mount_api.umount2(f"/proc/self/fd/{top}", mount_api.MNT_DETACH)
        finally:
            os.close(top)
        detached += 1
    return detached


def _is_dead(mount: int) -> bool:
    """Tell whether the kernel has ended its connection. Hangs if somebody is there who does not answer."""
    try:
        os.fstatvfs(mount)
    except OSError as error:
        return error.errno in _DEAD
    return False


def _open_beneath(directory: str, path: str) -> int:
    """Open a place without following any link beneath the directory. Contacts no filesystem that is mounted there."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(directory, flags)
    for part in path[len(directory) + 1 :].split("/"):
        try:
            further = os.open(part, flags, dir_fd=here)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise HostFailure(f"{path}: {error.strerror}", errno=error.errno or 0) from error
        finally:
            os.close(here)
        here = further
    return here
