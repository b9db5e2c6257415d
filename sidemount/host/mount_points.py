"""The directory of a pod's mount points, in the hands of a daemon: by removing them it takes away what is mounted there.

To remove a directory on which something is mounted in another mount namespace detaches that in every namespace. So a daemon, whose
own namespace has none of the mounts, can do for a dead keeper what it has no privilege for. It is given a copy of the
directory's mount that is attached nowhere; in it, and nowhere else, root's files appear to be the daemon's user's.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator

from sidemount.host import mount_api, syscalls
from sidemount.host.disposable import Child, Reporter, start_child
from sidemount.host.readiness import wait_readable
from sidemount.model.errors import HostFailure

_CLONE_NEWUSER = 0x10000000
_RENAME_EXCHANGE = 0x2
_ASIDE = "."
_NAMESPACE_WITHIN_S = 2.0
_RESTRICTIONS = (
    mount_api.MOUNT_ATTR_NOSUID
    | mount_api.MOUNT_ATTR_NODEV
    | mount_api.MOUNT_ATTR_NOEXEC
    | mount_api.MOUNT_ATTR_NOSYMFOLLOW
)


def clone_for(directory: str, uid: int) -> int:
    """Return a descriptor of a detached copy of the directory's own mount, without what is mounted below it.

    `uid` may change it as root may. Raises HostFailure, OSError: a kernel before 6.3 cannot map the ids of a tmpfs.
    """
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        clone = mount_api.open_tree_clone(opened, directory)
    finally:
        os.close(opened)
    try:
        mount_api.mount_setattr(
            clone, attributes=_RESTRICTIONS, propagation=mount_api.MS_PRIVATE, target=directory
        )
        if uid != 0:
            with _namespace_of(uid) as namespace:
                mount_api.mount_setattr(
                    clone,
                    attributes=mount_api.MOUNT_ATTR_IDMAP,
                    user_namespace=namespace,
                    target=directory,
                )
    except BaseException:
        os.close(clone)
        raise
    return clone


def remove_mount_points(directory: int, volume: str) -> tuple[str, ...]:
    """Take away the mounts of one volume, and return their names.

    What is left in their place is a link to itself: a container that kubelet starts there all the same fails, instead of writing
    where nobody looks. What cannot be removed stays.
    """
    listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        names = sorted(name for name in os.listdir(listing) if is_mount_point_of(volume, name))
    finally:
        os.close(listing)
    # All names first: the volume may end, and with it this process, when its last mount goes.
    moved = [name for name in reversed(names) if _replace(directory, name)]
    removed = []
    for name in moved:
        with contextlib.suppress(OSError):
            os.rmdir(_ASIDE + name, dir_fd=directory)
            removed.append(name)
    return tuple(removed)


def _replace(directory: int, name: str) -> bool:
    """Put a link in the mount point's place, which goes aside with all that is mounted on it; at no moment is there neither."""
    aside = _ASIDE + name
    with contextlib.suppress(OSError):
        os.symlink(name, aside, dir_fd=directory)
        try:
            _exchange(directory, name, aside)
        except OSError:
            os.unlink(aside, dir_fd=directory)
            raise
        return True
    return False


def _exchange(directory: int, one: str, other: str) -> None:
    arguments = (directory, os.fsencode(one), directory, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE))
    if syscalls.LIBC.renameat2(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)


def is_marker(path: str) -> bool:
    """Tell whether a daemon has left its link to itself there."""
    try:
        return os.readlink(path) == os.path.basename(path)
    except OSError:
        return False


def clear_aside(path: str) -> None:
    """Take away what a daemon that was killed while it removed this mount point has left beside it."""
    directory, name = os.path.split(path)
    aside = f"{directory}/{_ASIDE}{name}"
    if not os.path.lexists(aside):
        return
    while mount_api.detach(aside):
        pass
    with contextlib.suppress(OSError):
        if os.path.islink(aside):
            os.unlink(aside)
        else:
            os.rmdir(aside)


def is_mount_point_of(volume: str, name: str) -> bool:
    """Tell whether that is the place of the volume or of one of its views. A volume's name has no dots."""
    return name == volume or name.startswith(f"{volume}.")


@contextlib.contextmanager
def _namespace_of(uid: int) -> Iterator[int]:
    """Give a user namespace in which root is `uid`. It takes a process to make one."""
    child = start_child(_enter_namespace)
    try:
        if not wait_readable(child.socket, _NAMESPACE_WITHIN_S):
            raise HostFailure("a user namespace was not made in time")
        received = child.receive()
        if received is None or "error" in received[0]:
            raise HostFailure(f"no user namespace: {'ended' if received is None else received[0]['error']}")
        for kind in ("uid", "gid"):
            with open(f"/proc/{child.pid}/{kind}_map", "w", encoding="ascii") as file:
                file.write(f"0 {uid} 1")
        namespace = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        _end(child)
    try:
        yield namespace
    finally:
        os.close(namespace)


def _enter_namespace(reporter: Reporter) -> None:
    if syscalls.LIBC.unshare(_CLONE_NEWUSER) != 0:
        raise syscalls.last_failure("unshare", "user namespace")
    reporter.send({"made": True})
    reporter.wait_for_go()


def _end(child: Child) -> None:
    child.abandon()
    os.waitpid(child.pid, 0)  # it waits for us alone, so SIGKILL ends it at once
