"""From nothing to a cluster that is ready: what is missing is built, the node started, its components in their order."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from e2e.cluster import debian
from e2e.cluster.component import Component
from e2e.cluster.control_plane import api_components, controller_components
from e2e.cluster.errors import ClusterFault
from e2e.cluster.go_tools import go_programs
from e2e.cluster.kubeconfig import render_kubeconfig
from e2e.cluster.kubectl import KubectlFailed
from e2e.cluster.machine import Machine, inspect_machine, snapshotter_for
from e2e.cluster.namespaces import launch, pid_namespace
from e2e.cluster.node_components import node_components, render_files
from e2e.cluster.node_images import busybox_archive, pause_archive
from e2e.cluster.node_spec import NodeSpec
from e2e.cluster.orders import first_process
from e2e.cluster.pki import accounts_of, make_certificates, make_tokens, render_tokens
from e2e.cluster.places import BUILD, SOURCE, ClusterPlaces
from e2e.cluster.progress import Progress
from e2e.cluster.running import Description, RunningCluster, is_held, tail, take_down
from e2e.cluster.topology import Topology
from e2e.cluster.waiting import wait_for

NODE_LOG = "node"
_SETUP_S, _API_S, _NODE_S, _ACCOUNT_S = 60.0, 120.0, 180.0, 60.0
_MANY_STARTS = 6
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def prepare(build: Path, progress: Progress) -> dict[str, Path]:
    """Build and fetch whatever is missing; return the programs. The first time takes minutes."""
    debian.install_missing(debian.NODE_PROGRAMS, progress)
    programs = go_programs(build, progress)
    programs["etcd"] = debian.etcd_program(build, progress)
    pause_archive(build)
    busybox_archive(build)
    return programs


def bring_up(
    places: ClusterPlaces, progress: Progress, *, api_only: bool = False, build: Path = BUILD
) -> RunningCluster:
    """Return a cluster that is ready. Raises MachineLacks, ClusterFault; then nothing is left of it but its logs."""
    machine = inspect_machine()
    programs = prepare(build, progress)
    places.directory.mkdir(parents=True, exist_ok=True)
    topology = Topology(places.name)
    with _locked(places) as lock:
        _write_everything(topology, places, machine, programs, api_only=api_only)
        launch(_spec_file(topology, places), places.log(NODE_LOG), lock)
    try:
        cluster = _await_node(topology, places, programs, api_only=api_only)
        _start_components(cluster, progress, build, api_only=api_only)
    except BaseException:
        with suppress(ClusterFault):  # the first fault is the one to tell
            take_down(places)
        raise
    return cluster


@contextmanager
def _locked(places: ClusterPlaces) -> Iterator[int]:
    """Give the lock's descriptor, for the node to inherit. Raises ClusterFault when a cluster of this name holds it."""
    with places.lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterFault(
                f"cluster {places.name!r} runs already", hint="use it, or: python -m e2e.cluster down"
            ) from None
        yield lock.fileno()


def _spec_file(topology: Topology, places: ClusterPlaces) -> Path:
    return places.config / topology.nodes[0].name / "init.json"


def _write_everything(
    topology: Topology,
    places: ClusterPlaces,
    machine: Machine,
    programs: Mapping[str, Path],
    *,
    api_only: bool,
) -> None:
    """Write certificates, tokens and configuration anew, and begin with an empty disk."""
    for directory in (places.node, places.config, places.logs):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
    node = topology.nodes[0]
    certificates = make_certificates(topology, datetime.now(UTC))
    accounts = accounts_of(topology)
    tokens = make_tokens(accounts, lambda: secrets.token_hex(16))
    files: dict[str, bytes] = {**certificates, "tokens.csv": render_tokens(accounts, tokens).encode()}
    for account in accounts:
        text = render_kubeconfig(topology.api_url, certificates["ca.crt"], account.user, tokens[account.name])
        files[f"{account.name}.kubeconfig"] = text.encode()
    of_node = render_files(
        topology,
        node,
        places.config,
        snapshotter=snapshotter_for(places.node),
        lowers_oom_score=machine.lowers_oom_score,
    )
    files |= {f"{node.name}/{name}": text.encode() for name, text in of_node.items()}
    components = api_components(topology, places, programs, alone=api_only)
    if not api_only:
        components += controller_components(topology, places, programs)
        components += node_components(topology, node, places.config, programs, _PATH)
    cgroup = "" if api_only else topology.cgroup_of(node)
    spec = _spec(topology, places, components, cgroup)
    files[f"{node.name}/init.json"] = spec.render().encode()
    for name, content in files.items():
        _write_secretly(places.config / name, content)
    _write_secretly(places.kubeconfig, files["admin.kubeconfig"])


