"""A control group for each daemon: its own memory limit, and the certain end of everything it has started.

Works on the unified hierarchy where it has the memory controller, else on the first version's. Without either, daemons run in
ours: no limit holds then.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from sidemount.model.errors import HostFailure

_OURS = "sidemount"
_MOUNTINFO = "/proc/self/mountinfo"
_KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Where our groups are. `limit_file` is the version's."""

    directory: str
    limit_file: str

    def prepare(self, name: str, memory_bytes: int | None) -> str:
        """Make a group and return its directory; one that is there stays. Raises HostFailure."""
        path = f"{self.directory}/{name}"
        try:
            os.makedirs(path, exist_ok=True)
            if memory_bytes is not None:
                _write(f"{path}/{self.limit_file}", str(memory_bytes))
        except OSError as error:
            raise HostFailure(f"control group {path}: {error.strerror}", errno=error.errno or 0) from error
        return path

    def processes(self, name: str) -> list[int]:
        """Return who is in a group."""
        try:
            with open(f"{self.directory}/{name}/cgroup.procs", encoding="ascii") as file:
                return [int(line) for line in file]
        except OSError:
            return []

    def kill(self, name: str) -> bool:
        """Kill everybody in a group; False if somebody is left. Returns at once: ask again."""
        left = self.processes(name)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def remove(self, name: str) -> None:
        """Take an empty group away; nothing if there is none, or somebody is still in it."""
        with contextlib.suppress(OSError):
            os.rmdir(f"{self.directory}/{name}")

    def close(self) -> None:
        """Take our own directory away if no daemon is left."""
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)


def find_control_groups(instance: str) -> ControlGroups | None:
    """Return where groups with a memory limit can be made, None if nowhere.

    `instance` tells this node's from another's: two on one machine may have targets of the same path.
    """
    ours = f"{_OURS}-{instance}"
    unified, first = _places()
    if unified is not None and _has_memory(unified):
        directory = f"{unified}/{ours}"
        try:
            os.makedirs(directory, exist_ok=True)
            _write(f"{unified}/cgroup.subtree_control", "+memory")
            _write(f"{directory}/cgroup.subtree_control", "+memory")
        except OSError:
            return None
        return ControlGroups(directory, "memory.max")
    if first is not None:
        directory = f"{first}/{ours}"
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError:
            return None
        return ControlGroups(directory, "memory.limit_in_bytes")
    return None


def _places() -> tuple[str | None, str | None]:
    """Return where the unified hierarchy and the first version's memory controller are mounted."""
    unified = first = None
    with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.strip().split(" ", 2)
            place = fields.split(" ")[4]
            if kind == "cgroup2":
                unified = unified or place
            elif kind == "cgroup" and "memory" in options.split(","):
                first = first or place
    return unified, first


def _has_memory(place: str) -> bool:
    try:
        with open(f"{place}/cgroup.controllers", encoding="ascii") as file:
            return "memory" in file.read().split()
    except OSError:
        return False


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def wait_empty(groups: ControlGroups, name: str) -> bool:
    """Kill everybody in a group and wait for their end, a while. For a thread."""
    until = time.monotonic() + _KILL_WAIT_S
    while not groups.kill(name):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
