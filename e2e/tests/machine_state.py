"""What of clusters there is on this machine, beside files: mounts, processes, cgroups, network devices, kernel settings."""

import os
from dataclasses import dataclass
from pathlib import Path

_SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")


@dataclass(frozen=True, slots=True)
class MachineState:
    """A moment's state; of processes only those of other PID or mount namespaces."""

    mounts: frozenset[str]
    namespaces: frozenset[str]
    cgroups: frozenset[str]
    devices: frozenset[str]
    settings: tuple[str, ...]


def look_at_machine(cgroup: str, marker: str) -> MachineState:
    """Return the state as far as a cluster could have changed it: cgroups and mounts that name it, namespaces with a process."""
    return MachineState(
        mounts=frozenset(
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if marker in line
        ),
        namespaces=frozenset(_namespaces()),
        cgroups=frozenset(
            at
            for at, *_ in os.walk("/sys/fs/cgroup")
            # Those of other clusters come and go.
            if cgroup in at or ("kubepods" in at and "/sidemount-cluster-" not in at)
        ),
        devices=frozenset(os.listdir("/sys/class/net")),
        settings=tuple(Path(f"/proc/sys/{name}").read_text().strip() for name in _SETTINGS),
    )


def _namespaces() -> set[str]:
    """Return the PID namespaces in which something lives. One that has ended has none any more."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                found.add(os.readlink(f"/proc/{name}/ns/pid"))
            except OSError:
                continue
    return found
