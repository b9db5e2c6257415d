"""Arguments and configuration files of the components."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.component import Component, component_of, flags
from e2e.cluster.control_plane import api_components, controller_components
from e2e.cluster.node_components import node_components, render_files
from e2e.cluster.node_spec import NodeSpec, parse_spec
from e2e.cluster.places import ClusterPlaces
from e2e.cluster.topology import Node, Topology

_PLACES = ClusterPlaces(Path("/clusters/run/one"))
_TOPOLOGY = Topology("one", (Node(0), Node(1)))
_NAMES = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "containerd",
)  # fmt: skip
_PROGRAMS = {name: Path("/tools") / name for name in _NAMES}


def _all() -> dict[str, Component]:
    made = (
        *api_components(_TOPOLOGY, _PLACES, _PROGRAMS, alone=False),
        *controller_components(_TOPOLOGY, _PLACES, _PROGRAMS),
        *node_components(_TOPOLOGY, _TOPOLOGY.nodes[1], _PLACES.config, _PROGRAMS, "/usr/sbin:/usr/bin"),
    )
    return {component.name: component for component in made}


def _files() -> Mapping[str, str]:
    node = _TOPOLOGY.nodes[1]
    return render_files(
        _TOPOLOGY, node, _PLACES.config, snapshotter="overlayfs", lowers_oom_score=False, counts_disk=True
    )


def test_flags_are_written_as_go_reads_them() -> None:
    assert flags(secure_port=1, allow_privileged=True, name="x=y") == (
        "--secure-port=1",
        "--allow-privileged=true",
        "--name=x=y",
    )


def test_every_component_is_there_and_survives_json() -> None:
    assert set(_all()) == set(_NAMES)
    for component in _all().values():
        assert component_of(json.loads(json.dumps(component.to_json()))) == component


def test_no_secret_is_in_an_argument() -> None:
    """Arguments are world-readable in /proc: keys and tokens are named by their files."""
    files = [
        word for component in _all().values() for word in component.argv if ".key" in word or "token" in word
    ]
    assert files
    assert all("=/clusters/run/one/config/" in word for word in files)


@pytest.mark.parametrize("alone", [True, False])
def test_an_api_server_alone_asks_for_no_service_accounts(alone: bool) -> None:
    """Nobody makes them there: every pod would be refused."""
    _, api = api_components(_TOPOLOGY, _PLACES, _PROGRAMS, alone=alone)
    assert ("--disable-admission-plugins=ServiceAccount" in api.argv) is alone


def test_a_node_s_settings_name_that_node_alone() -> None:
    files = _files()
    kubelet = json.loads(files["kubelet.json"])
    assert kubelet["cgroupRoot"] == "/sidemount-cluster-one-1"
    assert kubelet["address"] == "10.88.1.1"
    assert kubelet["tlsCertFile"] == "/clusters/run/one/config/kubelet-node-1.crt"
    assert json.loads(files["kube-proxy.json"])["hostnameOverride"] == "node-1"
    network = json.loads(files["cni/10-bridge.conflist"])["plugins"][0]
    assert network["ipam"]["ranges"] == [[{"subnet": "10.88.1.0/24"}]]
    assert "--node-ip=10.88.1.1" in _all()["kubelet"].argv


@pytest.mark.parametrize(("can", "restricted"), [(True, False), (False, True)])
def test_containerd_leaves_oom_scores_alone_where_root_may_not_lower_them(
    can: bool, restricted: bool
) -> None:
    text = render_files(
        _TOPOLOGY, Node(0), _PLACES.config, snapshotter="native", lowers_oom_score=can, counts_disk=False
    )["containerd.toml"]
    plugins: dict[str, Any] = tomllib.loads(text)["plugins"]
    assert plugins["io.containerd.cri.v1.runtime"]["restrict_oom_score_adj"] is restricted
    assert plugins["io.containerd.cri.v1.images"]["snapshotter"] == "native"


def test_containerd_finds_its_shim_beside_itself() -> None:
    assert _all()["containerd"].env["PATH"] == "/tools:/usr/sbin:/usr/bin"


def test_a_spec_is_read_as_it_was_written() -> None:
    spec = NodeSpec(
        name="node-0",
        address="10.88.0.1",
        prefix=24,
        hosts="127.0.0.1 localhost\n",
        cgroup="c",
        disk=Path("/d"),
        shared=Path("/d/srv"),
        cni=Path("/c"),
        logs=Path("/l"),
        socket=Path("/s"),
        source=Path("/src"),
        components=(Component(name="a", argv=("a", "--b"), env={"C": "d"}),),
    )
    assert parse_spec(spec.render()) == spec
