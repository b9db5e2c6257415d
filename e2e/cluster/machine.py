"""What of this machine decides whether and how a node can live on it."""

import os
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import MachineLacks

_CAP_SYS_RESOURCE = 24
_FILESYSTEMS = ("overlay", "tmpfs", "fuse")
_PROC = Path("/proc")
_FUSE = Path("/dev/fuse")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts that go into configuration. `lowers_oom_score`: root may do it (CAP_SYS_RESOURCE)."""

    lowers_oom_score: bool


def inspect_machine(proc: Path = _PROC) -> Machine:
    """Return the facts. Raises MachineLacks with the first thing that no cluster can do without."""
    if os.geteuid() != 0:
        raise MachineLacks(
            "a cluster needs root", hint="run it with sudo, or in a container with all capabilities"
        )
    known = {line.split()[-1] for line in (proc / "filesystems").read_text().splitlines() if line.strip()}
    for name in _FILESYSTEMS:
        if name not in known:
            raise MachineLacks(f"this kernel has no {name} filesystem", hint=f"try: modprobe {name}")
    if not _FUSE.exists():
        raise MachineLacks(
            f"there is no {_FUSE}", hint="load the fuse module, or give the container the device"
        )
    if not any((_CGROUP / name).exists() for name in ("cgroup.controllers", "memory")):
        raise MachineLacks(f"no memory control group at {_CGROUP}", hint="mount the cgroup filesystem there")
    return Machine(lowers_oom_score=has_capability((proc / "self" / "status").read_text(), _CAP_SYS_RESOURCE))


def has_capability(status: str, number: int) -> bool:
    """Tell from the text of /proc/PID/status whether a capability is effective."""
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> number & 1)


def snapshotter_for(directory: Path) -> str:
    """Return how containerd lays images out there: the kernel stacks no overlay's upper layer on another overlay."""
    return "native" if _filesystem_of(directory)[1] == "overlay" else "overlayfs"


def counts_disk(directory: Path) -> bool:
    """Tell whether kubelet finds out what room there is for what lies there: it has to know a device or an overlay."""
    source, kind = _filesystem_of(directory)
    return source.startswith("/dev/") or kind == "overlay"


def _filesystem_of(directory: Path) -> tuple[str, str]:
    """Return the source and the type of the filesystem that a directory is on."""
    best, found = "", ("", "")
    for line in (_PROC / "self" / "mounts").read_text().splitlines():
        source, point, fstype, *_ = line.split()
        if directory.is_relative_to(point) and len(point) >= len(best):
            best, found = point, (source, fstype)
    return found
