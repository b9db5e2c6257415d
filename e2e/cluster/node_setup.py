"""What makes fresh namespaces a node: its own directories, network, name and kernel settings. A plan first, then its execution.

The machine's files are seen through overlays whose upper layer is the node's, so that nothing which a component creates in
/etc or /var is the machine's. Every mount is made while all are private and shared at the end: each is then a peer group of its own,
and a volume does not show up twice.
"""

import os
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterFault
from e2e.cluster.node_spec import NodeSpec
from e2e.podlet import cgroups

_OWN = Path("/run/sidemount-cluster")
_OVERLAID = ("/etc", "/var")
_ON_DISK = (
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
)
_BRIDGE = "cni0"
_STEP_S = 30.0
# kubelet writes these, and they are of the kernel, not of a namespace: it finds files that hold already what it wants.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_FUSE_CONTROL = Path("/sys/fs/fuse/connections")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Run:
    """A program to run."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """A directory that has to be there."""

    path: Path


@dataclass(frozen=True, slots=True)
class Write:
    """A file that has to hold a text."""

    path: Path
    text: str


Step = Run | MakeDirectory | Write


def plan_setup(
    spec: NodeSpec, *, has_fuse_control: bool, cgroup_trees: Sequence[Path], boot_id: str
) -> tuple[Step, ...]:
    """Return what turns fresh, private namespaces into the node, in order.

    `cgroup_trees`: where the node's cgroup has to be; kubelet wants it to exist. `boot_id`: by which it tells one start of the
    node from another.
    """
    return (
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"),
        *_overlays(spec.source),
        Write(Path("/etc/hosts"), spec.hosts),
        Write(Path("/etc/hostname"), f"{spec.name}\n"),
        *(step for place in _ON_DISK for step in _bind(spec.disk / place.lstrip("/"), Path(place))),
        *_bind(spec.shared, Path("/srv")),
        *_bind(spec.cni, Path("/etc/cni/net.d")),
        *(step for name, value in _KERNEL_SETTINGS.items() for step in _guard(name, value)),
        *_guard("kernel/random/boot_id", boot_id),
        *(() if has_fuse_control else (_run("mount", "-t", "fusectl", "fusectl", str(_FUSE_CONTROL)),)),
        *(MakeDirectory(tree / spec.cgroup) for tree in cgroup_trees if spec.cgroup),
        _run("mount", "--make-rshared", "/"),
        *_network(spec),
        _run("hostname", spec.name),
    )


def set_up(spec: NodeSpec) -> None:
    """Execute the plan in this process's namespaces. Raises ClusterFault naming the step that did not work."""
    if cgroups.is_unified() and spec.cgroup:
        (_CGROUP / "cgroup.subtree_control").write_text("+cpu +cpuset +io +memory +pids")
    trees = [_CGROUP] if cgroups.is_unified() else [path for path in _CGROUP.iterdir() if path.is_dir()]
    plan = plan_setup(
        spec, has_fuse_control=_is_mount(_FUSE_CONTROL), cgroup_trees=trees, boot_id=str(uuid.uuid4())
    )
    for step in plan:
        match step:
            case Run(argv):
                _execute(argv)
            case MakeDirectory(path):
                path.mkdir(parents=True, exist_ok=True)
            case Write(path, text):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)


def _overlays(source: Path) -> tuple[Step, ...]:
    """Return overlays; where the project itself lies beneath one, it is put back as it was."""
    steps: list[Step] = []
    hidden = any(source.is_relative_to(place) for place in _OVERLAID)
    kept = _OWN / "source"
    if hidden:
        steps += [MakeDirectory(kept), _run("mount", "--rbind", str(source), str(kept))]
    for place in _OVERLAID:
        upper, work = (_OWN / kind / place.lstrip("/") for kind in ("upper", "work"))
        options = f"lowerdir={place},upperdir={upper},workdir={work}"
        steps += [MakeDirectory(upper), MakeDirectory(work)]
        steps.append(_run("mount", "-t", "overlay", "-o", options, "overlay", place))
    if hidden:
        steps.append(_run("mount", "--rbind", str(kept), str(source)))
    return tuple(steps)


def _bind(source: Path, target: Path) -> tuple[Step, ...]:
    return (
        MakeDirectory(source),
        MakeDirectory(target),
        _run("mount", "--bind", str(source), str(target)),
        _run("mount", "--make-private", str(target)),
    )


def _guard(name: str, value: str) -> tuple[Step, ...]:
    stand_in = _OWN / "sys" / name
    return Write(stand_in, f"{value}\n"), _run("mount", "--bind", str(stand_in), f"/proc/sys/{name}")


def _network(spec: NodeSpec) -> tuple[Step, ...]:
    """Return the loopback and the bridge of the pods; what goes elsewhere, such as to a Service, starts from its address."""
    return (
        _run("ip", "link", "set", "lo", "up"),
        _run("ip", "link", "add", _BRIDGE, "type", "bridge"),
        _run("ip", "address", "add", f"{spec.address}/{spec.prefix}", "dev", _BRIDGE),
        _run("ip", "link", "set", _BRIDGE, "up"),
        _run("ip", "route", "add", "default", "dev", _BRIDGE),
        Write(Path("/proc/sys/net/ipv4/ip_forward"), "1\n"),
    )


def _run(*argv: str) -> Run:
    return Run(argv)


def _execute(argv: Sequence[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_STEP_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterFault(f"the node cannot be set up: {' '.join(argv)}: {error}") from error
    if done.returncode:
        raise ClusterFault(f"the node cannot be set up: {' '.join(argv)}: {done.stderr.strip()}")


def _is_mount(path: Path) -> bool:
    return path.exists() and os.stat(path).st_dev != os.stat(path.parent).st_dev
