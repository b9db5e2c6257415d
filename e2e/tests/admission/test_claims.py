"""Pods that use a claim of ours: delivered where that can be, left to CSI as they are where it cannot, and never refused."""

import json

import pytest

from e2e.cluster.kubectl import Json
from e2e.tests.admission.admitting import Admitting, claim, claiming, ours, pod, until_refused, volume
from tests.manifests.class_cases import manifest

_CLASS: Json = {
    "deliveries": ["sidecar"],
    "sources": ["dir:///srv/**"],
    "namespaces": {},
    "filesystem": "directory",
}


@pytest.fixture
def bound(admitting: Admitting, ml: str) -> str:
    """A namespace with a claim `data` of a volume of ours."""
    admitting.api.create(volume(ml, (ml, "data")))
    admitting.api.create(claim(ml, volume_name=ml))
    return ml


def test_S3_12_a_claim_of_ours_is_delivered_without_an_annotation(admitting: Admitting, bound: str) -> None:
    """S2-15: the volume's attributes are in what the daemon is told."""
    found, warnings = admitting.create(claiming("reader", bound))
    assert ours(found) == ["sidemount-keeper", "sidemount-train"]
    # The claim stays where scheduler and deletion protection see it.
    assert {"name": "train", "persistentVolumeClaim": {"claimName": "data"}} in found["spec"]["volumes"]
    assert "sidemount: volume train: sidecar, class directory" in warnings
    (keeper, _) = found["spec"]["initContainers"]
    config = json.loads(keeper["env"][0]["value"])
    (mount,) = config["mounts"]
    assert mount["spec"]["source"] == f"dir:///srv/{bound}"
    assert mount["spec"]["filesystem"] == "directory"


def _left(admitting: Admitting, asked: Json) -> None:
    """Check that a pod is let in and nothing of it is changed."""
    found, _ = admitting.create(asked)
    assert ours(found) == []
    kept = {key: value for key, value in found["spec"]["volumes"][0].items() if key != "name"}
    wanted = {key: value for key, value in asked["spec"]["volumes"][0].items() if key != "name"}
    assert kept == wanted
    assert "sidemount.io/status" not in found["metadata"].get("annotations", {})


def test_a_pod_that_cannot_take_a_sidecar_keeps_its_claim(admitting: Admitting, bound: str) -> None:
    """All that changes is that its mount sees what is mounted later."""
    asked = claiming("reader", bound, hostUsers=False)
    found, _ = admitting.create(asked)
    assert ours(found) == []
    assert found["spec"]["volumes"][0] == asked["spec"]["volumes"][0]
    assert found["spec"]["containers"][0]["volumeMounts"][0] == {
        "name": "train",
        "mountPath": "/data",
        "mountPropagation": "HostToContainer",
    }
    assert '"reason":"LeftToCsi"' in found["metadata"]["annotations"]["sidemount.io/status"]


