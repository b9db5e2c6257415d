"""A cluster that runs: its nodes, its API; and its end."""

import json
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass

from e2e.cluster.errors import ClusterFault
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.locks import is_locked
from e2e.cluster.namespaces import entering_network, first_processes_of
from e2e.cluster.orders import first_process
from e2e.cluster.places import ClusterPlaces, NodePlaces
from e2e.cluster.running_node import RunningNode
from e2e.cluster.topology import Node, Topology
from e2e.cluster.waiting import wait_for
from e2e.podlet import cgroups

_END_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What `up` leaves behind for those who come later."""

    node: str
    address: str
    api_url: str
    is_api_only: bool
    pid_namespace: int
    kubectl: str
    ctr: str
    etcd: str

    def render(self) -> str:
        """Return it as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, indent=1) + "\n"


class RunningCluster(RunningNode):
    """A cluster by its places. What is done to it without naming a node is done to the first one."""

    def __init__(self, places: ClusterPlaces) -> None:
        self.places = places
        self.topology = Topology(places.name)
        try:
            self.description = Description(**json.loads(places.description.read_text()))
        except FileNotFoundError:
            raise ClusterFault(
                f"there is no cluster {places.name!r}", hint="start it: python -m e2e.cluster up"
            ) from None
        first = self.topology.nodes[0]
        super().__init__(first.name, places.of(first), self.description.ctr, self.topology.cgroup_of(first))

    @property
    def nodes(self) -> tuple[RunningNode, ...]:
        """The nodes that belong to the cluster now, running or not; the first is the cluster itself."""
        more = (node for node in self.topology.nodes[1:] if self.places.of(node).spec.exists())
        return (self, *(self._node(node) for node in more))

    def node(self, name: str) -> RunningNode:
        """Return a node by its name. Raises ClusterFault when none of that name has joined."""
        known = {node.name: node for node in self.nodes}
        if name not in known:
            raise ClusterFault(
                f"cluster {self.places.name!r} has no node {name!r}", hint=f"it has {', '.join(known)}"
            )
        return known[name]

    def kubectl(self) -> Kubectl:
        """Return kubectl of the administrator, run from outside the nodes' mounts and processes."""
        return Kubectl(self.places.kubeconfig, entering_network(self.pid), self.description.kubectl)

    def _node(self, node: Node) -> RunningNode:
        return RunningNode(
            node.name, self.places.of(node), self.description.ctr, self.topology.cgroup_of(node)
        )


def take_down(places: ClusterPlaces) -> bool:
    """End a cluster and remove all of it but its logs. Return whether there was one. Raises ClusterFault if it does not end."""
    if not places.directory.exists():
        return False
    was_there = places.description.exists() or is_held(places)
    _kill(places)
    if not wait_for(lambda: not is_held(places), _END_S):
        raise ClusterFault(
            f"the processes of cluster {places.name!r} do not end: {list(first_processes_of(places))}",
            hint="look at their /proc/PID/stack",
        )
    topology = Topology(places.name)
    for node in topology.nodes:
        remove_cgroup(topology.cgroup_of(node))
    own = [at for node in topology.nodes if (at := places.of(node).own) is not None]
    for directory in (places.node, places.config, *own):
        shutil.rmtree(directory, ignore_errors=True)
    for file in (places.description, places.kubeconfig, places.socket):
        file.unlink(missing_ok=True)
    return was_there


def is_held(places: ClusterPlaces) -> bool:
    """Tell whether anything of any node lives."""
    return any(is_locked(places.of(node).lock) for node in Topology(places.name).nodes)


def kill_first_process(places: NodePlaces) -> bool:
    """Kill what listens as a node's first process, and with it all of the node. Return whether there was one."""
    first = first_process(places.socket)
    if first is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)
    return True


def remove_cgroup(cgroup: str) -> None:
    """Remove what a node's end leaves of its cgroup. Raises ClusterFault."""
    try:
        cgroups.remove(cgroup)
    except OSError as error:
        raise ClusterFault(f"the cgroup {cgroup} cannot be removed: {error}") from error


def _kill(places: ClusterPlaces) -> None:
    """Kill the nodes' first processes: those that listen, and what was started as such and does not listen."""
    held = [at for node in Topology(places.name).nodes if is_locked((at := places.of(node)).lock)]
    killed = [kill_first_process(at) for at in held]  # every one, whatever becomes of another
    if all(killed):
        return
    for pid in first_processes_of(places):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
