"""The validating webhook: what asks must carry, what we own is not copied, what was asked for does not change."""

import copy
import json
from typing import Any

import pytest

from tests.webhook.admission import Json, between_rounds, mutated, pod_with, validated

LISTED = (
    '[{"name": "train", "source": "dir:///srv/d", "readOnly": true}, {"name": "b", "source": "dir:///srv/b"}]'
)


def test_a_pod_that_asks_and_does_not_carry_is_refused() -> None:
    reviewed = validated(pod_with())
    assert reviewed.reason == "NotInjected"
    assert reviewed.response["status"]["code"] == 403
    assert "train" in reviewed.message
    assert "was not called" in reviewed.message
    assert "reinvocationPolicy" in reviewed.message


def test_a_stripped_pod_is_refused_naming_what_is_gone_GCSF322() -> None:
    pod = mutated(pod_with()).after
    for container in pod["spec"]["initContainers"]:
        del container["restartPolicy"]
    reviewed = validated(pod)
    assert reviewed.reason == "NotInjected"
    assert "/spec/initContainers/0/restartPolicy" in reviewed.message
    assert "another webhook" in reviewed.message


def test_an_injected_pod_is_valid() -> None:
    assert validated(between_rounds(mutated(pod_with()).after)).outcome.allowed


def test_what_only_makes_a_pod_better_may_be_missing() -> None:
    pod = mutated(pod_with(terminationGracePeriodSeconds=0)).after
    for key in list(pod["metadata"]["annotations"]):
        if not key.startswith("volume."):
            del pod["metadata"]["annotations"][key]
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    assert validated(pod).outcome.allowed


@pytest.mark.parametrize(
    ("annotations", "namespace"),
    [
        pytest.param({}, "ml", id="not-asking"),
        pytest.param({}, "plain", id="not-asking-unlabelled"),
        pytest.param(
            {"sidemount.io/volumes": "[{name: train, optional: true}]"}, "ml", id="nothing-supplied"
        ),
        pytest.param(
            {"volume.sidemount.io/train": "dir:///srv/d", "sidemount.io/inject": "false"},
            "ml",
            id="opted-out",
        ),
    ],
)
def test_pods_that_want_nothing_stay_allowed(annotations: Json, namespace: str) -> None:
    assert validated(pod_with(annotations), namespace).outcome.allowed


def test_a_csi_delivered_pod_is_valid_and_an_unrewritten_one_is_not() -> None:
    pod = pod_with({"volume.sidemount.io/train": "cache://b/x"})
    assert validated(pod).reason == "NotInjected"
    assert validated(mutated(pod).after).outcome.allowed
    changed = mutated(pod).after
    changed["spec"]["volumes"][0]["csi"]["volumeAttributes"]["source"] = "cache://other/y"
    assert validated(changed).reason == "HandMade"


def test_a_bad_request_is_refused_as_in_the_first_round() -> None:
    assert validated(pod_with({"volume.sidemount.io/train": "ftp://x"})).reason == "UnknownClass"
    assert validated(pod_with({"sidemount.io/inject": "perhaps"})).reason == "InvalidRequest"


@pytest.mark.parametrize("namespace", ["ml", "plain"])
@pytest.mark.parametrize("section", ["containers", "initContainers"])
@pytest.mark.parametrize("name", ["sidemount-keeper", "sidemount-train", "sidemount-anything"])
def test_hand_made_containers_are_refused_everywhere(namespace: str, section: str, name: str) -> None:
    pod = pod_with({})
    pod["spec"].setdefault(section, []).append({"name": name, "image": "evil"})
    assert validated(pod, namespace).reason == "HandMade"
    opted_out = copy.deepcopy(pod)
    opted_out["metadata"]["annotations"] = {"sidemount.io/inject": "false"}
    assert validated(opted_out, namespace).reason == "HandMade"
    labelled = copy.deepcopy(pod)
    labelled["metadata"]["labels"] = {"sidemount.io/inject": "false"}
    labelled["metadata"]["annotations"] = {"volume.sidemount.io/train": "dir:///srv/d"}
    assert validated(labelled, namespace).reason == "HandMade"
    mirror = copy.deepcopy(pod)
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    assert validated(mirror, namespace).reason == "HandMade"


