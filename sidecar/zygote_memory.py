"""How much memory the serving process may take, so that it runs out of its own before the container runs out of its.

A container that runs over its limit is killed whole (kubelet sets `memory.oom.group`), and only kubelet starts it again, at its
own pace. A process that runs into RLIMIT_DATA gets ENOMEM, answers that to whoever asked, and lives.
"""

import mmap
import os
import resource
from collections.abc import Iterator

from sidemount.host.mount_table import read_mount_table
from sidemount.model.driver_class import DAEMON_MEMORY_MIN_BYTES
from sidemount.model.mountinfo import Mount

_UNLIMITED = 1 << 60  # cgroup v1 has no word for it, only a huge number
_MARGIN_MIN = 24 << 20
_MARGIN_SHARE = 8
_BOUND_MIN = 48 << 20
_RESERVE_SHARE = 6
_RESERVE_MAX = 8 << 20
_ROOM_BYTES = 256 << 10


def child_data_limit(container_limit: int | None, own_bytes: int) -> int | None:
    """Return RLIMIT_DATA for a child of a process that takes `own_bytes`; None if the container has no limit.

    The margin is for what the limit does not count: the state log, sockets, page tables, and the kernel's own for the container.
    """
    if container_limit is None:
        return None
    margin = max(_MARGIN_MIN, container_limit // _MARGIN_SHARE)
    return max(_BOUND_MIN, container_limit - margin - own_bytes)


def is_too_small(container_limit: int | None) -> bool:
    """Tell whether the serving process's own bound cannot bite before the container's."""
    return container_limit is not None and container_limit < DAEMON_MEMORY_MIN_BYTES


def limit_data(limit_bytes: int) -> None:
    """Bound this process's data for good."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


def leave_reserve() -> None:
    """Leave a part of this process's bound alone: a successor has to take over all that it knows, and needs more for that."""
    _, bound = resource.getrlimit(resource.RLIMIT_DATA)
    if bound != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (bound - min(_RESERVE_MAX, bound // _RESERVE_SHARE), bound))


def has_room() -> bool:
    """Tell whether memory is left that answering needs. Without any, Python cannot even unwind an exception: it goes round in a loop for ever."""
    try:
        mmap.mmap(-1, _ROOM_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True


def own_memory() -> int:
    """Return how much memory this process has for itself."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared = file.read().split()[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


def container_memory_limit() -> int | None:
    """Return the lowest memory limit of this process's cgroups, of either version; None if there is none."""
    limits = [limit for place in _own_limit_files() if (limit := _read_limit(place))]
    return min(limits, default=None)


def memory_events() -> str:
    """Return the file with what has happened for want of memory in this process's cgroup, "" if there is none."""
    own = next(filter(os.path.exists, _own_limit_files()), "")
    name = "memory.events" if own.endswith(".max") else "memory.oom_control"
    return own and os.path.join(os.path.dirname(own), name)


def out_of_memory_kills(events: str) -> int:
    """Return how many processes the kernel has killed for their memory, 0 if it does not tell. `events`: see `memory_events`."""
    try:
        with open(events, encoding="ascii") as file:
            return kills_in(file.read())
    except (OSError, ValueError):
        return 0


def kills_in(events: str) -> int:
    """Return the count of kills in a cgroup's memory.events (version 2) or memory.oom_control. Raises ValueError."""
    counts = dict(line.split(" ", 1) for line in events.splitlines())
    return int(counts.get("oom_kill", 0))


def limit_files(groups: str, mounts: tuple[Mount, ...]) -> Iterator[str]:
    """Yield the limit files of a process's cgroups and of all above them. `groups` is /proc/<pid>/cgroup. Source: cgroups(7)."""
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _up(path, "memory.max", [m for m in mounts if m.fstype == "cgroup2"])
        elif "memory" in controllers.split(","):
            found = [m for m in mounts if m.fstype == "cgroup" and "memory" in m.super_options]
            yield from _up(path, "memory.limit_in_bytes", found)


def _own_limit_files() -> Iterator[str]:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            groups = file.read()
        mounts = read_mount_table()
    except OSError:
        return iter(())
    return limit_files(groups, mounts)


def _up(path: str, name: str, mounts: list[Mount]) -> Iterator[str]:
    for mount in mounts:
        inside = os.path.relpath(path, mount.root)
        if inside.startswith(".."):  # the mount shows another part of the tree: a container's own, as a rule
            inside = "."
        directory = os.path.normpath(os.path.join(mount.mount_point, inside))
        while True:
            yield f"{directory}/{name}"
            if directory == mount.mount_point or directory == "/":
                break
            directory = os.path.dirname(directory)


def _read_limit(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            limit = int(file.read(64))
    except (OSError, ValueError):  # not there, or "max"
        return None
    return limit if 0 < limit < _UNLIMITED else None
