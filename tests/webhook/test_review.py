"""AdmissionReview v1 on the wire."""

import base64
import json
from typing import Any

import pytest

from sidemount.model.errors import Reason
from tests.webhook.admission import SETTINGS, UID, Json, golden_facts, mutated, pod_with, review
from webhook.admit import mutate
from webhook.outcome import Outcome, Verdict
from webhook.review import (
    WARNING_MAX,
    BadReview,
    clean,
    clean_warnings,
    decode_review,
    render_answer,
    render_tail,
)
from webhook.validate import validate


def sent(body: bytes) -> Json:
    """Return the decoded answer of the mutating webhook."""
    decoded: Json = json.loads(mutate(body, facts=golden_facts(), settings=SETTINGS).body)
    return decoded


def test_answer_echoes_version_kind_and_uid() -> None:
    answer = sent(review(pod_with()))
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["uid"] == UID


@pytest.mark.parametrize("uid", ['"', "\\", "ü", "\u2028", "x" * 300, "</script>"])
def test_any_uid_is_echoed(uid: str) -> None:
    body = json.loads(review(pod_with()))
    body["request"]["uid"] = uid
    assert sent(json.dumps(body).encode())["response"]["uid"] == uid


def test_patch_and_patch_type_come_together_kk122755() -> None:
    response = sent(review(pod_with()))["response"]
    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"], validate=True))


@pytest.mark.parametrize(
    "pod",
    [pytest.param(pod_with({}), id="not-asking"), pytest.param(mutated(pod_with()).after, id="injected")],
)
def test_without_a_change_neither_patch_nor_patch_type_is_sent_rancher158(pod: Json) -> None:
    response = sent(review(pod))["response"]
    assert response["allowed"] is True
    assert not {"patch", "patchType"} & set(response)


def test_dry_run_gets_the_same_answer() -> None:
    assert sent(review(pod_with(), dry_run=True)) == sent(review(pod_with()))


def test_the_same_pod_gets_the_same_bytes() -> None:
    bodies = {mutate(review(pod_with()), facts=golden_facts(), settings=SETTINGS).body for _ in range(3)}
    assert len(bodies) == 1


def _with(**fields: Any) -> bytes:
    whole = json.loads(review(pod_with()))
    whole.update(fields)
    return json.dumps(whole).encode()


def _with_request(**fields: Any) -> bytes:
    whole = json.loads(review(pod_with()))
    whole["request"].update(fields)
    return json.dumps(whole).encode()


JUNK: list[Any] = [
    pytest.param(b"", "not JSON", id="empty"),
    pytest.param(b"not json", "not JSON", id="text"),
    pytest.param(b"{", "not JSON", id="cut-short"),
    pytest.param(b"null", "no AdmissionReview", id="null"),
    pytest.param(b"[]", "no AdmissionReview", id="list"),
    pytest.param(b"{}", "not AdmissionReview", id="nothing-in-it"),
    pytest.param(b"[" * 100_000, "AdmissionReview", id="deep-list"),
    pytest.param(b'{"request":' * 50_000, "JSON", id="deep-object"),
    pytest.param(b"\xff\xfe{}", "not JSON", id="utf-16"),
    pytest.param(review(pod_with()) + b"x", "not JSON", id="trailing"),
    pytest.param(_with(apiVersion="admission.k8s.io/v1beta1"), "v1beta1", id="v1beta1"),
    pytest.param(_with(apiVersion=None), "apiVersion", id="no-version"),
    pytest.param(_with(apiVersion=1), "apiVersion", id="odd-version"),
    pytest.param(_with(kind="Pod"), "Pod", id="other-kind"),
    pytest.param(_with(request=None), "no request", id="no-request"),
    pytest.param(_with(request=[]), "request", id="odd-request"),
    pytest.param(_with_request(uid=""), "uid", id="empty-uid"),
    pytest.param(_with_request(uid=None), "uid", id="null-uid"),
    pytest.param(_with_request(uid=7), "uid", id="odd-uid"),
    pytest.param(_with_request(namespace=7), "namespace", id="odd-namespace"),
    pytest.param(_with_request(kind="Pod"), "kind", id="odd-kind"),
]


@pytest.mark.parametrize(("body", "told"), JUNK)
@pytest.mark.parametrize("judge", [mutate, validate])
def test_junk_is_a_bad_review_that_says_why(body: bytes, told: str, judge: Any) -> None:
    with pytest.raises(BadReview) as caught:
        judge(body, facts=golden_facts(), settings=SETTINGS)
    assert told in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_v1beta1_says_what_to_set() -> None:
    with pytest.raises(BadReview, match=r"admissionReviewVersions: \[v1\]"):
        decode_review(_with(apiVersion="admission.k8s.io/v1beta1"))


def test_unknown_fields_of_the_review_are_passed_over() -> None:
    assert sent(_with_request(futureField={"a": [1]}))["response"]["patch"]


