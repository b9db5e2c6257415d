"""Which reviews concern us, and what of pod, namespace and cluster decides the delivery."""

import json
from typing import Any

import pytest

from sidemount.model.decide import PodSecurity
from sidemount.model.facts import ClusterFacts, NamespaceFacts
from tests.webhook.admission import SETTINGS, Json, mutated, pod_with, validated
from webhook.gate import delivery_facts, namespace_of
from webhook.injection_settings import InjectionSettings
from webhook.pod import decode_pod
from webhook.shape import PodShape, shape_of


def shape(**spec: Any) -> PodShape:
    """Return the shape of a pod."""

    return shape_of(decode_pod(json.dumps(pod_with(**spec)).encode()), "ml", (), frozenset())


def facts_of(labels: dict[str, str] | None = None, cluster: ClusterFacts | None = None, **spec: Any) -> Any:
    """Return the delivery facts of a pod in a namespace with labels."""
    namespace = NamespaceFacts(name="ml", labels=labels or {})
    return delivery_facts(shape(**spec), namespace, cluster or ClusterFacts(), SETTINGS)


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT", "FUTURE", None])
def test_only_creation_is_changed(operation: Any) -> None:
    pod = pod_with()
    reviewed = mutated(pod if operation != "DELETE" else None, operation=operation, old=pod)
    assert reviewed.outcome.allowed
    assert reviewed.patch == []
    assert reviewed.reason == "NotAPodCreate"


@pytest.mark.parametrize(
    ("sub_resource", "kind"),
    [
        ("ephemeralcontainers", "Pod"),
        ("resize", "Pod"),
        ("status", "Pod"),
        ("binding", "Binding"),
        ("eviction", "Eviction"),
        ("exec", "PodExecOptions"),
        ("proxy", "PodProxyOptions"),
    ],
)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_kk92557_subresources_are_allowed_without_a_patch(
    sub_resource: str, kind: str, operation: str
) -> None:
    body: Json = pod_with() if kind == "Pod" else {"kind": kind, "metadata": {"name": "p"}}
    reviewed = mutated(body, operation=operation, old=pod_with(), sub_resource=sub_resource, kind=kind)
    assert reviewed.outcome.allowed
    assert reviewed.patch == []
    assert validated(
        body, operation=operation, old=pod_with(), sub_resource=sub_resource, kind=kind
    ).outcome.allowed


@pytest.mark.parametrize(
    ("kind", "resource", "group"),
    [
        ("Deployment", "deployments", "apps"),
        ("Pod", "pods", "example.com"),
        ("PodTemplate", "podtemplates", ""),
    ],
)
def test_other_kinds_are_allowed_without_a_patch(kind: str, resource: str, group: str) -> None:
    reviewed = mutated(pod_with(), kind=kind, resource=resource, group=group)
    assert reviewed.outcome.allowed
    assert reviewed.patch == []


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", "sidemount-system"])
def test_system_and_own_namespaces_are_never_touched(namespace: str) -> None:
    for pod in (pod_with(), pod_with({"sidemount.io/inject": "maybe"})):
        for reviewed in (mutated(pod, namespace), validated(pod, namespace)):
            assert reviewed.outcome.allowed
            assert reviewed.reason == "SystemNamespace"
            assert reviewed.patch == []


def test_own_namespace_is_a_setting() -> None:
    assert (
        mutated(pod_with(), "ml", settings=InjectionSettings(own_namespace="ml")).reason == "SystemNamespace"
    )


@pytest.mark.parametrize(
    "annotations",
    [
        {"kubernetes.io/config.mirror": "abc"},
        {"kubernetes.io/config.mirror": ""},
        {"kubernetes.io/config.source": "file"},
        {"kubernetes.io/config.source": "http"},
    ],
)
def test_kube_image_keeper560_mirror_pods_are_never_touched(annotations: dict[str, str]) -> None:
    pod = pod_with({"volume.sidemount.io/train": "dir:///srv/d", **annotations})
    assert mutated(pod).reason == "MirrorPod"
    assert mutated(pod).patch == []
    assert validated(pod).outcome.allowed


def test_pod_that_says_it_came_through_the_api_is_no_mirror() -> None:
    pod = pod_with({"volume.sidemount.io/train": "dir:///srv/d", "kubernetes.io/config.source": "api"})
    assert mutated(pod).patch


@pytest.mark.parametrize(
    ("requested", "of_object", "expected"),
    [("ml", "", "ml"), ("ml", "other", "ml"), (None, "web", "web"), ("", "web", "web"), ("", "", "default")],
)
def test_J644_the_request_names_the_namespace(requested: str | None, of_object: str, expected: str) -> None:
    assert namespace_of(requested, of_object) == expected


def test_istio8636_pods_of_controllers_have_neither_name_nor_namespace() -> None:
    pod = pod_with()
    pod["metadata"] = {"generateName": "web-", "annotations": pod["metadata"]["annotations"]}
    assert mutated(pod, "ml").patch
    assert mutated(pod, "kube-system").reason == "SystemNamespace"
    pod["metadata"].update(name="", namespace="")
    assert mutated(pod, "ml").patch


