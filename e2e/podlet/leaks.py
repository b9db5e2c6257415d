"""What a pod left behind on its node: nothing of it may be there when the pod is gone."""

import os
import time
from pathlib import Path

from e2e.podlet import cgroups, mounts
from e2e.podlet.paths import NodePaths

_REAPED_S = 1.0
_POLL_S = 0.02


def mounts_now() -> frozenset[tuple[int, str]]:
    """Return what tells the node's mounts apart."""
    return frozenset((mount.mount_id, mount.mount_point) for mount in mounts.mount_table())


def find_leaks(paths: NodePaths, cgroup: str, mounts_before: frozenset[tuple[int, str]]) -> tuple[str, ...]:
    """Return every mount, process, cgroup and directory that the pod should have taken along."""
    return (
        *(
            f"mount {m.fstype} {m.source} at {m.mount_point}"
            for m in mounts.mount_table()
            if (m.mount_id, m.mount_point) not in mounts_before
        ),
        *(f"process {pid} ({_name(pid)})" for pid in sorted(_strangers())),
        *(f"cgroup {directory}" for directory in cgroups.directories(cgroup)),
        *(
            f"directory {child}"
            for directory in paths.of_pods()
            if directory.is_dir()
            for child in directory.iterdir()
        ),
    )


def _strangers() -> set[int]:
    """Return every process of the node but its init and us; one that has ended is left to init for a moment."""
    deadline = time.monotonic() + _REAPED_S
    while True:
        found = {int(name) for name in os.listdir("/proc") if name.isdecimal()} - {1, os.getpid()}
        if not any(_has_ended(pid) for pid in found) or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
