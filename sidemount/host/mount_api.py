"""The kernel's mount calls: the descriptor-based ones (5.2 and later), umount2 and the old mount(2).

Source: https://github.com/brauner/man-pages-md, mount(2), umount2(2).
"""

import ctypes
import errno as errnos
import os

from sidemount.host import syscalls
from sidemount.model.errors import HostFailure

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_MOVE = 0x2000
MS_PRIVATE = 0x40000

MNT_DETACH = 0x2
UMOUNT_NOFOLLOW = 0x8

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_IDMAP = 0x100000
MOUNT_ATTR_NOSYMFOLLOW = 0x200000

_FSOPEN_CLOEXEC = 0x1
_FSMOUNT_CLOEXEC = 0x1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6
_OPEN_TREE_CLONE = 0x1
_AT_RECURSIVE = 0x8000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_LOG_LINES_MAX = 8


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def fsopen(fstype: str) -> int:
    """Return a descriptor of a new, unconfigured filesystem context."""
    return syscalls.call(syscalls.FSOPEN, fstype.encode(), _FSOPEN_CLOEXEC, target=fstype)


def fsconfig_string(context: int, key: str, value: str) -> None:
    """Set a parameter that has a value."""
    _fsconfig(context, _FSCONFIG_SET_STRING, key, value)


def fsconfig_flag(context: int, key: str) -> None:
    """Set a parameter that has none."""
    _fsconfig(context, _FSCONFIG_SET_FLAG, key, None)


def fsconfig_create(context: int) -> None:
    """Make the superblock from what was configured."""
    _fsconfig(context, _FSCONFIG_CMD_CREATE, None, None)


def fsmount(context: int, attributes: int) -> int:
    """Return a descriptor of a mount of the new superblock, attached nowhere."""
    try:
        return syscalls.call(syscalls.FSMOUNT, context, _FSMOUNT_CLOEXEC, attributes, target="")
    except HostFailure as error:
        raise syscalls.failure("fsmount", "the new filesystem", error.errno, _kernel_log(context)) from error


def open_tree_clone(directory: int, target: str, *, recursive: bool = False) -> int:
    """Return a descriptor of a detached copy of the mount whose root is the open `directory`; with all mounts below if `recursive`."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | syscalls.AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    return syscalls.call(syscalls.OPEN_TREE, directory, b"", flags, target=target)


def mount_setattr(
    mount: int,
    *,
    attributes: int = 0,
    propagation: int = 0,
    user_namespace: int = 0,
    target: str,
    recursive: bool = False,
) -> None:
    """Set attributes and propagation of the mount that `mount` is a descriptor of, and of all below if `recursive`."""
    attr = _MountAttr(attr_set=attributes, propagation=propagation, userns_fd=user_namespace)
    syscalls.call(
        syscalls.MOUNT_SETATTR,
        mount,
        b"",
        syscalls.AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0),
        attr,
        ctypes.sizeof(attr),
        target=target,
    )


def move_mount(mount: int, target: str) -> None:
    """Attach a detached mount at `target`, on top of what is mounted there."""
    path = os.fsencode(target)
    syscalls.call(
        syscalls.MOVE_MOUNT, mount, b"", syscalls.AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH, target=target
    )


def umount2(target: str, flags: int) -> None:
    """Unmount the top mount at `target`."""
    if syscalls.LIBC.umount2(os.fsencode(target), ctypes.c_int(flags)) != 0:
        raise syscalls.last_failure("umount2", target)


def detach(target: str) -> bool:
    """Detach the top mount at `target`, busy, dead or hung; False if there was none."""
    try:
        umount2(target, MNT_DETACH | UMOUNT_NOFOLLOW)
    except HostFailure as error:
        if error.errno in (errnos.EINVAL, errnos.ENOENT):
            return False
        raise
    return True


def mount(source: str, target: str, fstype: str, flags: int, options: str = "") -> None:
    """Mount with the old call: for kernels without the new ones, and for propagation of a whole tree."""
    result = syscalls.LIBC.mount(
        os.fsencode(source),
        os.fsencode(target),
        fstype.encode(),
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    if result != 0:
        raise syscalls.last_failure("mount", target)


def _fsconfig(context: int, command: int, key: str | None, value: str | None) -> None:
    try:
        syscalls.call(
            syscalls.FSCONFIG,
            context,
            command,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            0,
            target="",
        )
    except HostFailure as error:
        shown = "create" if key is None else key if value is None else f"{key}={value}"
        raise syscalls.failure("fsconfig", shown, error.errno, _kernel_log(context)) from error


def _kernel_log(context: int) -> str:
    """Return what the kernel wrote about the context: why it refused, in its own words."""
    lines = []
    for _ in range(_LOG_LINES_MAX):
        try:
            line = os.read(context, 1024)
        except OSError:  # ENODATA: nothing more
            break
        lines.append(line.decode(errors="replace").strip())
    return "; ".join(lines)
