"""Claims in spec.volumes that nobody asks us to deliver: delivered where that can be, never a reason to fail."""

import copy
import time
from typing import Any

import pytest

from tests.webhook.admission import Json, between_rounds, mutated, pod_with, validated


def pod_of(*volumes: tuple[str, str], annotations: Json | None = None, **mount: Any) -> Json:
    """Return a pod that mounts claims, each (volume, claim), with more fields of every mount."""
    return pod_with(
        annotations or {},
        volumes=[{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in volumes],
        containers=[
            {
                "name": "app",
                "image": "i",
                "volumeMounts": [{"name": name, "mountPath": f"/{name}", **mount} for name, _ in volumes],
            }
        ],
    )


def test_S3_12_a_claim_of_ours_is_delivered_by_a_sidecar() -> None:
    reviewed = mutated(pod_of(("m", "models")))
    assert reviewed.after["spec"]["volumes"][0] == pod_of(("m", "models"))["spec"]["volumes"][0]
    assert [c["name"] for c in reviewed.after["spec"]["initContainers"]] == [
        "sidemount-keeper",
        "sidemount-m",
    ]
    assert reviewed.outcome.volumes[0].source == "dir:///srv/models"


# What keeps a claim from us, and whether its mount may still see what is mounted later.
LEFT: list[Any] = [
    pytest.param({"subPathExpr": "$(X)"}, {}, True, id="sub-path-expr"),
    pytest.param({"subPath": "../x"}, {}, True, id="sub-path"),
    pytest.param({"mountPropagation": "Bidirectional"}, {}, False, id="bidirectional"),
    pytest.param({"recursiveReadOnly": "Enabled", "readOnly": True}, {}, False, id="recursive-read-only"),
    pytest.param({}, {"hostUsers": False}, True, id="user-namespace"),
    pytest.param({}, {"runtimeClassName": "gvisor"}, True, id="sandbox"),
    pytest.param({"readOnly": True}, {"hostUsers": False}, False, id="read-only"),
    pytest.param({"mountPropagation": "None"}, {"hostUsers": False}, False, id="choice"),
    pytest.param({"mountPropagation": "HostToContainer"}, {"hostUsers": False}, False, id="told"),
    pytest.param({}, {"os": {"name": "windows"}}, False, id="windows"),
    pytest.param({}, {"resources": {"requests": {"memory": "1Mi"}}}, True, id="no-room"),
    pytest.param({}, {"securityContext": {"seLinuxOptions": {"level": "s0 x"}}}, True, id="odd-label"),
]


@pytest.mark.parametrize(("mount", "spec", "heals"), LEFT)
def test_a_claim_that_we_cannot_deliver_is_left_to_csi_and_told(mount: Json, spec: Json, heals: bool) -> None:
    """A mount of a later day would be writable in a container that has the claim read-only, so that one sees none."""
    pod = pod_of(("m", "models"), **mount)
    pod["spec"].update(spec)
    reviewed = mutated(pod)
    assert reviewed.outcome.allowed
    assert reviewed.outcome.reason.value == "LeftToCsi"
    expected = copy.deepcopy(pod["spec"])
    if heals:
        expected["containers"][0]["volumeMounts"][0]["mountPropagation"] = "HostToContainer"
        assert reviewed.after["spec"] == expected
        assert mutated(reviewed.after).patch == []
        assert mutated(between_rounds(reviewed.after)).patch == []
    else:
        assert reviewed.patch == []
    assert reviewed.response["auditAnnotations"] == {"decision": "LeftToCsi", "volumes": "m=LeftToCsi"}
    assert reviewed.outcome.volumes[0].message.startswith('volume "m" is left to CSI: ')
    assert validated(pod).outcome.allowed


def test_a_claim_as_a_block_device_is_left_alone() -> None:
    pod = pod_of(("m", "models"))
    pod["spec"]["containers"][0] = {"name": "app", "volumeDevices": [{"name": "m", "devicePath": "/d"}]}
    assert mutated(pod).reason == "LeftToCsi"


@pytest.mark.parametrize("name", ["keeper", "a.b", "UPPER"])
def test_a_claim_under_a_name_that_we_could_not_use_is_left_alone(name: str) -> None:
    assert mutated(pod_of((name, "models"))).reason == "LeftToCsi"


def test_one_claim_that_cannot_be_does_not_hold_back_the_others() -> None:
    pod = pod_of(("m", "models"), ("n", "models"), ("disk", "block"))
    pod["spec"]["containers"][0]["volumeMounts"][0]["subPathExpr"] = "$(X)"
    reviewed = mutated(pod)
    assert {v.volume: v.delivery for v in reviewed.outcome.volumes} == {"m": "csi", "n": "sidecar"}
    kinds = [next(k for k in v if k != "name") for v in reviewed.after["spec"]["volumes"][:3]]
    assert kinds == ["persistentVolumeClaim"] * 3
    assert mutated(reviewed.after).patch == []


def test_claims_never_make_a_pod_fail_that_asks_for_more() -> None:
    pod = pod_of(
        ("m", "models"), annotations={"volume.sidemount.io/train": "dir:///srv/d"}, subPathExpr="$(X)"
    )
    pod["spec"]["volumes"].append({"name": "train", "emptyDir": {}})
    reviewed = mutated(pod)
    assert reviewed.outcome.allowed
    assert {v.volume: v.reason.value for v in reviewed.outcome.volumes} == {
        "m": "LeftToCsi",
        "train": "SidecarPreferred",
    }
    assert mutated(reviewed.after).patch == []
    assert validated(reviewed.after).outcome.allowed


def test_csi_is_told_to_show_what_is_mounted_later_unless_the_user_chose() -> None:
    pod = pod_of(("b", "bucket"))
    pod["spec"]["containers"][0]["volumeMounts"].append(
        {"name": "b", "mountPath": "/own", "mountPropagation": "None"}
    )
    reviewed = mutated(pod)
    mounts = reviewed.after["spec"]["containers"][0]["volumeMounts"]
    assert [m["mountPropagation"] for m in mounts] == ["HostToContainer", "None"]
    assert reviewed.after["spec"]["volumes"] == pod["spec"]["volumes"]
    assert mutated(reviewed.after).patch == []


def test_a_claim_that_waits_for_its_first_pod_is_left_to_csi_and_sees_what_is_mounted_later() -> None:
    """With WaitForFirstConsumer nothing but its StorageClass tells whose volume it will have."""
    pod = pod_of(("m", "waiting"))
    reviewed = mutated(pod)
    assert reviewed.outcome.reason.value == "LeftToCsi"
    assert "not bound" in reviewed.outcome.volumes[0].message
    expected = copy.deepcopy(pod["spec"])
    expected["containers"][0]["volumeMounts"][0]["mountPropagation"] = "HostToContainer"
    assert reviewed.after["spec"] == expected
    assert mutated(reviewed.after).patch == []
    assert validated(reviewed.after).outcome.allowed


@pytest.mark.parametrize(
    "claim", ["block", "pending", "never-heard-of", "waiting-for-a-disk", "waiting-for-nobody"]
)
def test_a_claim_of_anybody_else_is_no_business_of_ours(claim: str) -> None:
    reviewed = mutated(pod_of(("m", claim)))
    assert reviewed.reason == "NotRequested"
    assert reviewed.patch == []


def test_claims_are_not_looked_at_in_a_namespace_that_is_not_open() -> None:
    reviewed = mutated(pod_of(("m", "models")), "plain")
    assert reviewed.reason == "NotRequested"
    assert reviewed.patch == []


def test_an_annotated_claim_may_stand_in_spec_volumes_already() -> None:
    annotations = {"sidemount.io/volumes": '[{"name": "m", "claim": "models", "subPath": "a"}]'}
    reviewed = mutated(pod_of(("m", "models"), annotations=annotations))
    assert reviewed.after["spec"]["volumes"][0] == pod_of(("m", "models"))["spec"]["volumes"][0]
    assert mutated(reviewed.after).patch == []
    other = mutated(pod_of(("m", "block"), annotations=annotations))
    assert other.reason == "NameCollision"


def test_opting_out_leaves_claims_to_csi() -> None:
    pod = pod_of(("m", "models"), annotations={"sidemount.io/inject": "false"})
    assert mutated(pod).patch == []
    assert mutated(pod).reason == "OptedOut"


def test_thousands_of_claims_cost_no_more_than_they_weigh() -> None:
    pod = pod_of(*((f"m{number}", "models") for number in range(2000)))
    began = time.perf_counter()
    reviewed = mutated(pod)
    assert time.perf_counter() - began < 10
    assert reviewed.outcome.allowed
    assert sum(v.delivery == "sidecar" for v in reviewed.outcome.volumes) == 64


def test_two_volumes_of_one_name_are_left_to_the_api_server() -> None:
    pod = pod_with({}, volumes=[{"name": "train", "persistentVolumeClaim": {"claimName": "models"}}] * 2)
    assert mutated(pod).outcome.allowed
