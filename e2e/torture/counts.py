"""What there is of everything: to be the same before and after."""

import os
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Mounts and processes of the namespace; descriptors and memory of the keeper and the daemon's first process."""

    mounts: int
    processes: int
    keeper_descriptors: int
    daemon_descriptors: int
    keeper_kib: int
    daemon_kib: int

    def differences(self, other: "Counts", *, growth_kib: int, more_mounts: int = 0) -> list[str]:
        """Return in words what `other` has more or less; memory may grow by so much, and so many mounts may have come."""
        faults = []
        for field in fields(self):
            before, after = getattr(self, field.name), getattr(other, field.name)
            if field.name.endswith("_kib"):
                if after > before + growth_kib:
                    faults.append(f"{field.name} grew from {before} to {after}")
            elif field.name == "mounts" and before <= after <= before + more_mounts:
                continue
            elif before != after:
                faults.append(f"{field.name} were {before} and are {after}")
        return faults


def count(keeper: int, daemon: int) -> Counts:
    """Count. The ids are those of the keeper and of the daemon's first process."""
    return Counts(
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        processes=sum(name.isdigit() for name in os.listdir("/proc")),
        keeper_descriptors=len(os.listdir(f"/proc/{keeper}/fd")),
        daemon_descriptors=len(os.listdir(f"/proc/{daemon}/fd")),
        keeper_kib=_resident_kib(keeper),
        daemon_kib=_resident_kib(daemon),
    )


def _resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0