# UPDATE ----------------------------------------------------------------------------------------------------------


def updated(old: Json, new: Json, **fields: Any) -> Any:
    """Send the update of a pod."""
    return validated(new, operation="UPDATE", old=old, **fields)


def with_annotations(annotations: Json | None) -> Json:
    """Return a pod with these annotations."""
    pod = pod_with(annotations)
    if annotations is None:
        del pod["metadata"]["annotations"]
    return pod


SAME: list[Any] = [
    pytest.param({}, {}, id="none"),
    pytest.param(None, {"example.com/x": "y"}, id="others-added"),
    pytest.param({"sidemount.io/volumes": LISTED}, {"sidemount.io/volumes": LISTED}, id="same-text"),
    pytest.param(
        {"sidemount.io/volumes": LISTED},
        {
            "sidemount.io/volumes": '\n[ {"name":"b","source":"dir:///srv/b"},\n  {"readOnly":true,"source":"dir:///srv/d","name":"train"} ]\n'
        },
        id="other-order-and-space",
    ),
    pytest.param(
        {"sidemount.io/volumes": LISTED},
        {
            "sidemount.io/volumes": "- source: dir:///srv/d\n  name: train\n  readOnly: true\n- {name: b, source: 'dir:///srv/b'}\n"
        },
        id="yaml-for-json",
    ),
    pytest.param(
        {"volume.sidemount.io/a": "dir:///srv/a?readOnly=true&subPath=x"},
        {"volume.sidemount.io/a": "dir:///srv/a?subPath=x&readOnly=true"},
        id="query-in-another-order",
    ),
    pytest.param(
        {"sidemount.io/status": '{"version":1,"volumes":{"a":{}}}'},
        {"sidemount.io/status": '{ "volumes": {"a": {}}, "version": 1 }'},
        id="status-in-another-order",
    ),
    pytest.param(
        {"sidemount.io/volumes": "not: [readable"},
        {"sidemount.io/volumes": "not: [readable"},
        id="unreadable-kept",
    ),
]


@pytest.mark.parametrize(("was", "now"), SAME)
def test_S2_06_the_same_request_in_another_text_is_accepted(was: Json | None, now: Json) -> None:
    assert updated(with_annotations(was), with_annotations(now)).outcome.allowed


CHANGED: list[Any] = [
    pytest.param({}, {"volume.sidemount.io/a": "dir:///srv/a"}, "volume.sidemount.io/a", id="added"),
    pytest.param({"volume.sidemount.io/a": "dir:///srv/a"}, {}, "volume.sidemount.io/a", id="removed"),
    pytest.param({"volume.sidemount.io/a": "dir:///srv/a"}, None, "volume.sidemount.io/a", id="all-removed"),
    pytest.param(
        {"volume.sidemount.io/a": "dir:///srv/a"},
        {"volume.sidemount.io/a": "dir:///srv/b"},
        "volume.sidemount.io/a",
        id="source",
    ),
    pytest.param(
        {"volume.sidemount.io/a": "dir:///srv/a?readOnly=true"},
        {"volume.sidemount.io/a": "dir:///srv/a"},
        "volume.sidemount.io/a",
        id="read-only-dropped",
    ),
    pytest.param(
        {"sidemount.io/volumes": LISTED},
        {"sidemount.io/volumes": LISTED.replace("true", "false")},
        "sidemount.io/volumes",
        id="listed-field",
    ),
    pytest.param(
        {"sidemount.io/volumes": LISTED},
        {"sidemount.io/volumes": "["},
        "sidemount.io/volumes",
        id="now-unreadable",
    ),
    pytest.param(
        {"sidemount.io/volumes": "["}, {"sidemount.io/volumes": "[["}, "sidemount.io/volumes", id="unreadable"
    ),
    pytest.param(
        {"sidemount.io/inject": "true"}, {"sidemount.io/inject": "false"}, "sidemount.io/inject", id="inject"
    ),
    pytest.param({}, {"sidemount.io/inject": "false"}, "sidemount.io/inject", id="inject-added"),
    pytest.param({"sidemount.io/inject": "false"}, {}, "sidemount.io/inject", id="inject-removed"),
    pytest.param(
        {"sidemount.io/status": "{}"}, {"sidemount.io/status": "[]"}, "sidemount.io/status", id="status"
    ),
    pytest.param({"sidemount.io/status": "{}"}, {}, "sidemount.io/status", id="status-removed"),
    pytest.param({}, {"sidemount.io/status": "x"}, "sidemount.io/status", id="status-added"),
]


