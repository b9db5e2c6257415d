"""The mount table of this process's namespace: what is mounted where, read without touching any mount."""

import os

from sidemount.host import mount_api
from sidemount.model.errors import BadMessage
from sidemount.model.mountinfo import Mount, layers_at, parse_mountinfo

_ROUNDS_MAX = 8


def read_mount_table() -> tuple[Mount, ...]:
    """Return every mount that this process sees. A line that cannot be understood is left out: it is none of ours."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        text = file.read()
    try:
        return parse_mountinfo(text)
    except BadMessage:
        return tuple(mount for line in text.split("\n") if line for mount in _parse_leniently(line))


def _parse_leniently(line: str) -> tuple[Mount, ...]:
    try:
        return parse_mountinfo(line)
    except BadMessage:
        return ()


def mount_id_of(descriptor: int) -> int:
    """Return the id of the mount that an open descriptor lies on. Contacts no filesystem."""
    return _fdinfo_number(descriptor, "mnt_id:")


def connection_of(device: int) -> int | None:
    """Return the number of the FUSE connection of an open /dev/fuse; None if it has none, or the kernel does not tell."""
    number = _fdinfo_number(device, "fuse_connection:")
    return number if number > 0 else None


def mount_by_id(mounts: tuple[Mount, ...], mount_id: int) -> Mount | None:
    """Return the mount of that id, None if it is not attached (any more)."""
    return next((mount for mount in mounts if mount.mount_id == mount_id), None)


def is_fuse(mount: Mount) -> bool:
    """Tell whether a FUSE client, of ours or not, serves the mount."""
    return mount.fstype in ("fuse", "fuseblk") or mount.fstype.startswith("fuse.")


def detach_layers(place: str, owned: "OwnedBy") -> int:
    """Detach every layer at `place` that is ours, top first; return how many.

    A foreign mount above ours stays, with whatever of ours lies beneath it. Counted from the table each time: one
    MNT_DETACH too many would take away the mount that holds the place.
    """
    detached = 0
    for _ in range(_ROUNDS_MAX):
        layers = layers_at(read_mount_table(), place)
        ours = _ours_on_top(layers, owned)
        if not ours:
            break
        for _ in range(ours):
            detached += mount_api.detach(place)
    return detached


class OwnedBy:
    """Tells which mounts at a volume's places are this keeper's to remove."""

    __slots__ = ("_any_fuse",)

    def __init__(self, *, any_fuse: bool) -> None:
        """`any_fuse`: the volume's client mounts by itself, under a name of its own."""
        self._any_fuse = any_fuse

    def __call__(self, mount: Mount) -> bool:
        """Tell whether the mount is ours."""
        return mount.is_ours or (self._any_fuse and is_fuse(mount))


def _ours_on_top(layers: tuple[Mount, ...], owned: OwnedBy) -> int:
    count = 0
    for mount in reversed(layers):
        if not owned(mount):
            break
        count += 1
    return count


def _fdinfo_number(descriptor: int, key: str) -> int:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        for line in file:
            if line.startswith(key):
                return int(line[len(key) :])
    return 0


def is_shared(mounts: tuple[Mount, ...], directory: str) -> bool:
    """Tell whether what is mounted within `directory` reaches other mount namespaces."""
    holder = max(
        (mount for mount in mounts if _holds(mount.mount_point, directory)),
        key=lambda mount: len(mount.mount_point),
    )
    tops = layers_at(mounts, holder.mount_point)
    return any(tag.startswith("shared:") for tag in tops[-1].tags)


def _holds(mount_point: str, directory: str) -> bool:
    return os.path.commonpath((mount_point, directory)) == mount_point
