"""Whom the API server calls for which pod, and what its own policy says, agree with what the webhook itself does."""

import json
from typing import Any

import pytest

from sidemount.model.names import OWN_NAMESPACE, SYSTEM_NAMESPACES
from tests.manifests.files import Json, objects, of_base
from tests.manifests.matching import called, refusals
from tests.webhook.admission import between_rounds, golden_facts, mutated, pod_with, validated
from tests.webhook.test_golden import CASES, load

_MUTATING, _VALIDATING, _POLICY = (
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "sidemount-pods",
)
_ENABLED = {"sidemount.io/injection": "enabled"}
_MAY_WAIT = "pods.sidemount.io"
_REQUEST = "volume.sidemount.io/train"
_SOURCE = "dir:///srv/datasets"


def _golden(case: str) -> tuple[Json, str, dict[str, str]]:
    pod, namespace = load(case)
    facts = golden_facts().namespace(namespace)
    plain: Json = json.loads(json.dumps(pod))
    return plain, namespace, dict(facts.labels) if facts is not None else {}


@pytest.mark.parametrize("case", CASES)
def test_whoever_gets_an_answer_of_consequence_is_asked_for(case: str) -> None:
    """No pod slips past that the webhook would change or refuse; and one entry alone calls for it."""
    pod, namespace, labels = _golden(case)
    reviewed = mutated(pod, namespace)
    entries = called(_MUTATING, pod, namespace, labels)
    assert len(entries) <= 1
    if reviewed.patch or not reviewed.outcome.allowed:
        assert entries, reviewed.reason
    if not reviewed.outcome.allowed:
        assert entries == [_MAY_WAIT]


@pytest.mark.parametrize("case", CASES)
def test_only_who_asks_waits_for_us(case: str) -> None:
    pod, namespace, labels = _golden(case)
    reviewed = mutated(pod, namespace)
    asks = any("sidemount.io/" in key for key in pod["metadata"].get("annotations") or {})
    waits = called(_MUTATING, pod, namespace, labels) == [_MAY_WAIT]
    assert waits is (asks and reviewed.reason not in ("OptedOut", "MirrorPod", "SystemNamespace"))


@pytest.mark.parametrize("case", CASES)
def test_what_is_injected_is_validated_and_passes_the_policy(case: str) -> None:
    pod, namespace, labels = _golden(case)
    reviewed = mutated(pod, namespace)
    after = between_rounds(reviewed.after)
    is_valid = validated(after, namespace).outcome.allowed
    if not is_valid or "sidemount-" in str(after.get("spec", {}).get("initContainers")):
        expected = [_MAY_WAIT] if reviewed.reason not in ("MirrorPod", "SystemNamespace") else []
        assert called(_VALIDATING, after, namespace, labels) == expected
    if reviewed.outcome.allowed and is_valid:
        assert refusals(_POLICY, after, namespace, labels) == []


@pytest.mark.parametrize("case", CASES)
def test_a_pod_that_asks_and_was_not_injected_is_refused_by_the_policy(case: str) -> None:
    """Except where some volume is optional: what exactly may be left out, the webhook alone knows."""
    pod, namespace, labels = _golden(case)
    reviewed = mutated(pod, namespace)
    asks = any("volume" in key and "sidemount.io/" in key for key in pod["metadata"].get("annotations") or {})
    told = refusals(_POLICY, pod, namespace, labels)
    if reviewed.patch and asks and "optional" not in case:
        assert validated(pod, namespace).reason == "NotInjected"
        assert any("(NotInjected)" in message for message in told)
    elif not reviewed.patch and reviewed.outcome.allowed and case != "unlabelled-namespace-not-asking":
        assert told == []


@pytest.mark.parametrize("kind", [_MUTATING, _VALIDATING])
@pytest.mark.parametrize("namespace", sorted({OWN_NAMESPACE, *SYSTEM_NAMESPACES}))
def test_no_namespace_of_the_system_s_or_ours_is_ever_called_for(kind: str, namespace: str) -> None:
    pod = mutated(pod_with()).after
    assert called(kind, pod, namespace, _ENABLED) == []
    assert called(_VALIDATING, pod, namespace, _ENABLED, operation="UPDATE", old=pod_with({})) == []
    assert refusals(_POLICY, pod_with(), namespace, _ENABLED) == []
    assert refusals("sidemount-ephemeral-containers", _debugged("sidemount-x"), namespace, _ENABLED, old=pod_with()) == []  # fmt: skip


