"""Where everything of the clusters lies: what is built once, and the state of each running cluster."""

import re
from dataclasses import dataclass
from pathlib import Path

import e2e
from e2e.cluster.errors import ClusterFault
from e2e.cluster.topology import Node

SOURCE = Path(str(e2e.__file__)).resolve().parent.parent
BUILD = SOURCE / "build" / "cluster"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlaces:
    """The files of one node. `own` is the directory that is its alone; None for the first node, whose files are the cluster's."""

    own: Path | None
    disk: Path
    logs: Path
    socket: Path
    lock: Path
    config: Path

    @property
    def spec(self) -> Path:
        """What the node's first process is told; a node that has it belongs to the cluster."""
        return self.config / "init.json"

    def log(self, component: str) -> Path:
        """The log of a component."""
        return self.logs / f"{component}.log"


@dataclass(frozen=True, slots=True)
class ClusterPlaces:
    """The directory of one cluster; gone when the cluster is down, but for its logs."""

    directory: Path

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.directory.name

    @property
    def config(self) -> Path:
        """Certificates, tokens and configuration files; for root alone."""
        return self.directory / "config"

    @property
    def logs(self) -> Path:
        """One file a component; kept after the end."""
        return self.directory / "logs"

    @property
    def node(self) -> Path:
        """What is on the first node's disk: images, containers, volumes, etcd; and /srv of all nodes."""
        return self.directory / "node"

    @property
    def socket(self) -> Path:
        """Where the first node's first process takes orders."""
        return self.directory / "init.sock"

    @property
    def lock(self) -> Path:
        """Held as long as anything of the first node lives."""
        return self.directory / "lock"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.directory / "kubeconfig"

    @property
    def description(self) -> Path:
        """What `up` has started: JSON."""
        return self.directory / "cluster.json"

    def log(self, component: str) -> Path:
        """The log of a component of the first node."""
        return self.logs / f"{component}.log"

    def of(self, node: Node) -> NodePlaces:
        """Return the places of a node."""
        own = self.directory / node.name if node.index else None
        return NodePlaces(
            own=own,
            disk=own / "disk" if own else self.node,
            logs=self.logs / node.name if own else self.logs,
            socket=own / "init.sock" if own else self.socket,
            lock=own / "lock" if own else self.lock,
            config=self.config / node.name,
        )


def places_of(name: str, build: Path = BUILD) -> ClusterPlaces:
    """Return the places of the cluster of this name. Raises ClusterFault for a name that cannot be a host's."""
    if not _NAME.fullmatch(name):
        raise ClusterFault(
            f"{name!r} cannot be a cluster's name",
            hint="use up to 20 of a-z, 0-9 and -, beginning with a letter",
        )
    return ClusterPlaces(build / "run" / name)


def known_clusters(build: Path = BUILD) -> tuple[ClusterPlaces, ...]:
    """Return every cluster that has been started and not been taken down, running or not."""
    return tuple(ClusterPlaces(path.parent) for path in sorted((build / "run").glob("*/cluster.json")))
