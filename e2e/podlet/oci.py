"""The OCI runtime spec of a container, as containerd's CRI plugin writes it for a kubelet.

Source: https://github.com/opencontainers/runtime-spec/blob/main/config.md
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from e2e.podlet import cgroups
from e2e.podlet.image import Account
from e2e.podlet.pod import Container, Pod, Propagation, Resources, Security
from e2e.podlet.seccomp import runtime_default

Json = dict[str, object]

_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
_DEFAULT_CAPABILITIES = frozenset({
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
    "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL",
    "CAP_AUDIT_WRITE",
})  # fmt: skip
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/scsi", "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
    "/sys/firmware",
)  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
# Made anew for each container, or no devices at all.
_NOT_DEVICES = frozenset({"pts", "shm", "fd", "mqueue", "console", "stdin", "stdout", "stderr", "ptmx"})
_PROPAGATION = {
    Propagation.NONE: "rprivate",
    Propagation.HOST_TO_CONTAINER: "rslave",
    Propagation.BIDIRECTIONAL: "rshared",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """One bind mount of the container."""

    source: Path
    destination: str
    read_only: bool
    propagation: Propagation = Propagation.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What is run in the container, worked out."""

    argv: tuple[str, ...]
    env: tuple[str, ...]
    account: Account
    groups: tuple[int, ...]
    working_dir: str
    oom_score_adj: int | None


def container_spec(
    pod: Pod,
    container: Container,
    process: Process,
    binds: tuple[Bind, ...],
    *,
    root: Path,
    pod_cgroup: str,
    cgroup: str,
    pause_pid: int,
) -> Json:
    """Render config.json of a container that joins the namespaces that the pause process holds."""
    security = container.security
    capabilities = bounding_capabilities(security)
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": security.read_only_root},
        "process": _process(process, capabilities, security),
        "mounts": [*_system_mounts(security.privileged), *map(_bind, _parents_first(binds))],
        "linux": {
            "cgroupsPath": f"/{cgroup}",
            "namespaces": _joined_namespaces(pod, pause_pid),
            "resources": _resources(
                container.resources, security.privileged, cgroups.limits_swap(pod_cgroup)
            ),
            "rootfsPropagation": _root_propagation(binds),
            **_confinement(security, capabilities),
        },
    }


def pause_spec(pod: Pod, root: Path, argv: tuple[str, ...], cgroup: str) -> Json:
    """Render config.json of the process that holds the pod's namespaces."""
    kinds = ["pid", "ipc", "uts", "mount"] + ([] if pod.host_network else ["network"])
    process = Process(
        argv=argv,
        env=(),
        account=Account(uid=65535, gid=65535, groups=()),
        groups=(),
        working_dir="/",
        oom_score_adj=None,
    )
    security = Security(
        privileged=False, run_as_user=None, run_as_group=None, run_as_non_root=False, read_only_root=True,
        no_new_privileges=True, cap_add=(), cap_drop=("ALL",), seccomp="Unconfined",
    )  # fmt: skip
    return {
        "ociVersion": "1.0.2",
        "hostname": pod.hostname,
        "root": {"path": str(root), "readonly": True},
        "process": _process(process, frozenset(), security),
        "mounts": _system_mounts(privileged=False),
        "linux": {"cgroupsPath": f"/{cgroup}", "namespaces": [{"type": kind} for kind in kinds]},
    }


def bounding_capabilities(security: Security) -> frozenset[str]:
    """Return the bounding set: containerd's defaults, changed by add and drop."""
    if security.privileged:
        return _own_capabilities()
    found = _own_capabilities() if "ALL" in security.cap_add else _DEFAULT_CAPABILITIES
    if "ALL" in security.cap_drop:
        found = frozenset()
    added, dropped = (
        {"CAP_" + name.removeprefix("CAP_") for name in names if name != "ALL"}
        for names in (security.cap_add, security.cap_drop)
    )
    return frozenset((found | added) - dropped)


def _own_capabilities() -> frozenset[str]:
    """Return what the node itself may give away."""
    with open("/proc/self/status") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd:"))
    return frozenset(f"CAP_{name}" for bit, name in enumerate(_CAPABILITIES) if mask >> bit & 1)