@pytest.mark.parametrize(
    ("annotations", "entries"),
    [
        ({}, []),
        ({"sidemount.io/status": "{}"}, []),
        ({"example.com/volumes": "sidemount.io/x"}, []),
        ({"notsidemount.io/volumes": "x"}, []),
        ({_REQUEST: _SOURCE}, [_MAY_WAIT]),
        ({"sidemount.io/volumes": "[]"}, [_MAY_WAIT]),
        ({"volumes.sidemount.io/train": _SOURCE}, [_MAY_WAIT]),
        ({"sidemount.io/inject": "perhaps"}, [_MAY_WAIT]),
        ({"sidemount.io/inject": "true", _REQUEST: _SOURCE}, [_MAY_WAIT]),
        ({"sidemount.io/inject": "false", _REQUEST: _SOURCE}, ["claims.sidemount.io"]),
        ({"kubernetes.io/config.mirror": "", _REQUEST: _SOURCE}, []),
        ({"kubernetes.io/config.source": "file", _REQUEST: _SOURCE}, []),
        ({"kubernetes.io/config.source": "api", _REQUEST: _SOURCE}, [_MAY_WAIT]),
    ],
)
def test_annotations_decide_who_is_called(annotations: dict[str, str], entries: list[str]) -> None:
    """linkerd#5022: an outage of ours is nobody's who does not ask."""
    assert called(_MUTATING, pod_with(annotations), "ml", _ENABLED) == entries


def test_a_claim_is_looked_at_where_injection_is_open_and_never_waits() -> None:
    pod = pod_with({}, volumes=[{"name": "train", "persistentVolumeClaim": {"claimName": "models"}}])
    assert called(_MUTATING, pod, "ml", _ENABLED) == ["claims.sidemount.io"]
    assert called(_MUTATING, pod, "ml", {}) == []
    (entry,) = (
        each for each in of_base(_MUTATING, "sidemount")["webhooks"] if each["name"] == "claims.sidemount.io"
    )
    assert entry["failurePolicy"] == "Ignore"


def test_pods_without_annotations_or_volumes_are_no_error() -> None:
    bare: Json = {"metadata": {}, "spec": {"containers": [{"name": "a"}]}}
    for kind in (_MUTATING, _VALIDATING):
        assert called(kind, bare, "ml", _ENABLED) == []
    assert refusals(_POLICY, bare, "ml", {}) == []


@pytest.mark.parametrize(
    ("old", "new", "is_called"),
    [
        ({}, {}, False),
        ({_REQUEST: "a"}, {_REQUEST: "a"}, False),
        ({_REQUEST: "a"}, {_REQUEST: "a", "example.com/x": "new"}, False),
        ({_REQUEST: "a", "example.com/x": "old"}, {_REQUEST: "a"}, False),
        ({_REQUEST: "a"}, {_REQUEST: "b"}, True),
        ({_REQUEST: "a"}, {}, True),
        ({}, {_REQUEST: "a"}, True),
        ({"sidemount.io/status": "{}"}, {}, True),
    ],
)
def test_only_an_update_of_our_annotations_is_called_for(old: Any, new: Any, is_called: bool) -> None:
    """S2-05; a Job's controller takes its finalizer off a pod while no webhook runs."""
    entries = called(_VALIDATING, pod_with(new), "ml", _ENABLED, operation="UPDATE", old=pod_with(old))
    assert entries == (["updates.sidemount.io"] if is_called else [])
    if not is_called:
        assert validated(pod_with(new), operation="UPDATE", old=pod_with(old)).outcome.allowed


def _injected() -> Json:
    after: Json = between_rounds(mutated(pod_with()).after)
    return after


def _without(pod: Json, container: str) -> Json:
    inits = [each for each in pod["spec"]["initContainers"] if each["name"] != container]
    return {**pod, "spec": {**pod["spec"], "initContainers": inits}}


def _stripped(pod: Json) -> Json:
    inits = [{key: value for key, value in each.items() if key != "restartPolicy"} for each in pod["spec"]["initContainers"]]  # fmt: skip
    return {**pod, "spec": {**pod["spec"], "initContainers": inits}}


def _annotated(pod: Json, annotations: dict[str, str]) -> Json:
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


