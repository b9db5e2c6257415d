"""The proof of a patch: every way to spoil one is seen, and what is spoilt is never sent."""

import copy
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

import webhook.decision
from sidemount.model.errors import Reason
from tests.webhook.admission import SETTINGS, Json, golden_facts, mutated, pod_with
from webhook.asked import read_asked
from webhook.choice import Setting
from webhook.gate import delivery_facts
from webhook.operations import Operation
from webhook.plan import InjectionPlan, make_plan
from webhook.pod import decode_pod
from webhook.present import NOTHING
from webhook.proof import NotProved, prove
from webhook.shape import own_annotations, shape_of

Spoil = Callable[[list[Operation]], None]


def a_pod() -> Json:
    """Return a pod with something of everything that a patch touches."""
    found = pod_with(
        {
            "volume.sidemount.io/train": "dir:///srv/d",
            "volume.sidemount.io/hot": "cache://b/hot",
            "a/b~c": "kept",
            "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "tmp",
        },
        terminationGracePeriodSeconds=2,
        imagePullSecrets=[{"name": "own"}],
        volumes=[
            {"name": "train", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "hot", "emptyDir": {}, "x-unknown": 1},
        ],
        initContainers=[
            {"name": "istio-proxy", "image": "p", "restartPolicy": "Always"},
            {"name": "prepare", "image": "i", "volumeMounts": [{"name": "train", "mountPath": "/in"}]},
        ],
        containers=[
            {
                "name": "app",
                "image": "i",
                "env": [{"name": "A", "value": "1"}],
                "volumeMounts": [
                    {"name": "train", "mountPath": "/data", "subPath": "a", "x-unknown": 1},
                    {"name": "tmp", "mountPath": "/tmp"},
                    {"name": "train", "mountPath": "/ro", "readOnly": True},
                    {"name": "hot", "mountPath": "/hot", "subPath": "s"},
                ],
            },
            {"name": "second", "image": "i"},
        ],
    )
    found["metadata"]["labels"] = {"app": "x"}
    return found


def plan_of(pod: Json) -> tuple[InjectionPlan, list[Operation]]:
    """Return the plan of a fresh pod and the operations that are sent for it."""
    decoded = decode_pod(json.dumps(pod).encode())
    ours = own_annotations(decoded)
    asked = read_asked(ours)
    shape = shape_of(decoded, "ml", ours, asked.names)
    facts = golden_facts()
    namespace = facts.namespace("ml")
    assert namespace is not None
    setting = Setting(
        namespace=namespace,
        facts=facts,
        delivery=delivery_facts(shape, namespace, facts.cluster(), SETTINGS),
        settings=SETTINGS,
    )
    return make_plan(shape, asked.requests, NOTHING, setting), mutated(pod).patch


def index_of(operations: list[Operation], path: str) -> int:
    """Return the place of the first operation on a path."""
    return next(i for i, operation in enumerate(operations) if operation["path"] == path)


def test_the_patch_is_proved_as_it_is() -> None:
    pod = a_pod()
    plan, operations = plan_of(pod)
    assert prove(pod, operations, plan) == mutated(pod).after
    assert pod == a_pod()


def _append(**operation: Any) -> Spoil:
    return lambda operations: operations.append({"op": "add", **operation})


def _drop(path: str) -> Spoil:
    def spoil(operations: list[Operation]) -> None:
        del operations[index_of(operations, path)]

    return spoil


def _value(path: str, value: Any) -> Spoil:
    def spoil(operations: list[Operation]) -> None:
        operations[index_of(operations, path)]["value"] = value

    return spoil


def _edit(path: str, edit: Callable[[Any], None]) -> Spoil:
    def spoil(operations: list[Operation]) -> None:
        edit(operations[index_of(operations, path)]["value"])

    return spoil


def _path(path: str, other: str) -> Spoil:
    def spoil(operations: list[Operation]) -> None:
        operations[index_of(operations, path)]["path"] = other

    return spoil


def _twice(path: str) -> Spoil:
    def spoil(operations: list[Operation]) -> None:
        operations.append(copy.deepcopy(operations[index_of(operations, path)]))

    return spoil


def _swap_ours(operations: list[Operation]) -> None:
    keeper, daemon = "/spec/initContainers/1", "/spec/initContainers/2"
    i, j = index_of(operations, keeper), index_of(operations, daemon)
    operations[i]["value"], operations[j]["value"] = operations[j]["value"], operations[i]["value"]


def _ours_last(operations: list[Operation]) -> None:
    for operation in operations:
        if operation["path"] in ("/spec/initContainers/1", "/spec/initContainers/2"):
            operation["path"] = "/spec/initContainers/-"


