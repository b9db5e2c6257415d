"""A container's surroundings for the programs of a check: a read-only root, an account for the client's user, memory for the rest.

Only ever called in a mount namespace of its own, which ends with its processes.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sidemount.host import mount_api
from sidemount.host.mount_table import read_mount_table
from sidemount.model.errors import HostFailure, InvalidRequest, shown
from sidemount.model.names import UNPRIVILEGED_UID

_MS_REMOUNT, _MS_BIND = 0x20, 0x1000
_DISKS = frozenset({"bcachefs", "btrfs", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
_ACCOUNT = f"nonroot:x:{UNPRIVILEGED_UID}:{UNPRIVILEGED_UID}:nonroot:/:/usr/sbin/nologin\n"
_TMP = "/tmp"  # noqa: S108 - in a namespace where nobody else writes
_FLAGS = mount_api.MS_NOSUID | mount_api.MS_NODEV


def furnish(base: str, writable: Iterable[str], *, own_tmp: bool) -> None:
    """Make `base` memory and everything else read-only but the directories that are named, and a /tmp of its own. Raises VolumeError."""
    opened = [(path, _open(path)) for path in writable]
    mount_api.mount("sidemount-check", base, "tmpfs", _FLAGS, "size=2g,mode=755")
    if own_tmp:
        _cover_tmp(base)
    for path, directory in opened:
        mount_api.mount(f"/proc/self/fd/{directory}", path, "", _MS_BIND)
        os.close(directory)
    _add_account(base)
    kept = {base, *(os.path.realpath(path) for path, _ in opened), *((_TMP,) if own_tmp else ())}
    for mount in read_mount_table():
        place = mount.mount_point
        if mount.fstype in _DISKS and place not in kept and not place.startswith("/dev"):
            _make_read_only(place)


def _cover_tmp(base: str) -> None:
    """What is written to /tmp goes to memory; what was there before can be read, for programs may be there."""
    for name in ("upper", "work"):
        os.mkdir(f"{base}/{name}")
    os.chmod(f"{base}/upper", 0o1777)  # noqa: S103 - as /tmp is
    layers = f"lowerdir={_TMP},upperdir={base}/upper,workdir={base}/work"
    mount_api.mount("sidemount-check", _TMP, "overlay", _FLAGS, layers)


def _open(path: str) -> int:
    try:
        if os.path.isabs(path):
            return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        pass  # told below, as a path that is not absolute is
    raise InvalidRequest(f"--writable {shown(path)} is no directory", hint="name one by its absolute path")


def _add_account(base: str) -> None:
    """Our image has an account for its user, without which ssh and others do nothing."""
    accounts = Path("/etc/passwd").read_text(errors="surrogateescape")
    if f":x:{UNPRIVILEGED_UID}:" in accounts:
        return
    ours = Path(base) / "passwd"
    ours.write_text(accounts.rstrip("\n") + "\n" + _ACCOUNT, errors="surrogateescape")
    mount_api.mount(str(ours), "/etc/passwd", "", _MS_BIND)


def _make_read_only(place: str) -> None:
    """One that cannot be made read-only is hidden beneath another, or not ours to change; both are no reason to check nothing."""
    with suppress(OSError, HostFailure):
        flags = os.statvfs(place).f_flag if stat.S_ISDIR(os.lstat(place).st_mode) else 0
        kept = flags & (
            os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME | os.ST_RELATIME
        )
        mount_api.mount("", place, "", _MS_REMOUNT | _MS_BIND | mount_api.MS_RDONLY | _kernel_flags(kept))


def _kernel_flags(flags: int) -> int:
    """Return mount(2)'s flags of statvfs(3)'s: the same but for one. Source: statvfs(3), mount(2)."""
    relatime = 1 << 21 if flags & os.ST_RELATIME else 0
    return (flags & ~os.ST_RELATIME) | relatime
