"""Nodes beside the first: their files, their names, their link."""

from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterFault
from e2e.cluster.locks import is_locked, locked
from e2e.cluster.node_link import plan_link
from e2e.cluster.places import ClusterPlaces
from e2e.cluster.running import is_held, take_down
from e2e.cluster.topology import MOST_NODES, Topology

_TOPOLOGY = Topology("one")


def test_no_two_nodes_share_a_file_an_address_or_a_cgroup() -> None:
    places = [ClusterPlaces(Path("/run/one")).of(node) for node in _TOPOLOGY.nodes]
    for found in (
        {at.disk for at in places}, {at.logs for at in places}, {at.socket for at in places}, {at.lock for at in places},
        {at.spec for at in places}, {node.address for node in _TOPOLOGY.nodes}, {node.pods for node in _TOPOLOGY.nodes},
        {_TOPOLOGY.cgroup_of(node) for node in _TOPOLOGY.nodes},
    ):  # fmt: skip
        assert len(found) == MOST_NODES


def test_the_first_node_s_files_are_where_they_have_always_been() -> None:
    places = ClusterPlaces(Path("/run/one"))
    first = places.of(_TOPOLOGY.nodes[0])
    assert (first.disk, first.socket, first.lock) == (places.node, places.socket, places.lock)
    assert first.log("kubelet") == places.log("kubelet")


def test_a_node_is_found_by_its_name() -> None:
    assert _TOPOLOGY.node("node-2") == _TOPOLOGY.nodes[2]
    with pytest.raises(ClusterFault, match="'node-9' is no node's name; there can be node-0, node-1"):
        _TOPOLOGY.node("node-9")


def test_a_link_lies_in_the_nodes_own_networks_alone() -> None:
    hub, spoke = _TOPOLOGY.nodes[0], _TOPOLOGY.nodes[2]
    commands = [" ".join(command) for command in plan_link(hub, 100, spoke, 200)]
    assert all(
        command.startswith(("nsenter -t 100 -n -- ip ", "nsenter -t 200 -n -- ip ")) for command in commands
    )
    assert commands[0].endswith("link add uplink type veth peer name node-2 netns 100")
    assert (
        "nsenter -t 200 -n -- ip route replace 10.88.0.0/16 via 10.88.0.1 dev uplink onlink src 10.88.2.1"
        in commands
    )
    assert (
        "nsenter -t 100 -n -- ip route replace 10.88.2.0/24 via 10.88.2.1 dev node-2 onlink src 10.88.0.1"
        in commands
    )


def test_a_cluster_is_held_by_any_of_its_nodes(tmp_path: Path) -> None:
    """A joined node lives on when the first one dies: there is no second cluster of that name meanwhile, and down ends it."""
    places = ClusterPlaces(tmp_path / "one")
    second = places.of(_TOPOLOGY.nodes[1])
    second.disk.mkdir(parents=True)
    with locked(second.lock):
        assert is_locked(second.lock)
        assert is_held(places)
        with pytest.raises(BlockingIOError), locked(second.lock):
            raise AssertionError("two hold one lock")
    assert not is_held(places)
    take_down(places)
    assert [path.name for path in places.directory.iterdir()] == ["lock"]