def _remove(operations: list[Operation]) -> None:
    operations.append({"op": "remove", "path": "/spec/containers/1"})


def _sub_path_of_a_mount(index: int) -> str:
    return f"/spec/containers/0/volumeMounts/{index}/subPath"


SPOILS: list[Any] = [
    pytest.param(_append(path="/spec/x", value=1), id="field-added-to-spec"),
    pytest.param(_append(path="/x", value=1), id="field-added-to-pod"),
    pytest.param(_append(path="/metadata/x", value=1), id="field-added-to-metadata"),
    pytest.param(_append(path="/metadata/annotations/x", value="1"), id="annotation-added"),
    pytest.param(_append(path="/metadata/annotations/a~1b~0c", value="1"), id="users-annotation-changed"),
    pytest.param(_append(path="/metadata/annotations", value={}), id="annotations-replaced"),
    pytest.param(_append(path="/metadata/labels/x", value="1"), id="label-added"),
    pytest.param(_append(path="/metadata/labels/app", value="y"), id="users-label-changed"),
    pytest.param(_append(path="/metadata/labels", value={"app": "x"}), id="labels-replaced"),
    pytest.param(_value("/metadata/labels/sidemount.io~1injected", "false"), id="our-label-of-another-value"),
    pytest.param(_append(path="/spec/hostNetwork", value=True), id="host-network"),
    pytest.param(_append(path="/spec/containers/0/image", value="evil"), id="users-image-changed"),
    pytest.param(_append(path="/spec/containers/0/env/-", value={"name": "B"}), id="users-env-changed"),
    pytest.param(
        _append(path="/spec/containers/0/volumeMounts/0/mountPath", value="/x"), id="users-mount-path-changed"
    ),
    pytest.param(
        _append(path="/spec/containers/0/volumeMounts/0/x-unknown", value=2), id="unknown-field-changed"
    ),
    pytest.param(
        _append(path="/spec/containers/0/volumeMounts/0/x-unknown", value=True), id="unknown-field-true-for-1"
    ),
    pytest.param(
        _append(path="/spec/containers/0/volumeMounts/1/readOnly", value=True), id="others-mount-changed"
    ),
    pytest.param(
        _append(path="/spec/containers/0/volumeMounts/2/readOnly", value=False), id="read-only-lost"
    ),
    pytest.param(_append(path="/spec/containers/0/volumeMounts", value=[]), id="users-mounts-replaced"),
    pytest.param(
        _append(path="/spec/containers/1/volumeMounts", value=[{"name": "sidemount", "mountPath": "/x"}]),
        id="mount-added-that-nobody-planned",
    ),
    pytest.param(_append(path="/spec/containers/-", value={"name": "x"}), id="container-added"),
    pytest.param(
        _append(path="/spec/containers/-", value={"name": "sidemount-x"}), id="ours-among-containers"
    ),
    pytest.param(_append(path="/spec/initContainers/0", value={"name": "x"}), id="init-container-added"),
    pytest.param(
        _append(path="/spec/initContainers/0", value={"name": "sidemount-x"}), id="own-container-added"
    ),
    pytest.param(_append(path="/spec/volumes/1", value={"name": "tmp"}), id="users-volume-shifted"),
    pytest.param(_append(path="/spec/volumes/0/hostPath", value={"path": "/"}), id="users-volume-changed"),
    pytest.param(_append(path="/spec/volumes/-", value={"name": "x"}), id="volume-added"),
    pytest.param(_append(path="/spec/volumes/2/emptyDir", value={}), id="two-sources-in-a-volume"),
    pytest.param(_append(path="/spec/imagePullSecrets/0", value={"name": "x"}), id="pull-secret-shifted"),
    pytest.param(_append(path="/spec/imagePullSecrets/-", value={"name": "x"}), id="pull-secret-added"),
    pytest.param(_append(path="", value={}), id="whole-pod-replaced"),
    pytest.param(_append(path="/spec", value={}), id="spec-replaced"),
    pytest.param(_remove, id="operation-of-another-kind"),
    pytest.param(_value("/spec/terminationGracePeriodSeconds", 1), id="grace-lowered"),
    pytest.param(
        _value(
            "/metadata/annotations/cluster-autoscaler.kubernetes.io~1safe-to-evict-local-volumes", "sidemount"
        ),
        id="users-safe-volumes-lost",
    ),
    pytest.param(_value("/spec/volumes/2", {"name": "hot", "csi": {}}), id="unknown-field-of-volume-lost"),
    pytest.param(_value("/spec/containers/0/volumeMounts/0/name", "tmp"), id="mount-of-another-volume"),
    pytest.param(_value(_sub_path_of_a_mount(0), "train"), id="view-of-another-sub-path"),
    pytest.param(_value(_sub_path_of_a_mount(0), "train.x"), id="view-that-is-not-there"),
    pytest.param(_value(_sub_path_of_a_mount(2), "train"), id="writable-view-for-a-read-only-mount"),
    pytest.param(
        _value("/spec/containers/0/volumeMounts/0/mountPropagation", "Bidirectional"), id="propagation"
    ),
    pytest.param(_drop("/spec/containers/0/volumeMounts/0/mountPropagation"), id="no-propagation"),
    pytest.param(_drop("/spec/containers/0/volumeMounts/0/name"), id="mount-half-converted"),
    pytest.param(_drop("/spec/initContainers/1/volumeMounts/0/name"), id="init-mount-half-converted"),
    pytest.param(_drop("/spec/initContainers/1"), id="keeper-missing"),
    pytest.param(_drop("/spec/initContainers/2"), id="daemon-missing"),
    pytest.param(_drop("/spec/volumes/-"), id="volume-missing"),
    pytest.param(_twice("/spec/initContainers/1"), id="keeper-twice"),
    pytest.param(_twice("/spec/volumes/-"), id="volume-twice"),
    pytest.param(_swap_ours, id="daemon-before-keeper"),
    pytest.param(_ours_last, id="ours-behind-a-container-that-needs-them"),
    pytest.param(_path("/spec/initContainers/1", "/spec/initContainers/9"), id="index-beyond-the-list"),
    pytest.param(_path("/spec/volumes/-", "/spec/volumes/-/-"), id="ExpediaGroup42-path-concatenated"),
    pytest.param(
        _path(_sub_path_of_a_mount(0), "/spec/containers/0/volumeMounts/7/subPath"),
        id="mount-that-is-not-there",
    ),
    pytest.param(
        _edit("/spec/initContainers/1", lambda c: c["securityContext"].update(runAsUser=1)),
        id="keeper-changed",
    ),
    pytest.param(_edit("/spec/initContainers/1", lambda c: c["env"].clear()), id="keeper-without-config"),
    pytest.param(_edit("/spec/initContainers/2", lambda c: c.pop("restartPolicy")), id="daemon-no-sidecar"),
    pytest.param(_edit("/spec/initContainers/2", lambda c: c.pop("startupProbe")), id="daemon-without-probe"),
    pytest.param(_edit("/spec/volumes/-", lambda v: v["emptyDir"].pop("medium")), id="mounts-volume-on-disk"),
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_spoilt_patch_is_not_proved(spoil: Spoil) -> None:
    pod = a_pod()
    plan, operations = plan_of(pod)
    spoil(operations)
    with pytest.raises(NotProved):
        prove(pod, operations, plan)


def test_every_single_operation_is_needed() -> None:
    pod = a_pod()
    plan, operations = plan_of(pod)
    for index in range(len(operations)):
        with pytest.raises(NotProved):
            prove(pod, operations[:index] + operations[index + 1 :], plan)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("/spec/containers/0/volumeMounts/0/readOnly", "", id="a-flag-that-is-no-flag"),
        pytest.param("/spec/containers/0/volumeMounts/0/readOnly", True, id="read-only-that-nobody-asked"),
        pytest.param("/spec/containers/1/volumeMounts", [], id="empty-mounts-of-a-container-without"),
        pytest.param("/spec/containers/1/volumeMounts", "x", id="mounts-that-are-no-list"),
        pytest.param("/spec/volumes/3/emptyDir/x", 0, id="a-field-within-a-volume-of-ours"),
        pytest.param("/spec/terminationGracePeriodSeconds", 11, id="another-grace-period"),
        pytest.param("/spec/terminationGracePeriodSeconds", 10.0, id="a-grace-period-that-is-no-integer"),
    ],
)
def test_an_operation_more_is_not_proved(path: str, value: Any) -> None:
    pod = a_pod()
    plan, operations = plan_of(pod)
    assert prove(pod, operations, plan)
    with pytest.raises(NotProved):
        prove(pod, [*operations, {"op": "add", "path": path, "value": value}], plan)


def test_a_patch_that_fails_its_proof_is_denied_and_not_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise NotProved("volume 0 changed")

    monkeypatch.setattr(webhook.decision, "prove", fail)
    pod = pod_with(shareProcessNamespace=True)
    with caplog.at_level(logging.ERROR):
        reviewed = mutated(pod)
    assert not reviewed.outcome.allowed
    assert reviewed.outcome.reason is Reason.PATCH_NOT_PROVED
    assert reviewed.outcome.proof_failed
    assert reviewed.response["status"]["code"] == 500
    assert [record.message for record in caplog.records] == ["patch_not_proved"]
    monkeypatch.undo()
    assert mutated(pod).patch, "a failure of ours is not remembered"
