"""From nothing to a cluster that is ready: what is missing is built, the node started, its components in their order."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.cluster import debian
from e2e.cluster.errors import ClusterFault
from e2e.cluster.go_tools import go_programs
from e2e.cluster.kubectl import KubectlFailed
from e2e.cluster.locks import is_locked, locked
from e2e.cluster.machine import inspect_machine
from e2e.cluster.namespaces import launch, pid_namespace
from e2e.cluster.node_files import write_cluster, write_node
from e2e.cluster.node_images import busybox_archive, pause_archive
from e2e.cluster.orders import first_process
from e2e.cluster.places import BUILD, ClusterPlaces, NodePlaces
from e2e.cluster.progress import Progress
from e2e.cluster.running import Description, RunningCluster, is_held, take_down
from e2e.cluster.running_node import RunningNode, tail
from e2e.cluster.topology import Topology
from e2e.cluster.waiting import wait_for

NODE_LOG = "node"
API_S, NODE_S = 120.0, 180.0
_SETUP_S, _ACCOUNT_S = 60.0, 60.0
_MANY_STARTS = 6


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
    first = topology.nodes[0]
    with _free(places) as lock:
        write_cluster(topology, places)
        write_node(topology, first, places, machine, programs, api_only=api_only)
        launch(places.of(first).spec, places.log(NODE_LOG), lock)
    try:
        cluster = _await_node(topology, places, programs, api_only=api_only)
        _start_components(cluster, progress, build, api_only=api_only)
    except BaseException:
        with suppress(ClusterFault):  # the first fault is the one to tell
            take_down(places)
        raise
    return cluster


@contextmanager
def _free(places: ClusterPlaces) -> Iterator[int]:
    """Give the lock's descriptor, for the first node to inherit. Raises ClusterFault when a cluster of this name runs."""
    taken = ClusterFault(
        f"cluster {places.name!r} runs already", hint="use it, or: python -m e2e.cluster down"
    )
    if is_held(places):  # by a node that joined, while the first one is dead
        raise taken
    try:
        with locked(places.lock) as lock:
            yield lock
    except BlockingIOError:
        raise taken from None


def await_first_process(places: NodePlaces) -> int:
    """Wait until a node is set up and takes orders; return its first process. Raises ClusterFault."""
    wait_for(lambda: first_process(places.socket) is not None or not is_locked(places.lock), _SETUP_S)
    first = first_process(places.socket)
    if first is None:
        raise ClusterFault("the node was not set up", log=tail(places.log(NODE_LOG), 10))
    return first


def _await_node(
    topology: Topology, places: ClusterPlaces, programs: Mapping[str, Path], *, api_only: bool
) -> RunningCluster:
    """Wait until the first node takes orders, and write down what there is."""
    node = topology.nodes[0]
    first = await_first_process(places.of(node))
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
        wait_ready(cluster, "containerd", lambda: bool(cluster.ctr("version")), API_S)
        for archive in (pause_archive(build), busybox_archive(build)):
            cluster.import_image(archive)
    wait_ready(cluster, "kube-apiserver", lambda: answers(cluster), API_S)
    progress("the API server is ready")
    if api_only:
        return
    for component in ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"):
        cluster.start(component)
    wait_ready(cluster, "kubelet", lambda: node_is_ready(cluster), NODE_S)
    progress(f"{cluster.name} is ready")
    wait_ready(
        cluster,
        "kube-controller-manager",
        lambda: cluster.kubectl().get("serviceaccount", "default", "default") is not None,
        _ACCOUNT_S,
    )


def wait_ready(node: RunningNode, component: str, is_ready: Callable[[], bool], timeout_s: float) -> None:
    """Wait for a condition that a component brings about. Raises ClusterFault naming who keeps it from being, with its log."""

    def outcome() -> str | None:
        culprit = _often_started(node)
        if culprit:
            return culprit
        try:
            return "ready" if is_ready() else None
        except ClusterFault:
            return None  # nobody answers yet

    found = wait_for(outcome, timeout_s)
    if found == "ready":
        return
    culprit = found or _not_running(node) or component
    why = "ends again and again" if found else f"is not ready after {timeout_s:g} s"
    raise ClusterFault(f"{culprit} {why}", log=node.log_tail(culprit))


def answers(cluster: RunningCluster) -> bool:
    """Tell whether the API server says that it is ready."""
    try:
        return cluster.kubectl().run("get", "--raw=/readyz", timeout_s=10.0) == "ok"
    except KubectlFailed:
        return False


def node_is_ready(cluster: RunningCluster, name: str = "") -> bool:
    """Tell whether the Node object says so; that of the first node unless one is named."""
    node = cluster.kubectl().get("node", name or cluster.name) or {}
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _often_started(node: RunningNode) -> str | None:
    return next((name for name, it in node.status().items() if it["starts"] >= _MANY_STARTS), None)


def _not_running(node: RunningNode) -> str | None:
    return next((name for name, it in node.status().items() if it["wanted"] and it["pid"] is None), None)
