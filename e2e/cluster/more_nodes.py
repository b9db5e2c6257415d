"""Nodes that join a running cluster and leave it, and the power switch of any node."""

import shutil
from pathlib import Path

from e2e.cluster.bring_up import (
    API_S,
    NODE_LOG,
    NODE_S,
    answers,
    await_first_process,
    node_is_ready,
    prepare,
    wait_ready,
)
from e2e.cluster.errors import ClusterFault
from e2e.cluster.locks import locked
from e2e.cluster.machine import inspect_machine
from e2e.cluster.namespaces import launch
from e2e.cluster.node_files import write_node
from e2e.cluster.node_link import link
from e2e.cluster.places import BUILD
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, kill_first_process, remove_cgroup
from e2e.cluster.running_node import RunningNode
from e2e.cluster.topology import Node
from e2e.cluster.waiting import wait_for

_END_S = 60.0
_OF_CONTROL_PLANE = ("etcd", "kube-apiserver")
_OF_NODE = ("kubelet", "kube-proxy")


def join(cluster: RunningCluster, progress: Progress, build: Path = BUILD) -> RunningNode:
    """Have one more node join, with the images that the first one has; return it when it is ready. Raises ClusterFault.

    A node that does not become ready is ended and removed.
    """
    if cluster.description.is_api_only:
        raise ClusterFault(
            "a cluster of an API server alone has no nodes", hint="start it without --api-only"
        )
    node = _free_node(cluster)
    programs = prepare(build, progress)
    write_node(cluster.topology, node, cluster.places, inspect_machine(), programs)
    joined = cluster.node(node.name)
    try:
        _start(cluster, joined)
        _copy_images(cluster, joined)
        for component in _OF_NODE:
            joined.start(component)
        wait_ready(joined, "kubelet", lambda: node_is_ready(cluster, joined.name), NODE_S)
    except BaseException:
        power_off(joined)
        joined.node_places.spec.unlink()
        raise
    progress(f"{joined.name} is ready")
    return joined


def leave(cluster: RunningCluster, node: RunningNode) -> None:
    """End a node that has joined, with all that is on it, and have the cluster forget it and its pods. Raises ClusterFault."""
    own = node.node_places.own
    if own is None:
        raise ClusterFault(
            f"{node.name} cannot leave: it has the control plane", hint="end the cluster: down"
        )
    power_off(node)
    api = cluster.kubectl()
    api.delete("node", node.name)
    there = f"--field-selector=spec.nodeName={node.name}"
    api.run("delete", "pods", "--all-namespaces", there, "--force", "--grace-period=0", "--wait=false")
    shutil.rmtree(own, ignore_errors=True)
    node.node_places.spec.unlink(missing_ok=True)


def power_off(node: RunningNode) -> None:
    """End a node at once, as a loss of power would; what is on its disk stays. Raises ClusterFault if it does not end."""
    kill_first_process(node.node_places)
    if not wait_for(lambda: not node.runs(), _END_S):
        raise ClusterFault(f"the processes of {node.name} do not end", hint="look at their /proc/PID/stack")
    remove_cgroup(node.cgroup)


def power_on(cluster: RunningCluster, node: RunningNode) -> None:
    """Start a node that is off, with its disk as it was, and wait until it is ready. Raises ClusterFault."""
    is_first = node.name == cluster.name
    _start(cluster, node)
    if is_first:
        for component in _OF_CONTROL_PLANE:
            node.start(component)
        wait_ready(node, "kube-apiserver", lambda: answers(cluster), API_S)
        for component in ("kube-controller-manager", "kube-scheduler"):
            node.start(component)
    # What the Node object says is from before until kubelet has spoken: its boot is told by its id.
    boot_id = node.on_node("cat", "/proc/sys/kernel/random/boot_id").strip()
    for component in _OF_NODE:
        node.start(component)
    wait_ready(
        node,
        "kubelet",
        lambda: _boot_id(cluster, node) == boot_id and node_is_ready(cluster, node.name),
        NODE_S,
    )


def _boot_id(cluster: RunningCluster, node: RunningNode) -> str:
    found = cluster.kubectl().get("node", node.name) or {}
    boot_id: str = found.get("status", {}).get("nodeInfo", {}).get("bootID", "")
    return boot_id


def _free_node(cluster: RunningCluster) -> Node:
    taken = {node.name for node in cluster.nodes}
    for node in cluster.topology.nodes:
        if node.name not in taken:
            return node
    raise ClusterFault(f"cluster {cluster.places.name!r} has as many nodes as there can be: {len(taken)}")


def _start(cluster: RunningCluster, node: RunningNode) -> None:
    """Start a node's first process, its links and its container runtime."""
    places = node.node_places
    try:
        with locked(places.lock) as lock:
            launch(places.spec, places.log(NODE_LOG), lock)
    except BlockingIOError:
        raise ClusterFault(f"{node.name} runs already") from None
    await_first_process(places)
    _link_all(cluster, node)
    node.start("containerd")
    wait_ready(node, "containerd", lambda: bool(node.ctr("version")), API_S)


def _link_all(cluster: RunningCluster, started: RunningNode) -> None:
    """Make the links of a node that has been started: to the first one, or when it is that, to all others that run."""
    nodes = cluster.topology
    spokes = (
        [node for node in cluster.nodes[1:] if node.runs()] if started.name == cluster.name else [started]
    )
    for spoke in spokes:
        link(nodes.nodes[0], cluster.pid, nodes.node(spoke.name), spoke.pid)


def _copy_images(cluster: RunningCluster, node: RunningNode) -> None:
    """Give a node every image that the first one has, by name."""
    listed = cluster.ctr("images", "ls", "-q").split()
    names = [name for name in listed if not name.startswith("sha256:") and "@sha256:" not in name]
    archive = node.node_places.disk / "images.tar"
    try:
        cluster.ctr("images", "export", str(archive), *names)
        node.import_image(archive)
    finally:
        archive.unlink(missing_ok=True)
