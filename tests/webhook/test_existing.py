"""References to existing volumes in a pod, S2: what of the pod they need, and what they do to it."""

import copy
import json
from typing import Any

import pytest

from tests.webhook.admission import Json, mutated, pod_with, validated


def _listed(**fields: Any) -> Json:
    existing = {"driver": "csi.sidemount.io", "handle": "models", "accessMode": "READ_WRITE_MANY"}
    return {"sidemount.io/volumes": json.dumps([{"name": "train", "existing": existing, **fields}])}


def _mounting(*mounts: Json) -> list[Json]:
    return [{"name": "app", "image": "i", "volumeMounts": list(mounts)}]


@pytest.mark.parametrize(
    "volume",
    [
        {"name": "train", "configMap": {"name": "x"}},
        {"name": "train", "hostPath": {"path": "/"}},
        {"name": "train", "persistentVolumeClaim": {"claimName": "models"}},
    ],
    ids=lambda volume: str([key for key in volume if key != "name"]),
)
def test_S2_02_only_an_empty_volume_is_a_marker(volume: Json) -> None:
    refused = mutated(pod_with(_listed(), volumes=[volume]))
    assert refused.reason == "NameCollision"
    assert '"train"' in refused.message


def test_S2_09_a_reference_to_a_volume_that_the_pod_does_not_declare_is_refused() -> None:
    refused = mutated(pod_with(_listed(), volumes=[]))
    assert refused.reason == "UnknownVolume"
    assert 'declares no volume "train" in spec.volumes' in refused.message


def test_S2_01_S2_07_S2_21_two_mounts_of_one_volume_are_two_views_of_it() -> None:
    """What a sub-path means on the volume is for the keeper to find: here it is text."""
    mounts = (
        {"name": "train", "mountPath": "/own", "subPath": "a"},
        {"name": "train", "mountPath": "/shared", "subPath": "mirrors", "readOnly": True},
    )
    after = mutated(pod_with(_listed(subPath="sessions"), containers=_mounting(*mounts))).after
    (mount,) = json.loads(after["spec"]["initContainers"][0]["env"][0]["value"])["mounts"]
    assert mount["spec"]["subPath"] == "sessions"
    views = sorted((view["subPath"], view["readOnly"]) for view in mount["views"])
    assert views == [("a", False), ("mirrors", True)]
    names = {mount["subPath"] for mount in after["spec"]["containers"][0]["volumeMounts"]}
    assert len(names) == 2


@pytest.mark.parametrize("is_the_volume", [True, False])
def test_S2_31_a_mount_that_is_to_be_read_only_is_so_in_both_layers(is_the_volume: bool) -> None:
    """And without recursiveReadOnly, which would need a mount that no later one reaches."""
    mount = {"name": "train", "mountPath": "/data", **({} if is_the_volume else {"readOnly": True})}
    fields = {"readOnly": True} if is_the_volume else {}
    after = mutated(pod_with(_listed(**fields), containers=_mounting(mount))).after
    (shown,) = after["spec"]["containers"][0]["volumeMounts"]
    assert shown["readOnly"] is True
    assert "recursiveReadOnly" not in shown
    (told,) = json.loads(after["spec"]["initContainers"][0]["env"][0]["value"])["mounts"]
    assert [view["readOnly"] for view in told["views"]] == [True]


@pytest.mark.parametrize(
    "annotations",
    [
        {"sidemount.io/volumes": '[{"name": "train", "optional": true, "subPath": "a", "readOnly": true}]'},
        {"sidemount.io/volumes": "[]"},
        {"volume.sidemount.io/train": "?optional=true", "volume.sidemount.io/other": "?optional=true"},
    ],
)
def test_S2_16_S2_39_what_is_not_supplied_changes_no_byte(annotations: Json) -> None:
    pod = pod_with(annotations)
    before = copy.deepcopy(pod)
    for reviewed in (mutated(pod), validated(pod)):
        assert reviewed.outcome.allowed
        assert "patch" not in reviewed.response
        assert reviewed.after == before


def test_S2_39_one_that_is_supplied_beside_one_that_is_not_is_all_there_is() -> None:
    listed = json.dumps(
        [json.loads(_listed()["sidemount.io/volumes"])[0], {"name": "more", "optional": True}]
    )
    volumes = [{"name": "train", "emptyDir": {}}, {"name": "more", "emptyDir": {}}]
    after = mutated(pod_with({"sidemount.io/volumes": listed}, volumes=volumes)).after
    assert [each["name"] for each in after["spec"]["initContainers"]] == [
        "sidemount-keeper",
        "sidemount-train",
    ]
    assert after["spec"]["volumes"][1] == {"name": "more", "emptyDir": {}}
