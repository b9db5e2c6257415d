"""Mounting and unmounting on the node by mount(8) and umount(8), as kubelet does, and the node's mount table."""

import errno
import os
from pathlib import Path

from e2e.podlet.command import run_command
from sidemount.model.mountinfo import Mount, layers_at, parse_mountinfo

_TIMEOUT_S = 30.0
_CORRUPTED = ("ENOTCONN", "ESTALE", "EIO", "EACCES", "EHOSTDOWN")  # what kubelet takes for a corrupted mount


class MountCommandFailed(OSError):
    """mount(8) or umount(8) said no."""


def mount_table() -> tuple[Mount, ...]:
    """Return the mounts of this mount namespace."""
    return parse_mountinfo(mount_table_text())


def mount_table_text() -> str:
    """Return the node's mountinfo as it is."""
    return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")


def is_mount_point(path: Path) -> bool:
    """Tell it from the table: nothing is asked of the filesystem itself."""
    return bool(layers_at(mount_table(), str(path)))


def share_everything() -> None:
    """Make every mount of this namespace shared, as systemd does on a node."""
    _run(["mount", "--make-rshared", "/"])


def mount(fstype: str, source: str, target: Path, *options: str) -> None:
    """Mount a filesystem."""
    _run(["mount", "-t", fstype, *(["-o", ",".join(options)] if options else []), source, str(target)])


def bind(source: Path, target: Path) -> None:
    """Bind one mount, not those below it: kubelet's subPath bind."""
    _run(["mount", "--no-canonicalize", "-o", "bind", str(source), str(target)])


def unmount(target: Path) -> None:
    """Unmount the top mount at the target, never lazily. Raises MountCommandFailed when it is busy."""
    _run(["umount", str(target)])


def clean_mount_point(path: Path) -> None:
    """Unmount what kubelet's CleanupMountPoint would, once, and remove the directory or file.

    Source: https://github.com/kubernetes/mount-utils/blob/master/mount_helper_common.go
    """
    try:
        os.stat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        if errno_name(error) not in _CORRUPTED:
            raise
        unmount(path)
    else:
        if is_mount_point(path):
            unmount(path)
    if is_mount_point(path):
        raise MountCommandFailed(f"failed to unmount path {path}: another mount lies beneath")
    path.rmdir() if path.is_dir() else path.unlink()


def errno_name(error: OSError) -> str:
    """Return "ENOTCONN" for the number."""
    return errno.errorcode.get(error.errno or 0, "")


def _run(argv: list[str]) -> None:
    done = run_command(argv, _TIMEOUT_S)
    if done.fault:
        raise MountCommandFailed(done.fault)
