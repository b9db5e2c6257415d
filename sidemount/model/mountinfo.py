"""The text of /proc/<pid>/mountinfo as values. Standard library only: the keeper imports it.

Source: proc_pid_mountinfo(5). Decode the file with `errors="surrogateescape"`: a mount point is bytes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sidemount.model.errors import BadMessage, shown
from sidemount.model.names import FUSE_SUBTYPE

_ESCAPES = re.compile(r"(?:\\[0-3][0-7]{2})+")
_NUMBER = re.compile(r"[0-9]{1,20}\Z")
_DEVICE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})\Z")
_ROOT_ID = -1  # parent of the mounts whose real parent this process cannot see


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line. `root` is the path within the filesystem that is mounted (a bind mount's is not "/").

    `tags` are the optional fields: "shared:N", "master:N", "propagate_from:N", "unbindable".
    """

    mount_id: int
    parent_id: int
    major: int
    minor: int
    root: str
    mount_point: str
    options: tuple[str, ...]
    tags: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]

    @property
    def is_read_only(self) -> bool:
        """Tell whether the mount or its whole filesystem is read-only."""
        return "ro" in self.options or "ro" in self.super_options

    @property
    def is_ours(self) -> bool:
        """Tell whether a keeper of ours made it. Nothing else may ever be touched."""
        return self.fstype == f"fuse.{FUSE_SUBTYPE}" and self.source.startswith("sidemount:")


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Parse the whole file, in its order. Raises BadMessage naming the line."""
    lines = text.split("\n")  # never splitlines(): a path may hold U+2028, \r and the like
    if lines[-1] == "":
        lines.pop()
    return tuple(_parse_line(line, number) for number, line in enumerate(lines, 1))


def layers_at(mounts: Iterable[Mount], path: str) -> tuple[Mount, ...]:
    """Return every mount at exactly `path`, bottom first; the last is what a path look-up reaches.

    Mounts at the path that lie hidden beneath a mount over one of its parents come first of all.
    """
    table = tuple(mounts)
    stacked = _visible_stack(table, path)
    visible = {mount.mount_id for mount in stacked}
    hidden = tuple(mount for mount in table if mount.mount_point == path and mount.mount_id not in visible)
    return hidden + stacked


def mount_at(mounts: Iterable[Mount], path: str) -> Mount | None:
    """Return the mount that a look-up of `path` ends on if it is mounted exactly there, else None."""
    stacked = _visible_stack(tuple(mounts), path)
    return stacked[-1] if stacked else None


def mounts_beneath(mounts: Iterable[Mount], path: str) -> tuple[Mount, ...]:
    """Return the mounts at `path` or anywhere below it, in the order of the table."""
    prefix = path.rstrip("/") + "/"
    return tuple(m for m in mounts if m.mount_point == path or m.mount_point.startswith(prefix))


def _visible_stack(table: tuple[Mount, ...], path: str) -> tuple[Mount, ...]:
    """Walk from the root as the kernel does; return what is stacked at the last step."""
    known = {mount.mount_id for mount in table}
    children: dict[tuple[int, str], Mount] = {}
    for mount in table:
        is_top = mount.parent_id not in known or mount.parent_id == mount.mount_id
        children[_ROOT_ID if is_top else mount.parent_id, mount.mount_point] = mount
    current = _ROOT_ID
    stacked: list[Mount] = []
    for prefix in _prefixes(path):
        stacked.clear()
        # Real parent links have no cycle; the bound holds for text that is not the kernel's.
        while (mount_here := children.get((current, prefix))) is not None and len(stacked) < len(table):
            stacked.append(mount_here)
            current = mount_here.mount_id
    return tuple(stacked)


def _prefixes(path: str) -> tuple[str, ...]:
    parts = [part for part in path.split("/") if part]
    return ("/", *("/" + "/".join(parts[: i + 1]) for i in range(len(parts))))


def _parse_line(line: str, number: int) -> Mount:
    # A source may be empty, which leaves two spaces in a row: split at every single one.
    fields = line.split(" ")
    try:
        separator = fields.index("-", 6)
    except ValueError:
        raise _bad(line, number, 'has no " - " after its sixth field') from None
    # Some filesystems print raw spaces in their own options, always the last field.
    tail = " ".join(fields[separator + 1 :]).split(" ", 2)
    device = _DEVICE.match(fields[2])
    if len(tail) != 3 or not tail[0]:
        raise _bad(line, number, "has no filesystem type, source and options after the separator")
    if device is None:
        raise _bad(line, number, "has no major:minor in its third field")
    mount_point = _unescape(fields[4])
    if not mount_point.startswith("/"):
        raise _bad(line, number, "has a mount point that is not an absolute path")
    return Mount(
        mount_id=_number(fields[0], line, number),
        parent_id=_number(fields[1], line, number),
        major=int(device[1]),
        minor=int(device[2]),
        root=_unescape(fields[3]),
        mount_point=mount_point,
        options=_option_list(fields[5]),
        tags=tuple(fields[6:separator]),
        fstype=_unescape(tail[0]),
        source=_unescape(tail[1]),
        super_options=_option_list(tail[2]),
    )


def _number(field: str, line: str, number: int) -> int:
    if not _NUMBER.match(field):
        raise _bad(line, number, "does not start with two mount ids")
    return int(field)


def _option_list(field: str) -> tuple[str, ...]:
    return tuple(_unescape(option) for option in field.split(",")) if field else ()


def _unescape(field: str) -> str:
    """Undo the kernel's octal escapes (space, tab, newline, backslash, #); any other backslash stays."""
    if "\\" not in field:
        return field
    return _ESCAPES.sub(_unescape_run, field)


def _unescape_run(run: re.Match[str]) -> str:
    octets = bytes(int(digits, 8) for digits in run[0].split("\\")[1:])
    return octets.decode("utf-8", "surrogateescape")


def _bad(line: str, number: int, why: str) -> BadMessage:
    return BadMessage(f"mountinfo line {number} {why}: {shown(line)}")