def test_S4_an_exclusive_claim_is_left_to_csi(admitting: Admitting, ml: str) -> None:
    """ReadWriteOncePod: only the kubelet, of volumes that it mounts, sees that no second pod has it."""
    exclusive = volume(ml, (ml, "data"), modes=["ReadWriteOncePod"])
    admitting.api.create(exclusive)
    asked = claim(ml, volume_name=ml)
    asked["spec"]["accessModes"] = ["ReadWriteOncePod"]
    admitting.api.create(asked)
    found, _ = admitting.create(claiming("reader", ml))
    assert ours(found) == []
    assert found["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}


def test_a_provisioned_volume_is_served_from_its_own_directory(admitting: Admitting, ml: str) -> None:
    """Its pool is named by nobody, whichever class allows the path."""
    pool = f"dir:///srv/{ml}"
    admitting.api.create(manifest({**_CLASS, "sources": [pool], "provisions": True}, ml))
    attributes = {"class": ml, "source": pool, "volume": "pvc-1"}
    admitting.api.create(volume(ml, (ml, "data"), attributes=attributes, handle="pvc-1"))
    admitting.api.create(claim(ml, volume_name=ml))
    found, _ = admitting.create(claiming("reader", ml))
    assert ours(found) == ["sidemount-keeper", "sidemount-train"]
    paths = [each["hostPath"]["path"] for each in found["spec"]["volumes"] if "hostPath" in each]
    assert paths == [f"/srv/{ml}/volumes/pvc-1"]
    for source in (pool, f"{pool}/volumes/pvc-1/data", f"{pool}?volume=pvc-1"):
        for name in ("", ml, "directory"):
            query = f"{'&' if '?' in source else '?'}class={name}" if name else ""
            told = admitting.refused(pod("thief", {"volume.sidemount.io/train": source + query}, ml))
            assert "PersistentVolumeClaim" in told, told
    admitting.api.delete("fdc", ml)


def test_where_injection_is_not_open_a_claim_is_as_it_was(admitting: Admitting, unique: str) -> None:
    closed = admitting.namespace(unique, {})
    admitting.api.create(volume(unique, (closed, "data")))
    admitting.api.create(claim(closed, volume_name=unique))
    _left(admitting, claiming("reader", closed))


def test_a_claim_that_is_not_bound_is_left_alone(admitting: Admitting, ml: str) -> None:
    admitting.api.create(claim(ml))
    _left(admitting, claiming("reader", ml))


def test_a_claim_that_waits_for_its_pod_is_left_to_csi(admitting: Admitting, ml: str) -> None:
    """Where the volume comes from is known only once the pod has a node: its StorageClass tells that it will be ours."""
    name = f"{ml}-late"
    admitting.api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "csi.sidemount.io",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    admitting.api.create(claim(ml, storage_class=name))
    asked = claiming("reader", ml)
    found, _ = admitting.create(asked)
    assert ours(found) == []
    assert found["spec"]["volumes"][0] == asked["spec"]["volumes"][0]
    assert found["spec"]["containers"][0]["volumeMounts"][0]["mountPropagation"] == "HostToContainer"
    assert '"LeftToCsi"' in found["metadata"]["annotations"]["sidemount.io/status"]


def test_a_claim_that_is_not_there_is_left_to_the_scheduler(admitting: Admitting, ml: str) -> None:
    _left(admitting, claiming("reader", ml, "nobody-s"))


def test_a_claim_of_another_driver_is_none_of_ours(admitting: Admitting, ml: str) -> None:
    """S0-01."""
    admitting.api.create(volume(ml, (ml, "data"), driver="other.example"))
    admitting.api.create(claim(ml, volume_name=ml))
    _left(admitting, claiming("reader", ml))


def test_a_claim_that_was_deleted_is_not_delivered_any_more(admitting: Admitting, bound: str) -> None:
    admitting.create(claiming("before", bound))
    admitting.api.run(
        "delete", "pvc", "data", f"--namespace={bound}", "--force", "--grace-period=0", "--wait=false"
    )
    admitting.api.run(
        "patch", "pvc", "data", f"--namespace={bound}", "--type=merge", '--patch={"metadata":{"finalizers":null}}'
    )  # fmt: skip
    asking = pod("after", {"sidemount.io/volumes": '[{"name": "train", "claim": "data"}]'}, bound)
    until_refused(admitting.api, asking, lambda told: "ClaimNotFound" in told)
    _left(admitting, claiming("reader", bound))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"claim": "pending"}, "it is not bound to a PersistentVolume yet"),
        ({"claim": "nobody-s"}, "has no such PersistentVolumeClaim"),
        ({"claim": "other"}, 'is of driver "other.example", not csi.sidemount.io'),
        ({"claim": "elsewhere"}, "has no such PersistentVolumeClaim"),
    ],
)
def test_who_asks_for_a_claim_by_name_is_told_why_not(
    admitting: Admitting, ml: str, asked: dict[str, str], why: str
) -> None:
    """A claim of another namespace is not seen."""
    far = admitting.namespace(f"{ml}-far"[-60:].strip("-"))
    admitting.api.create(claim(ml, "pending"))
    admitting.api.create(volume(f"{ml}-other", (ml, "other"), driver="other.example"))
    admitting.api.create(claim(ml, "other", f"{ml}-other"))
    admitting.api.create(volume(f"{ml}-far", (far, "elsewhere")))
    admitting.api.create(claim(far, "elsewhere", f"{ml}-far"))
    listed = json.dumps([{"name": "train", **asked}])
    told = admitting.refused(pod("reader", {"sidemount.io/volumes": listed}, ml))
    assert why in told


def test_what_was_made_a_moment_ago_is_known(admitting: Admitting, unique: str) -> None:
    """Namespace, class, volume and claim, and in the next call the pod: a read before any refusal."""
    for number in range(5):
        name = f"{unique}-{number}"[-60:].strip("-")
        admitting.namespace(name)
        admitting.api.create(manifest(_CLASS, name))
        attributes = {"class": name, "source": f"dir:///srv/{name}"}
        admitting.api.create(volume(name, (name, "data"), attributes=attributes))
        admitting.api.create(claim(name, volume_name=name))
        found, _ = admitting.create(claiming("reader", name))
        assert ours(found) == ["sidemount-keeper", "sidemount-train"]
        admitting.api.delete("fdc", name)
