"""Names and addresses of a cluster and of its nodes. All of them are of network namespaces, so clusters may share them."""

from dataclasses import dataclass

from e2e.cluster.errors import ClusterFault

NETWORK = "10.88.0.0/16"
"""Every pod of every node."""
SERVICES = "10.0.0.0/24"
API_SERVICE = "10.0.0.1"
DOMAIN = "cluster.local"
API_PORT = 6443
KUBELET_PORT = 10250
PAUSE_IMAGE = "sidemount.test/pause:1"
MOST_NODES = 4
"""So many have certificates and tokens from the start: a node joins without a new start of the API server."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node: a network of its own, whose bridge has the node's address."""

    index: int

    @property
    def name(self) -> str:
        """The host's and the Node object's name."""
        return f"node-{self.index}"

    @property
    def address(self) -> str:
        """The bridge's address: the node's own, and the gateway of its pods."""
        return f"10.88.{self.index}.1"

    @property
    def pods(self) -> str:
        """The network of the node's pods."""
        return f"10.88.{self.index}.0/24"


@dataclass(frozen=True, slots=True)
class Topology:
    """A cluster: its control plane lives on the first node. `nodes` are all that there may be."""

    name: str
    nodes: tuple[Node, ...] = tuple(Node(index) for index in range(MOST_NODES))

    @property
    def api_address(self) -> str:
        """Where the API server listens."""
        return self.nodes[0].address

    @property
    def api_url(self) -> str:
        """The API server's URL inside the namespaces."""
        return f"https://{self.api_address}:{API_PORT}"

    def node(self, name: str) -> Node:
        """Return a node by its name. Raises ClusterFault."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterFault(
            f"{name!r} is no node's name", hint=f"there can be {', '.join(node.name for node in self.nodes)}"
        )

    def cgroup_of(self, node: Node) -> str:
        """Return the cgroup beneath which everything of a node's pods is: clusters share the machine's cgroup tree."""
        return f"sidemount-cluster-{self.name}-{node.index}"