def _spec(
    topology: Topology, places: ClusterPlaces, components: tuple[Component, ...], cgroup: str
) -> NodeSpec:
    node = topology.nodes[0]
    hosts = "127.0.0.1 localhost\n" + "".join(f"{each.address} {each.name}\n" for each in topology.nodes)
    return NodeSpec(
        name=node.name,
        address=node.address,
        prefix=int(node.pods.rpartition("/")[2]),
        hosts=hosts,
        cgroup=cgroup,
        disk=places.node,
        cni=places.config / node.name / "cni",
        logs=places.logs,
        socket=places.socket,
        source=SOURCE,
        components=components,
    )


def _write_secretly(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)


def _await_node(
    topology: Topology, places: ClusterPlaces, programs: Mapping[str, Path], *, api_only: bool
) -> RunningCluster:
    """Wait until the node is set up and takes orders."""
    node = topology.nodes[0]
    wait_for(lambda: first_process(places.socket) is not None or not is_held(places), _SETUP_S)
    first = first_process(places.socket)
    if first is None:
        raise ClusterFault("the node was not set up", log=tail(places.log(NODE_LOG), 10))
    places.description.write_text(
        Description(
            node=node.name,
            address=node.address,
            api_url=topology.api_url,
            is_api_only=api_only,
            pid_namespace=pid_namespace(first),
            kubectl=str(programs["kubectl"]),
            ctr=str(programs["ctr"]),
            etcd=str(programs["etcd"]),
        ).render()
    )
    return RunningCluster(places)


def _start_components(cluster: RunningCluster, progress: Progress, build: Path, *, api_only: bool) -> None:
    """Start what needs nobody at once, the rest when the API server is ready."""
    runtime = () if api_only else ("containerd",)
    for component in ("etcd", "kube-apiserver", *runtime):
        cluster.start(component)
    if not api_only:
        wait_ready(cluster, "containerd", lambda: bool(cluster.ctr("version")), _API_S)
        for archive in (pause_archive(build), busybox_archive(build)):
            cluster.import_image(archive)
    wait_ready(cluster, "kube-apiserver", lambda: answers(cluster), _API_S)
    progress("the API server is ready")
    if api_only:
        return
    for component in ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"):
        cluster.start(component)
    wait_ready(cluster, "kubelet", lambda: node_is_ready(cluster), _NODE_S)
    progress(f"{cluster.description.node} is ready")
    wait_ready(
        cluster,
        "kube-controller-manager",
        lambda: cluster.kubectl().get("serviceaccount", "default", "default") is not None,
        _ACCOUNT_S,
    )


def wait_ready(
    cluster: RunningCluster, component: str, is_ready: Callable[[], bool], timeout_s: float
) -> None:
    """Wait for a condition that a component brings about. Raises ClusterFault naming who keeps it from being, with its log."""

    def outcome() -> str | None:
        culprit = _often_started(cluster)
        if culprit:
            return culprit
        try:
            return "ready" if is_ready() else None
        except ClusterFault:
            return None  # nobody answers yet

    found = wait_for(outcome, timeout_s)
    if found == "ready":
        return
    culprit = found or _not_running(cluster) or component
    why = "ends again and again" if found else f"is not ready after {timeout_s:g} s"
    raise ClusterFault(f"{culprit} {why}", log=cluster.log_tail(culprit))


def answers(cluster: RunningCluster) -> bool:
    """Tell whether the API server says that it is ready."""
    try:
        return cluster.kubectl().run("get", "--raw=/readyz", timeout_s=10.0) == "ok"
    except KubectlFailed:
        return False


def node_is_ready(cluster: RunningCluster) -> bool:
    """Tell whether the Node object says so."""
    node = cluster.kubectl().get("node", cluster.description.node) or {}
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _often_started(cluster: RunningCluster) -> str | None:
    return next((name for name, it in cluster.status().items() if it["starts"] >= _MANY_STARTS), None)


def _not_running(cluster: RunningCluster) -> str | None:
    return next((name for name, it in cluster.status().items() if it["wanted"] and it["pid"] is None), None)