@pytest.mark.parametrize("value", ["True", "FALSE", "no", "0", "", " false", "disabled"])
def test_opt_out_is_a_strict_boolean(value: str) -> None:
    reviewed = mutated(pod_with({"sidemount.io/inject": value}))
    assert not reviewed.outcome.allowed
    assert '"true" or "false"' in reviewed.message
    assert "sidemount.io/inject" in reviewed.message


def test_S0_12_opting_out_by_annotation_or_label() -> None:
    asks = {"volume.sidemount.io/train": "dir:///srv/d"}
    assert mutated(pod_with({**asks, "sidemount.io/inject": "false"})).reason == "OptedOut"
    assert mutated(pod_with({**asks, "sidemount.io/inject": "true"})).patch
    labelled = pod_with(asks)
    labelled["metadata"]["labels"] = {"sidemount.io/inject": "false"}
    assert mutated(labelled).reason == "OptedOut"
    assert mutated(labelled).patch == []
    labelled["metadata"]["labels"] = {"sidemount.io/inject": "perhaps"}
    assert not mutated(labelled).outcome.allowed
    labelled["metadata"]["annotations"]["sidemount.io/inject"] = "true"
    assert mutated(labelled).patch, "the annotation decides where both are there"


def test_opting_out_is_possible_in_any_namespace() -> None:
    pod = pod_with({"volume.sidemount.io/train": "dir:///srv/d", "sidemount.io/inject": "false"})
    assert mutated(pod, "plain").outcome.allowed


@pytest.mark.parametrize("namespace", ["plain", "never-heard-of"])
def test_a_pod_that_asks_is_denied_where_an_admin_has_not_opened_the_namespace(namespace: str) -> None:
    for reviewed in (mutated(pod_with(), namespace), validated(pod_with(), namespace)):
        assert not reviewed.outcome.allowed
        assert reviewed.reason == "NamespaceNotEnabled"
        assert namespace in reviewed.message
        assert "kubectl label namespace" in reviewed.message


@pytest.mark.parametrize("namespace", ["plain", "never-heard-of", "ml"])
def test_a_pod_that_does_not_ask_is_untouched_anywhere(namespace: str) -> None:
    reviewed = mutated(pod_with({"example.com/x": "y"}), namespace)
    assert reviewed.outcome.allowed
    assert reviewed.patch == []
    assert "warnings" not in reviewed.response


@pytest.mark.parametrize(
    ("label", "level"),
    [
        (None, PodSecurity.PRIVILEGED),
        ("privileged", PodSecurity.PRIVILEGED),
        ("baseline", PodSecurity.BASELINE),
        ("restricted", PodSecurity.RESTRICTED),
        ("Restricted", PodSecurity.RESTRICTED),
        ("nonsense", PodSecurity.RESTRICTED),
    ],
)
def test_pod_security_level_is_read_as_the_api_server_does(label: str | None, level: PodSecurity) -> None:
    labels = {} if label is None else {"pod-security.kubernetes.io/enforce": label}
    assert facts_of(labels).pod_security is level


@pytest.mark.parametrize(
    ("spec", "is_windows"),
    [
        ({}, False),
        ({"os": {"name": "windows"}}, True),
        ({"os": {"name": "linux"}}, False),
        ({"nodeSelector": {"kubernetes.io/os": "windows"}}, True),
        ({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}, True),
        ({"nodeSelector": {"kubernetes.io/os": "linux"}}, False),
    ],
)
def test_dapr842_windows_pods_are_recognised(spec: Json, is_windows: bool) -> None:
    assert facts_of(**spec).windows is is_windows


def test_runtime_class_user_namespace_and_virtual_node_are_read() -> None:
    assert facts_of(runtimeClassName="gvisor").sandboxed
    assert facts_of(runtimeClassName="kata-qemu").sandboxed
    assert not facts_of(runtimeClassName="nvidia").sandboxed
    assert not facts_of(hostUsers=False).host_users
    assert facts_of(hostUsers=True).host_users
    assert facts_of(hostUsers=None).host_users
    assert facts_of(nodeSelector={"type": "virtual-kubelet"}).virtual_node
    assert not facts_of(nodeSelector={"type": "metal"}).virtual_node


@pytest.mark.parametrize(
    ("profile", "level", "allowed"),
    [
        (None, "restricted", True),
        ("restricted", "restricted", True),
        ("restricted", "privileged", True),
        ("baseline", "restricted", False),
        ("baseline", "baseline", True),
        ("privileged", "baseline", False),
        ("privileged", "privileged", True),
        ("nonsense", "baseline", False),
    ],
)
def test_inline_csi_volumes_need_a_driver_safe_for_the_level(
    profile: str | None, level: str, allowed: bool
) -> None:
    levels = {} if profile is None else {"csi.sidemount.io": profile}
    cluster = ClusterFacts(csi_drivers=frozenset({"csi.sidemount.io"}), csi_inline_levels=levels)
    found = facts_of({"pod-security.kubernetes.io/enforce": level}, cluster)
    assert found.inline_csi_allowed is allowed
    assert found.csi_driver_present