def _process(process: Process, capabilities: frozenset[str], security: Security) -> Json:
    names = sorted(capabilities)
    rendered: Json = {
        "terminal": False,
        "args": list(process.argv),
        "env": list(process.env),
        "cwd": process.working_dir,
        "user": {
            "uid": process.account.uid,
            "gid": process.account.gid,
            "additionalGids": sorted({*process.groups, *process.account.groups}),
        },
        # No inheritable or ambient set: another user than root loses them all at exec, as in Kubernetes.
        "capabilities": {
            "bounding": names,
            "effective": names,
            "permitted": names,
            "inheritable": [],
            "ambient": [],
        },
        "noNewPrivileges": security.no_new_privileges,
    }
    if process.oom_score_adj is not None:
        rendered["oomScoreAdj"] = process.oom_score_adj
    return rendered


def _system_mounts(privileged: bool) -> list[Json]:
    read_only = [] if privileged else ["ro"]
    safe = ["nosuid", "noexec", "nodev"]
    return [
        _special("/proc", "proc", safe),
        _special("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _special(
            "/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]
        ),
        _special("/dev/mqueue", "mqueue", safe),
        _special("/sys", "sysfs", [*safe, *read_only]),
        _special("/sys/fs/cgroup", "cgroup", [*safe, "relatime", *read_only]),
    ]


def _special(destination: str, fstype: str, options: list[str]) -> Json:
    return {"destination": destination, "type": fstype, "source": fstype, "options": options}


def _bind(bind: Bind) -> Json:
    options = ["rbind", _PROPAGATION[bind.propagation], "ro" if bind.read_only else "rw"]
    return {"destination": bind.destination, "type": "bind", "source": str(bind.source), "options": options}


def _parents_first(binds: tuple[Bind, ...]) -> list[Bind]:
    return sorted(binds, key=lambda bind: len(Path(bind.destination).parts))


def _root_propagation(binds: tuple[Bind, ...]) -> str:
    """Return what the root mount needs, or the binds' own propagation is lost (measured with runc and crun)."""
    asked = {bind.propagation for bind in binds}
    if Propagation.BIDIRECTIONAL in asked:
        return "rshared"
    return "rslave" if Propagation.HOST_TO_CONTAINER in asked else "rprivate"


def _joined_namespaces(pod: Pod, pause_pid: int) -> list[Json]:
    joined = {"ipc": "ipc", "uts": "uts"}
    if not pod.host_network:
        joined["network"] = "net"
    if pod.share_process_namespace:
        joined["pid"] = "pid"
    own = ["mount"] if pod.share_process_namespace else ["mount", "pid"]
    if cgroups.is_unified():
        own.append("cgroup")
    found: list[Json] = [{"type": kind} for kind in own]
    found += [{"type": kind, "path": f"/proc/{pause_pid}/ns/{name}"} for kind, name in joined.items()]
    return found


def _resources(resources: Resources, privileged: bool, limits_swap: bool) -> Json:
    rendered: Json = {"devices": [{"allow": privileged, "access": "rwm"}]}
    cpu: Json = {"shares": max((resources.cpu_request_milli or 0) * 1024 // 1000, 2)}
    if resources.cpu_limit_milli:
        cpu.update(quota=cgroups.cpu_quota_us(resources.cpu_limit_milli), period=100_000)
    rendered["cpu"] = cpu
    if resources.memory_limit_bytes:
        rendered["memory"] = {"limit": resources.memory_limit_bytes}
        if limits_swap:
            rendered["memory"] = {"limit": resources.memory_limit_bytes, "swap": resources.memory_limit_bytes}
        if cgroups.is_unified():
            rendered["unified"] = {"memory.oom.group": "1"}
    return rendered


def _confinement(security: Security, capabilities: frozenset[str]) -> Json:
    if security.privileged:
        return {"devices": _host_devices()}
    found: Json = {"maskedPaths": list(_MASKED), "readonlyPaths": list(_READ_ONLY)}
    if security.seccomp == "RuntimeDefault":
        found["seccomp"] = runtime_default(capabilities)
    return found


def _host_devices() -> list[Json]:
    """Return every device node of the machine, /dev/fuse among them."""
    found: list[Json] = []
    for here, directories, files in os.walk("/dev"):
        directories[:] = [name for name in directories if name not in _NOT_DEVICES]
        for name in files:
            node = os.lstat(os.path.join(here, name))
            if name in _NOT_DEVICES or not (stat.S_ISCHR(node.st_mode) or stat.S_ISBLK(node.st_mode)):
                continue
            found.append({
                "path": os.path.join(here, name),
                "type": "c" if stat.S_ISCHR(node.st_mode) else "b",
                "major": os.major(node.st_rdev),
                "minor": os.minor(node.st_rdev),
                "fileMode": stat.S_IMODE(node.st_mode),
                "uid": node.st_uid,
                "gid": node.st_gid,
            })  # fmt: skip
    return found
