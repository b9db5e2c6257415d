"""The files of a cluster and of its nodes: certificates, tokens, configuration. Written anew with every start of a cluster."""

import os
import secrets
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from e2e.cluster.component import Component
from e2e.cluster.control_plane import api_components, controller_components
from e2e.cluster.kubeconfig import render_kubeconfig
from e2e.cluster.machine import Machine, counts_disk, snapshotter_for
from e2e.cluster.node_components import node_components, render_files
from e2e.cluster.node_spec import NodeSpec
from e2e.cluster.pki import accounts_of, make_certificates, make_tokens, render_tokens
from e2e.cluster.places import SOURCE, ClusterPlaces
from e2e.cluster.topology import Node, Topology

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_cluster(topology: Topology, places: ClusterPlaces) -> None:
    """Write certificates and tokens anew, for every node that there may be, and begin with an empty disk."""
    own = [at for node in topology.nodes if (at := places.of(node).own) is not None]
    for directory in (places.node, places.config, places.logs, *own):
        shutil.rmtree(directory, ignore_errors=True)
    for directory in (places.node, places.config, places.logs):
        directory.mkdir(mode=0o700)
    certificates = make_certificates(topology, datetime.now(UTC))
    accounts = accounts_of(topology)
    tokens = make_tokens(accounts, lambda: secrets.token_hex(16))
    files: dict[str, bytes] = {**certificates, "tokens.csv": render_tokens(accounts, tokens).encode()}
    for account in accounts:
        text = render_kubeconfig(topology.api_url, certificates["ca.crt"], account.user, tokens[account.name])
        files[f"{account.name}.kubeconfig"] = text.encode()
    for name, content in files.items():
        _write_secretly(places.config / name, content)
    _write_secretly(places.kubeconfig, files["admin.kubeconfig"])


def write_node(
    topology: Topology,
    node: Node,
    places: ClusterPlaces,
    machine: Machine,
    programs: Mapping[str, Path],
    *,
    api_only: bool = False,
) -> None:
    """Write what a node's components and its first process are told; the first node has the control plane too."""
    at = places.of(node)
    for directory in (at.disk, at.logs):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    of_node = render_files(
        topology,
        node,
        places.config,
        snapshotter=snapshotter_for(at.disk),
        lowers_oom_score=machine.lowers_oom_score,
        counts_disk=counts_disk(at.disk),
    )
    for name, text in of_node.items():
        _write_secretly(at.config / name, text.encode())
    components: tuple[Component, ...] = ()
    if node == topology.nodes[0]:
        components += api_components(topology, places, programs, alone=api_only)
        components += () if api_only else controller_components(topology, places, programs)
    if not api_only:
        components += node_components(topology, node, places.config, programs, _PATH)
    spec = _spec(topology, node, places, components, "" if api_only else topology.cgroup_of(node))
    _write_secretly(at.spec, spec.render().encode())


def _spec(
    topology: Topology, node: Node, places: ClusterPlaces, components: tuple[Component, ...], cgroup: str
) -> NodeSpec:
    hosts = "127.0.0.1 localhost\n" + "".join(f"{each.address} {each.name}\n" for each in topology.nodes)
    at = places.of(node)
    return NodeSpec(
        name=node.name,
        address=node.address,
        prefix=int(node.pods.rpartition("/")[2]),
        hosts=hosts,
        cgroup=cgroup,
        disk=at.disk,
        shared=places.node / "srv",
        cni=at.config / "cni",
        logs=at.logs,
        socket=at.socket,
        source=SOURCE,
        components=components,
    )


def _write_secretly(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
