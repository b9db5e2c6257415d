"""subPath binds as a kubelet makes them, in the node's mount namespace.

The bind lies at <pod>/volume-subpaths/<volume>/<container>/<index>, is a plain bind, is made once and reused
when the container restarts. Being in the shared namespace it receives what is later mounted on its source.
Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/volume/util/subpath/subpath_linux.go
"""

import os
import stat
from pathlib import Path

from e2e.podlet import mounts

_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare_sub_path(volume: Path, sub_path: str, target: Path) -> Path:
    """Return what the container binds: the target, bound to volume/sub_path. Raises OSError.

    A missing directory is made with the volume's own mode.
    """
    wanted = volume / os.path.normpath(sub_path)
    if not _exists(wanted):
        _make_directories(volume, wanted)
    real_volume, real_path = _real(volume), _real(wanted)
    source = _open_within(real_volume, real_path)
    try:
        if not _is_bound(real_path, target):
            _bind(source, real_path, target)
    finally:
        os.close(source)
    return target


def clean_sub_paths(pod_directory: Path, volume: str) -> None:
    """Unmount and remove the binds of one volume. Raises OSError; repeatable."""
    directory = pod_directory / "volume-subpaths" / volume
    if not directory.is_dir():
        return
    for container in sorted(directory.iterdir()):
        for name in sorted(os.listdir(container)):
            mounts.clean_mount_point(container / name)
        container.rmdir()
    directory.rmdir()
    if not os.listdir(directory.parent):
        directory.parent.rmdir()


def _exists(path: Path) -> bool:
    """Tell whether it is there. Anything but "missing" counts as there, and fails at the next step."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path, strict=True))


def _make_directories(volume: Path, wanted: Path) -> None:
    """Make what is missing, each step by descriptor so that nobody can turn one into a symlink."""
    mode = stat.S_IMODE(volume.stat().st_mode)
    base = existing = _real(volume)
    missing = list(wanted.relative_to(volume).parts)
    while missing and os.path.lexists(existing / missing[0]):
        existing = _real(existing / missing.pop(0))
    here = _open_within(base, existing)
    try:
        for name in missing:
            os.mkdir(name, mode, dir_fd=here)
            made = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = made
            os.fchmod(here, mode)
    finally:
        os.close(here)


def _open_within(base: Path, path: Path) -> int:
    """Open a path without symlinks beneath the base. Raises OSError when it is outside."""
    if not path.is_relative_to(base):
        raise PermissionError(f"path {path} is outside of allowed base {base}")
    here = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    for segment in path.relative_to(base).parts:
        try:
            found = os.open(segment, _WALK, dir_fd=here)
        finally:
            os.close(here)
        here = found
        if stat.S_ISLNK(os.fstat(here).st_mode):
            os.close(here)
            raise PermissionError(f"unexpected symlink found {segment} in {path}")
    return here


def _is_bound(source: Path, target: Path) -> bool:
    """Tell whether the target is the source already; unmount whatever else it is."""
    if not mounts.is_mount_point(target):
        return False
    if os.path.samestat(os.lstat(source), os.lstat(target)):
        return True
    mounts.unmount(target)
    return False


def _bind(source: int, path: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    if stat.S_ISDIR(os.lstat(path).st_mode):
        target.mkdir(mode=0o750, exist_ok=True)
    else:
        target.touch(mode=0o640)
    try:
        mounts.bind(Path(f"/proc/{os.getpid()}/fd/{source}"), target)
    except OSError:
        mounts.clean_mount_point(target)
        raise
