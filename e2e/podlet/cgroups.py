"""Control groups of a node: version 1 (each controller its own tree) and version 2 (one tree).

Everything of a node lies beneath one top directory of its own, so that removing it is safe.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from e2e.podlet import mounts
from e2e.podlet.errors import NodeFailure

_ROOT = Path("/sys/fs/cgroup")
_NOT_CONTROLLERS = frozenset({"rw", "ro", "xattr", "noprefix", "clone_children", "none"})
_REMOVAL_S = 10.0
_POLL_S = 0.02
_CPU_PERIOD_US = 100_000


def top_name(node_id: str) -> str:
    """Return the directory that every cgroup of a node lies beneath."""
    return f"sidemount-podlet-{node_id}"


def is_unified() -> bool:
    """Tell whether this machine runs cgroup v2 alone."""
    return (_ROOT / "cgroup.controllers").exists()


def hide_unified_tree() -> None:
    """Give this mount namespace a pure v1 view: crun refuses a machine that has both ("hybrid")."""
    if is_unified():
        return
    trees = {
        Path(mount.mount_point).name: [o for o in mount.super_options if o not in _NOT_CONTROLLERS]
        for mount in mounts.mount_table()
        if mount.fstype == "cgroup" and mount.mount_point.startswith(f"{_ROOT}/")
    }
    if not trees:
        raise NodeFailure(f"no cgroup controllers are mounted beneath {_ROOT}: podlet can set no limits")
    mounts.mount("tmpfs", "cgroup", _ROOT, "mode=755", "nosuid", "nodev", "noexec")
    for name, controllers in trees.items():
        is_named = any(controller.startswith("name=") for controller in controllers)
        (_ROOT / name).mkdir()
        mounts.mount("cgroup", "cgroup", _ROOT / name, *(["none"] if is_named else []), *controllers)
        for controller in controllers:
            if not is_named and controller != name:
                (_ROOT / controller).symlink_to(name)  # "cpu,cpuacct" is one tree under three names


def directories(path: str) -> tuple[Path, ...]:
    """Return the directories of a cgroup that exist, one for each tree."""
    trees = [_ROOT] if is_unified() else sorted(p for p in _ROOT.iterdir() if p.is_dir())
    return tuple(tree / path for tree in trees if (tree / path).is_dir())


def processes(path: str) -> frozenset[int]:
    """Return the processes in a cgroup and all beneath it."""
    found: set[int] = set()
    for directory in directories(path):
        for here, _, _ in os.walk(directory):
            try:
                found.update(int(line) for line in (Path(here) / "cgroup.procs").read_text().split())
            except OSError:
                continue  # removed between the walk and the read
    return frozenset(found - {0})


def kill_all(path: str) -> None:
    """SIGKILL every process in the cgroup until none is left. Raises TimeoutError naming those that stay."""
    deadline = time.monotonic() + _REMOVAL_S
    while left := processes(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(left)} in {path} do not die")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL_S)


def remove(path: str) -> None:
    """Remove an empty cgroup and what lies beneath, in every tree. Raises OSError when it stays busy."""
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        try:
            for directory in directories(path):
                for here, _, _ in os.walk(directory, topdown=False):
                    os.rmdir(here)
        except FileNotFoundError:
            continue
        except OSError:
            # The kernel lets go of a group a moment after its last process has been reaped.
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return


def limit_pod(path: str, memory_bytes: int | None, cpu_milli: int | None) -> None:
    """Create the pod's cgroup with the limits of the pod as a whole. Raises NodeFailure, OSError."""
    unified = is_unified()
    if unified:
        _delegate(path)
    memory = _ROOT / path if unified else _ROOT / "memory" / path
    cpu = _ROOT / path if unified else _ROOT / "cpu" / path
    for directory in {memory, cpu}:
        directory.mkdir(parents=True, exist_ok=True)
    if memory_bytes is not None:
        (memory / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(memory_bytes))
    if cpu_milli is not None:
        quota = cpu_quota_us(cpu_milli)
        name, value = (
            ("cpu.max", f"{quota} {_CPU_PERIOD_US}") if unified else ("cpu.cfs_quota_us", str(quota))
        )
        (cpu / name).write_text(value)


def _delegate(path: str) -> None:
    """Give the controllers down to the pod's own cgroup (v2: a group has what its parent delegates)."""
    for parent in (_ROOT, *reversed((_ROOT / path).parents[: len(Path(path).parts) - 1])):
        parent.mkdir(exist_ok=True)
        try:
            (parent / "cgroup.subtree_control").write_text("+cpu +memory")
        except OSError as error:
            raise NodeFailure(f"{parent} delegates no cpu and memory controllers: {error}") from error


def limits_swap(path: str) -> bool:
    """Tell whether the kernel counts swap in this (existing) cgroup."""
    if is_unified():
        return (_ROOT / path / "memory.swap.max").exists()
    return (_ROOT / "memory" / path / "memory.memsw.limit_in_bytes").exists()


def cpu_quota_us(cpu_milli: int) -> int:
    """Return the CFS quota in each 100 ms, at least kubelet's 1 ms."""
    return max(cpu_milli * _CPU_PERIOD_US // 1000, 1000)


def oom_kills(path: str) -> int:
    """Return how many processes of a cgroup the kernel has killed for want of memory."""
    unified = is_unified()
    counters = _ROOT / path / "memory.events" if unified else _ROOT / "memory" / path / "memory.oom_control"
    try:
        lines = counters.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def on_out_of_memory(path: str, react: Callable[[], None]) -> None:
    """Call back when a v1 cgroup runs out of memory: kubelet's memory.oom.group exists on v2 alone.

    The kernel also wakes the watcher when the group is removed; then nothing was killed and nothing happens.
    """
    memory = _ROOT / "memory" / path
    event = os.eventfd(0, os.EFD_CLOEXEC)
    control = os.open(memory / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
    (memory / "cgroup.event_control").write_text(f"{event} {control}")

    def watch() -> None:
        os.eventfd_read(event)
        os.close(event)
        os.close(control)
        deadline = time.monotonic() + 1.0
        while memory.exists() and time.monotonic() < deadline:
            if oom_kills(path):
                react()
                return
            time.sleep(_POLL_S)

    threading.Thread(target=watch, name=f"oom-{path}", daemon=True).start()


def left_of(node_id: str) -> list[str]:
    """Return every cgroup directory of a node that is still there. Those of other nodes may come and go meanwhile."""
    return [at for at, *_ in os.walk("/sys/fs/cgroup") if node_id in at]
