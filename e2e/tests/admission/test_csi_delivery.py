"""Pods that ask and cannot take a sidecar, on a real API server: inline CSI volumes that pass Pod Security, or a refusal that says why."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.waiting import wait_for
from e2e.tests.admission.admitting import OPEN, WAIT_S, Admitting, ours, pod, refusal, until_refused
from tests.manifests.class_cases import manifest

_ENFORCE = "pod-security.kubernetes.io/enforce"
_DRIVER: Json = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "CSIDriver",
    "metadata": {
        "name": "csi.sidemount.io",
        "labels": {"security.kubernetes.io/csi-ephemeral-volume-profile": "restricted"},
    },
    "spec": {
        "attachRequired": False,
        "podInfoOnMount": True,
        "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    },
}
_CLASS: Json = {
    "deliveries": ["sidecar", "csi"],
    "namespaces": {},
    "filesystem": "objects",
    "credentials": {"secretKeys": ["key"]},
}
_POD_CONTEXT: Json = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTEXT: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _driver(admitting: Admitting, manifest_: Json) -> Iterator[None]:
    admitting.api.create(manifest_)
    try:
        yield
    finally:
        admitting.api.delete("csidriver", "csi.sidemount.io")


@pytest.fixture
def driver(admitting: Admitting) -> Iterator[None]:
    """The CSIDriver as the manifests have it."""
    yield from _driver(admitting, _DRIVER)


@pytest.fixture
def only_persistent(admitting: Admitting) -> Iterator[None]:
    """A CSIDriver that lets no pod declare a volume."""
    yield from _driver(admitting, {**_DRIVER, "spec": {"attachRequired": False}})


@pytest.fixture
def scheme(admitting: Admitting, unique: str) -> Iterator[str]:
    """The scheme of a class that offers both deliveries; the class has the same name."""
    name = f"x-{unique[-6:]}"
    admitting.api.create(manifest({**_CLASS, "sources": [f"{name}://**"]}, name))
    try:
        yield name
    finally:
        admitting.api.delete("fdc", name)


@pytest.fixture
def restricted(admitting: Admitting, unique: str) -> str:
    """A namespace that is open to injection and enforces the strictest level."""
    return admitting.namespace(unique, {**OPEN, _ENFORCE: "restricted"})


def _hardened(name: str, namespace: str, source: str, mounts: list[Json], **annotations: str) -> Json:
    """Return a pod that Pod Security `restricted` lets in."""
    app = {"name": "app", "image": "i", "securityContext": _CONTEXT, "volumeMounts": mounts}
    asked = {"volume.sidemount.io/train": source, **annotations}
    return pod(name, asked, namespace, securityContext=_POD_CONTEXT, containers=[app])


_MOUNTS: list[Json] = [
    {"name": "train", "mountPath": "/data"},
    {"name": "train", "mountPath": "/part", "subPath": "a/b", "readOnly": True},
]


def _until_admitted(admitting: Admitting, asked: Json) -> tuple[Json, str]:
    """Create a pod as soon as the webhook knows of the CSIDriver: of one made a moment ago a watch tells a moment later."""
    told: list[str] = [""]

    def look() -> bool:
        told[0] = refusal(admitting.api, asked, "--dry-run=server")
        return not told[0]

    assert wait_for(look, WAIT_S), told[0]
    return admitting.create(asked)


@pytest.mark.usefixtures("driver")
def test_S3_11_a_pod_of_a_restricted_namespace_has_its_volume_by_csi(
    admitting: Admitting, restricted: str, scheme: str
) -> None:
    """Nothing privileged comes in; the API server's own Pod Security and our policies let it through; another look changes nothing."""
    found, told = _until_admitted(
        admitting, _hardened("trainer", restricted, f"{scheme}://bucket?secret=keys", _MOUNTS)
    )
    assert ours(found) == []
    csi = {each["name"]: each["csi"] for each in found["spec"]["volumes"] if "csi" in each}
    assert csi.pop("train") == {
        "driver": "csi.sidemount.io",
        "nodePublishSecretRef": {"name": "keys"},
        "volumeAttributes": {"class": scheme, "source": f"{scheme}://bucket"},
    }
    ((view, part),) = csi.items()
    assert part == {
        "driver": "csi.sidemount.io",
        "readOnly": True,
        "nodePublishSecretRef": {"name": "keys"},
        "volumeAttributes": {
            "class": scheme,
            "readOnly": "true",
            "source": f"{scheme}://bucket",
            "subPath": "a/b",
        },
    }
    mounts = [m for m in found["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] in ("/data", "/part")]  # fmt: skip
    assert mounts == [
        {"name": "train", "mountPath": "/data", "mountPropagation": "HostToContainer"},
        {"name": view, "mountPath": "/part", "mountPropagation": "HostToContainer", "readOnly": True},
    ]
    assert "csi, class" in told
    assert "(CsiFallback)" in told
    status = json.loads(found["metadata"]["annotations"]["sidemount.io/status"])
    assert status["volumes"]["train"]["delivery"] == "csi"
    assert "violate" not in told


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("level", ["baseline", "privileged"])
def test_csi_is_chosen_where_it_must_be_alone(
    admitting: Admitting, unique: str, scheme: str, level: str
) -> None:
    namespace = admitting.namespace(unique, {**OPEN, _ENFORCE: level})
    asked = _hardened("trainer", namespace, f"{scheme}://b", _MOUNTS)
    found, _ = _until_admitted(admitting, asked)
    assert ours(found) == ([] if level == "baseline" else ["sidemount-keeper", "sidemount-train"])
    opted = _hardened("csi", namespace, f"{scheme}://b?delivery=csi", _MOUNTS)
    assert ours(_until_admitted(admitting, opted)[0]) == []


def test_without_a_csi_driver_it_is_refused_with_both_reasons(
    admitting: Admitting, restricted: str, scheme: str
) -> None:
    told = admitting.refused(_hardened("trainer", restricted, f"{scheme}://b", _MOUNTS))
    assert "Pod Security restricted, which forbids the keeper's privilege (PodSecurity)" in told
    assert "the cluster has no CSIDriver csi.sidemount.io (NoNodePlugin)" in told
    assert "install the node plugin" in told


@pytest.mark.usefixtures("only_persistent")
def test_a_csi_driver_without_inline_volumes_is_told(
    admitting: Admitting, restricted: str, scheme: str
) -> None:
    asked = _hardened("trainer", restricted, f"{scheme}://b", _MOUNTS)
    until_refused(admitting.api, asked, lambda told: "(NoInlineVolumes)" in told)


def test_a_csi_driver_that_comes_and_goes(admitting: Admitting, restricted: str, scheme: str) -> None:
    asked = _hardened("trainer", restricted, f"{scheme}://b", _MOUNTS)
    assert "NoNodePlugin" in refusal(admitting.api, asked, "--dry-run=server")
    for _ in _driver(admitting, _DRIVER):
        _until_admitted(admitting, asked)
    until_refused(admitting.api, asked, lambda told: "(NoNodePlugin)" in told)


@pytest.mark.usefixtures("driver")
def test_S2_05_what_a_csi_pod_asks_for_cannot_change(
    admitting: Admitting, restricted: str, scheme: str
) -> None:
    """S2-06: a label can."""
    _until_admitted(admitting, _hardened("trainer", restricted, f"{scheme}://b", _MOUNTS))
    admitting.api.run("label", "pod", "trainer", f"--namespace={restricted}", "team=a")
    key = "volume.sidemount.io/train"
    with pytest.raises(KubectlFailed, match="Immutable"):
        admitting.api.run("annotate", "--overwrite", "pod", "trainer", f"--namespace={restricted}", f"{key}={scheme}://c")  # fmt: skip


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"source": "s3://other"}, "HandMade"),
        ({"class": "another"}, "HandMade"),
        ({"volume": "pvc-1"}, "HandMade"),
    ],
    ids=["source", "class", "volume"],
)
def test_a_hand_made_inline_volume_beside_an_annotation_is_refused(
    admitting: Admitting, restricted: str, scheme: str, change: dict[str, str], why: str
) -> None:
    asked = _hardened("trainer", restricted, f"{scheme}://b", _MOUNTS)
    _until_admitted(admitting, asked)
    forged: dict[str, Any] = {**asked, "metadata": {**asked["metadata"], "name": "forged"}}
    attributes = {"class": scheme, "source": f"{scheme}://b", **change}
    source = {"driver": "csi.sidemount.io", "volumeAttributes": attributes}
    forged["spec"] = {**asked["spec"], "volumes": [{"name": "train", "csi": source}]}
    assert why in admitting.refused(forged)