@pytest.mark.parametrize(("was", "now", "key"), CHANGED)
def test_S2_05_a_changed_request_is_refused(was: Json, now: Json | None, key: str) -> None:
    reviewed = updated(with_annotations(was), with_annotations(now))
    assert reviewed.reason == "Immutable"
    assert reviewed.response["status"]["code"] == 403
    assert key in reviewed.message
    assert "new pod" in reviewed.message


def test_an_injected_pod_may_be_labelled_scaled_and_evicted_S2_06() -> None:
    old = mutated(pod_with()).after
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"team": "x"}
    new["metadata"]["annotations"]["example.com/seen"] = "1"
    new["spec"]["activeDeadlineSeconds"] = 5
    new["spec"]["containers"][0]["image"] = "other"
    assert updated(old, new).outcome.allowed


@pytest.mark.parametrize("sub_resource", ["", "status", "resize", "ephemeralcontainers"])
def test_annotations_cannot_be_changed_through_a_subresource_either(sub_resource: str) -> None:
    old = mutated(pod_with()).after
    new = copy.deepcopy(old)
    new["metadata"]["annotations"]["volume.sidemount.io/train"] = "dir:///srv/other"
    assert updated(old, new, sub_resource=sub_resource).reason == "Immutable"


def test_an_update_in_a_system_namespace_is_not_ours() -> None:
    assert updated(with_annotations({}), pod_with(), namespace="kube-system").outcome.allowed


def test_deletion_is_always_allowed() -> None:
    assert validated(None, operation="DELETE", old=pod_with()).outcome.allowed


DEBUGGERS: list[Any] = [
    pytest.param({"name": "debugger"}, True, id="plain"),
    pytest.param(
        {"name": "debugger", "volumeMounts": [{"name": "train", "mountPath": "/x"}]}, True, id="users-volume"
    ),
    pytest.param(
        {
            "name": "debugger",
            "volumeMounts": [
                {
                    "name": "sidemount",
                    "mountPath": "/x",
                    "readOnly": True,
                    "mountPropagation": "HostToContainer",
                }
            ],
        },
        True,
        id="looks-at-views",
    ),
    pytest.param(
        {"name": "debugger", "volumeMounts": [{"name": "sidemount", "mountPath": "/x"}]},
        False,
        id="writable-views",
    ),
    pytest.param(
        {
            "name": "debugger",
            "volumeMounts": [{"name": "sidemount-run", "mountPath": "/x", "readOnly": True}],
        },
        False,
        id="sockets",
    ),
    pytest.param(
        {"name": "debugger", "volumeMounts": [{"name": "sidemount-secret-train", "mountPath": "/x"}]},
        False,
        id="credentials",
    ),
    pytest.param({"name": "sidemount-keeper"}, False, id="our-name"),
]


@pytest.mark.parametrize(("container", "allowed"), DEBUGGERS)
def test_kubectl_debug_works_but_not_behind_our_volumes_S0_22(container: Json, allowed: bool) -> None:
    old = mutated(pod_with()).after
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"] = [container]
    reviewed = updated(old, new, sub_resource="ephemeralcontainers")
    assert reviewed.outcome.allowed is allowed
    if not allowed:
        assert reviewed.reason == "HandMade"
    assert updated(new, new).outcome.allowed, "what is there already is not judged again"