@pytest.mark.parametrize(
    ("pod", "labels", "why"),
    [
        pytest.param(_injected(), _ENABLED, "", id="injected"),
        pytest.param(_injected(), {}, "NamespaceNotEnabled", id="in a namespace that is not open"),
        pytest.param(pod_with(), _ENABLED, "NotInjected", id="asks and carries nothing"),
        pytest.param(pod_with({"sidemount.io/volumes": "- {name: train, source: dir:///srv/d}"}), _ENABLED, "NotInjected", id="list form"),
        pytest.param(pod_with({"sidemount.io/volumes": '[{"name":"train","claim":"models"}]'}), _ENABLED, "NotInjected", id="list form in JSON"),
        pytest.param(pod_with({"sidemount.io/volumes": "[]"}), _ENABLED, "", id="empty list"),
        pytest.param(pod_with({_REQUEST: "?optional=true"}), _ENABLED, "", id="optional"),
        pytest.param(pod_with({_REQUEST: _SOURCE, "sidemount.io/inject": "false"}), _ENABLED, "", id="opts out"),
        pytest.param(_stripped(_injected()), _ENABLED, "NotInjected", id="GCSF322 restartPolicy lost"),
        pytest.param(_without(_injected(), "sidemount-train"), _ENABLED, "NotInjected", id="daemon lost"),
        pytest.param(_without(_injected(), "sidemount-keeper"), _ENABLED, "HandMade", id="keeper lost"),
        pytest.param(_annotated(_injected(), {}), _ENABLED, "HandMade", id="asks for nothing and carries"),
        pytest.param(_annotated(_injected(), {_REQUEST: _SOURCE, "sidemount.io/inject": "false"}), _ENABLED, "HandMade", id="opts out and carries"),
        pytest.param(pod_with({}, containers=[{"name": "sidemount-keeper", "image": "i"}]), _ENABLED, "HandMade", id="copy among the containers"),
    ],
)  # fmt: skip
def test_the_policy_holds_without_any_webhook(pod: Json, labels: dict[str, str], why: str) -> None:
    told = refusals(_POLICY, pod, "ml", labels)
    assert bool(told) is bool(why)
    assert all(message.endswith(")") for message in told)
    assert not why or any(f"({why})" in message for message in told), told


def _debugged(name: str, *mounts: Json) -> Json:
    return pod_with(ephemeralContainers=[{"name": name, "image": "i", "volumeMounts": list(mounts)}])


_LOOK = {"name": "sidemount", "mountPath": "/m", "readOnly": True, "mountPropagation": "HostToContainer"}


@pytest.mark.parametrize(
    ("changed", "is_refused"),
    [
        (_debugged("debugger"), False),
        (_debugged("debugger", {"name": "train", "mountPath": "/data"}), False),
        (_debugged("debugger", _LOOK), False),
        (_debugged("debugger", {**_LOOK, "readOnly": False}), True),
        (_debugged("debugger", {"name": "sidemount", "mountPath": "/m"}), True),
        (_debugged("debugger", {**_LOOK, "name": "sidemount-run"}), True),
        (_debugged("sidemount-x"), True),
    ],
)
def test_ephemeral_containers_are_judged_as_the_webhook_judges_them(changed: Json, is_refused: bool) -> None:
    old = pod_with()
    assert bool(refusals("sidemount-ephemeral-containers", changed, "ml", _ENABLED, old=old)) is is_refused
    reviewed = validated(changed, operation="UPDATE", old=old, sub_resource="ephemeralcontainers")
    assert reviewed.outcome.allowed is not is_refused
    assert refusals("sidemount-ephemeral-containers", changed, "ml", _ENABLED, old=changed) == []


def _with_image(pod: Json, name: str) -> Json:
    inits = [
        {**each, "image": "other"} if each["name"] == name else each for each in pod["spec"]["initContainers"]
    ]
    return {**pod, "spec": {**pod["spec"], "initContainers": inits}}


@pytest.mark.parametrize(
    ("source", "container", "is_refused"),
    [
        (_SOURCE, "", False),
        (_SOURCE, "sidemount-train", False),
        (_SOURCE, "sidemount-keeper", True),
        ("legacy://a", "sidemount-train", True),
    ],
)
def test_what_is_privileged_keeps_its_image(source: str, container: str, is_refused: bool) -> None:
    """A daemon is upgraded by its image; a privileged container's would be a way to root on the node, but for who has it anyway."""
    old = between_rounds(mutated(pod_with({_REQUEST: source})).after)
    new = _with_image(old, container)
    assert bool(refusals("sidemount-images", new, "ml", _ENABLED, old=old)) is is_refused
    rights = frozenset({("sidemount.io", "keepers", "upgrade")})
    assert refusals("sidemount-images", new, "ml", _ENABLED, old=old, rights=rights) == []
    assert refusals("sidemount-images", pod_with({}), "ml", _ENABLED, old=pod_with({})) == []


def test_every_entry_is_quick_harmless_and_bounded() -> None:
    for configuration in (*objects(_MUTATING), *objects(_VALIDATING)):
        for entry in configuration["webhooks"]:
            assert entry["timeoutSeconds"] == 3
            assert entry["sideEffects"] == "None"
            assert entry["admissionReviewVersions"] == ["v1"]
            assert "caBundle" not in entry["clientConfig"]
            if configuration["kind"] == _MUTATING:
                assert entry["reinvocationPolicy"] == "IfNeeded"
                assert all(rule["operations"] == ["CREATE"] for rule in entry["rules"])
            if entry["failurePolicy"] == "Fail":
                assert entry["matchConditions"]
