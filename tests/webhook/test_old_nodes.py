"""Nodes of different versions: a sidecar never lands where nobody would start it as one, and an old node stops only who may land on it."""

from typing import Any

import pytest

from sidemount.host.facts_manifests import NodeFacts, parse_fact
from tests.webhook.admission import Json, Reviewed, mutated, pod_with
from tests.webhook.test_fitting import facts_with

POOL = {"pool": "old", "kubernetes.io/os": "linux"}


def node(name: str, version: str, labels: Json | None = None, **spec: Any) -> Json:
    """Return a node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {"nodeInfo": {"kubeletVersion": version}},
    }


def admitted(*nodes: Json, source: str = "dir:///srv/d", **spec: Any) -> Reviewed:
    """Return what becomes of a pod on a cluster of these nodes."""
    return mutated(pod_with({"volume.sidemount.io/train": source}, **spec), facts=facts_with(*nodes))


def test_one_old_node_among_new_ones_is_named_with_the_ways_out() -> None:
    refused = admitted(node("n1", "v1.37.2"), node("n2", "v1.28.9-gke.100", POOL))
    assert refused.reason == "NoDelivery"
    assert 'node "n2" is 1.28, native sidecars need 1.29 (OldCluster)' in refused.message
    assert "upgrade or cordon the node, or keep the pod off it with a nodeSelector" in refused.message


def test_csi_is_the_answer_where_the_class_has_it() -> None:
    found = admitted(node("n2", "v1.28.9"), source="s3://b/k")
    assert found.outcome.volumes[0].delivery == "csi"
    assert found.outcome.volumes[0].reason.value == "CsiFallback"


@pytest.mark.parametrize(
    ("old", "spec"),
    [
        pytest.param(node("old", "v1.28.0", POOL, unschedulable=True), {}, id="cordoned"),
        pytest.param(node("vk", "v1.14.3", {"type": "virtual-kubelet"}), {}, id="virtual"),
        pytest.param(node("win", "v1.27.0", {"kubernetes.io/os": "windows"}), {}, id="windows"),
        pytest.param(node("old", "v1.28.0", POOL), {"nodeSelector": {"pool": "new"}}, id="another pool"),
        pytest.param(node("old", "v1.28.0", POOL), {"nodeSelector": {"gpu": "yes"}}, id="without the label"),
    ],
)
def test_an_old_node_that_the_pod_cannot_land_on_does_not_count(old: Json, spec: Json) -> None:
    assert admitted(node("n1", "v1.33.0"), old, **spec).outcome.allowed


def test_a_selector_that_an_old_node_fits_keeps_nobody_off_it() -> None:
    refused = admitted(node("n1", "v1.33.0"), node("old", "v1.28.0", POOL), nodeSelector={"pool": "old"})
    assert not refused.outcome.allowed


def test_the_oldest_of_several_is_named() -> None:
    refused = admitted(node("a", "v1.28.0"), node("b", "v1.26.3"), node("c", "v1.27.0"))
    assert 'node "b" is 1.26' in refused.message


def test_versions_from_1_29_on_may_differ() -> None:
    """A kubelet may be three minor versions behind its API server."""
    assert admitted(node("a", "v1.29.0"), node("b", "v1.32.1"), node("c", "v1.37.2+k3s1")).outcome.allowed


def test_labels_are_kept_of_old_nodes_alone() -> None:
    """A node has dozens of them, and a cluster thousands of nodes."""
    young, old = (parse_fact(node("n", version, POOL)) for version in ("v1.30.0", "v1.28.0"))
    assert isinstance(young, NodeFacts)
    assert young.labels == {}
    assert isinstance(old, NodeFacts)
    assert old.labels == POOL