# FuseDriverClass ---------------------------------------------------------------------------------------------------


def driver_class(**spec: Any) -> Json:
    """Return a FuseDriverClass."""
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": "s3"},
        "spec": {
            "deliveries": ["sidecar"],
            "sources": ["s3://**"],
            "namespaces": {},
            "filesystem": "objects",
            **spec,
        },
    }


def judged_class(manifest: Any, operation: str = "CREATE", old: Any = None) -> Any:
    """Send a FuseDriverClass to the validating webhook."""
    return validated(
        manifest,
        None,
        operation=operation,
        old=old,
        kind="FuseDriverClass",
        resource="fusedriverclasses",
        group="sidemount.io",
    )


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_good_driver_class_is_allowed(operation: str) -> None:
    assert judged_class(driver_class(), operation).outcome.allowed


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_broken_driver_class_is_refused_with_all_its_faults(operation: str) -> None:
    reviewed = judged_class(driver_class(deliveries=["teleport"], filesystem="floppy", uid=-1), operation)
    assert not reviewed.outcome.allowed
    assert reviewed.response["status"]["code"] == 400
    for word in ("teleport", "floppy", "uid"):
        assert word in reviewed.message


def test_a_class_that_a_later_release_finds_fault_with_may_still_be_labelled() -> None:
    """And its finalizers taken away. As soon as its spec changes, all of it must be right."""
    broken = driver_class(deliveries=["teleport"])
    labelled = {**broken, "metadata": {**broken["metadata"], "labels": {"a": "b"}}}
    assert judged_class(labelled, "UPDATE", broken).outcome.allowed
    assert not judged_class(
        {**labelled, "spec": {**broken["spec"], "uid": 1}}, "UPDATE", broken
    ).outcome.allowed
    assert not judged_class(driver_class(uid=True), "UPDATE", driver_class(uid=1)).outcome.allowed
    assert judged_class(driver_class(), "UPDATE", broken).outcome.allowed


def test_a_driver_class_that_is_deleted_or_no_object_is_answered_cleanly() -> None:
    assert judged_class(None, "DELETE").outcome.allowed
    assert not judged_class([1]).outcome.allowed


def test_a_driver_class_of_another_group_is_not_ours() -> None:
    reviewed = validated({"spec": 5}, None, kind="FuseDriverClass", resource="x", group="example.com")
    assert reviewed.outcome.allowed


def test_an_unreadable_pod_that_speaks_of_us_is_refused() -> None:
    pod = json.loads(json.dumps(pod_with()))
    pod["spec"]["containers"] = "x"
    reviewed = validated(pod)
    assert not reviewed.outcome.allowed
    assert "$.spec.containers" in reviewed.message
    pod["metadata"]["annotations"] = {}
    assert validated(pod).outcome.allowed


@pytest.mark.parametrize(
    ("was", "now"),
    [
        pytest.param('"version":1', '"version":true', id="true-for-1"),
        pytest.param('"version":1', '"version":1.0', id="1.0-for-1"),
        pytest.param('"version":1', '"version":2,"version":1', id="a-key-twice"),
        pytest.param("SidecarPreferred", "CsiPreferred", id="reason"),
    ],
)
def test_the_status_cannot_be_tampered_with_S2_05(was: str, now: str) -> None:
    old = mutated(pod_with()).after
    new = copy.deepcopy(old)
    status = old["metadata"]["annotations"]["sidemount.io/status"]
    new["metadata"]["annotations"]["sidemount.io/status"] = json.dumps(json.loads(status), indent=1)
    assert validated(new, operation="UPDATE", old=old).outcome.allowed
    assert was in status
    new["metadata"]["annotations"]["sidemount.io/status"] = status.replace(was, now)
    assert validated(new, operation="UPDATE", old=old).reason == "Immutable"
    del new["metadata"]["annotations"]["sidemount.io/status"]
    assert validated(new, operation="UPDATE", old=old).reason == "Immutable"