OBJECTS: list[Any] = [
    pytest.param(None, id="null"),
    pytest.param(5, id="number"),
    pytest.param("pod", id="text"),
    pytest.param([], id="list"),
    pytest.param({}, id="empty"),
    pytest.param({"metadata": None}, id="metadata-null"),
    pytest.param({"metadata": {"annotations": None}}, id="annotations-null"),
    pytest.param({"metadata": {"annotations": "x"}}, id="annotations-text"),
    pytest.param({"metadata": {}, "spec": None}, id="spec-null"),
    pytest.param({"metadata": {}, "spec": {"containers": None}}, id="containers-null"),
    pytest.param({"metadata": {}, "spec": {"containers": [None]}}, id="container-null"),
    pytest.param({"metadata": {}, "spec": {"containers": "x"}}, id="containers-text"),
    pytest.param({"metadata": {"labels": [1]}, "spec": {}}, id="labels-list"),
]


@pytest.mark.parametrize("pod", OBJECTS)
def test_an_odd_object_that_asks_nothing_is_allowed_unchanged(pod: Any) -> None:
    reviewed = mutated(pod)
    assert reviewed.outcome.allowed
    assert reviewed.patch == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param("x", "$.spec", id="spec"),
        pytest.param({"containers": "x"}, "$.spec.containers", id="containers"),
        pytest.param({"containers": [5]}, "$.spec.containers[0]", id="container"),
        pytest.param({"containers": [{"name": 5}]}, "$.spec.containers[0].name", id="container-name"),
        pytest.param(
            {"containers": [{"volumeMounts": [{"readOnly": "yes"}]}]},
            "$.spec.containers[0].volumeMounts[0].readOnly",
            id="read-only",
        ),
        pytest.param({"volumes": {"a": 1}}, "$.spec.volumes", id="volumes"),
        pytest.param({"securityContext": []}, "$.spec.securityContext", id="security-context"),
        pytest.param({"hostUsers": "no"}, "$.spec.hostUsers", id="host-users"),
        pytest.param(
            {"terminationGracePeriodSeconds": "30"}, "$.spec.terminationGracePeriodSeconds", id="grace"
        ),
    ],
)
def test_an_odd_pod_that_asks_is_denied_naming_the_field(spec: Any, told: str) -> None:
    reviewed = mutated({"metadata": {"annotations": {"volume.sidemount.io/a": "dir:///srv/a"}}, "spec": spec})
    assert not reviewed.outcome.allowed
    assert reviewed.response["status"]["code"] == 400
    assert told in reviewed.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("fine", "fine", id="fine"),
        pytest.param("a\nb\tc\x00d", "a b c d", id="controls"),
        pytest.param("ünï → ☃", "ünï → ☃", id="unicode"),
        pytest.param("a\u2028b\u200eb", "a b b", id="separators-and-marks"),
        pytest.param("half \ud800 pair", "half   pair", id="surrogate"),
        pytest.param("x" * 200, "x" * 119 + "…", id="long"),
    ],
)
def test_a_warning_is_one_short_printable_line(text: str, expected: str) -> None:
    assert clean(text, WARNING_MAX) == expected


def test_warnings_are_few_together_and_each_only_once() -> None:
    many = tuple(f"warning {number} {'x' * 200}" for number in range(100))
    cleaned = clean_warnings((*many, *many, ""))
    assert sum(map(len, cleaned)) <= 4096
    assert cleaned[-1] == "sidemount: and 85 more warnings"
    assert clean_warnings(("a", "a")) == ["a"]


def test_a_pod_of_sixty_volumes_gets_bounded_warnings() -> None:
    names = [f"volume-number-{number}-with-a-rather-long-name" for number in range(60)]
    pod = pod_with(
        {f"volume.sidemount.io/{name}": "dir:///srv/x" for name in names},
        volumes=[{"name": name, "emptyDir": {}} for name in names],
        containers=[{"name": "app", "image": "i"}],
    )
    reviewed = mutated(pod)
    assert reviewed.patch
    assert sum(map(len, reviewed.response["warnings"])) <= 4096


def test_a_message_is_bounded_and_printable() -> None:
    outcome = Outcome(
        verdict=Verdict.DENIED, reason=Reason.INVALID_REQUEST, message="bad\n" * 10_000, code=400
    )
    response = json.loads(render_answer("u", render_tail(outcome, {})))["response"]
    assert len(response["status"]["message"]) <= 8192
    assert response["status"]["message"].isprintable()


def test_a_denial_passes_code_and_reason_through() -> None:
    status = mutated(pod_with(), "plain").response["status"]
    assert status == {
        "metadata": {},
        "status": "Failure",
        "message": status["message"],
        "reason": "NamespaceNotEnabled",
        "code": 403,
    }
    assert "kubectl label namespace plain sidemount.io/injection=enabled" in status["message"]


def test_audit_annotations_are_the_same_in_both_rounds() -> None:
    first = mutated(pod_with())
    second = mutated(first.after)
    assert first.response["auditAnnotations"] == {
        "decision": "SidecarPreferred",
        "volumes": "train=SidecarPreferred",
    }
    assert second.response["auditAnnotations"] == first.response["auditAnnotations"]
