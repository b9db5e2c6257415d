"""Errors at the boundary: one table, total; no fault of ours ever looks like anything but an answer."""

import importlib
import logging
import pkgutil
from collections.abc import Iterator

import pytest

import sidemount.model
import webhook
import webhook.decision
from sidemount.model.errors import (
    BadMessage,
    Faults,
    HostFailure,
    InvalidRequest,
    NotReady,
    OperationPending,
    PolicyDenied,
    PublishConflict,
    Reason,
    UnknownDriverClass,
    Unsupported,
    VolumeError,
)
from tests.webhook.admission import SETTINGS, golden_facts, mutated, pod_with, review
from webhook.admit import mutate
from webhook.boundary import CODES, code_of, denied
from webhook.validate import validate


def _subclasses(kind: type[VolumeError]) -> Iterator[type[VolumeError]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def test_every_error_of_ours_has_a_code() -> None:
    for package in (sidemount.model, webhook):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    assert set(VolumeError.__subclasses__()) <= set(CODES)
    for kind in _subclasses(VolumeError):
        assert any(base in CODES for base in kind.__mro__)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), 400),
        (UnknownDriverClass("x"), 400),
        (PolicyDenied("x"), 403),
        (PublishConflict("x"), 409),
        (OperationPending("x"), 409),
        (NotReady("x"), 500),
        (Unsupported("x"), 400),
        (HostFailure("x"), 500),
        (BadMessage("x"), 500),
        (Faults((PolicyDenied("a"), InvalidRequest("b"))), 403),
        (Faults((InvalidRequest("b"), PolicyDenied("a"))), 400),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, VolumeError) else str(value),
)
def test_code_of_an_error(error: VolumeError, code: int) -> None:
    assert code_of(error) == code
    assert denied(error).code == code
    assert denied(error).reason is error.reason


def test_a_message_says_what_and_the_way_out() -> None:
    outcome = denied(PolicyDenied("volume x is refused", reason=Reason.CLASS_OFF, hint="ask the admin"))
    assert outcome.message == "volume x is refused; ask the admin"


def test_a_fault_of_ours_is_a_denial_with_its_trace_in_the_log_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError("the secret inside")

    monkeypatch.setattr(webhook.decision, "make_plan", break_down)
    pod = pod_with(nodeSelector={"break": "down"})
    with caplog.at_level(logging.ERROR):
        answer = mutate(review(pod), facts=golden_facts(), settings=SETTINGS)
    assert answer.http_status == 200
    assert answer.outcome.code == 500
    assert not answer.outcome.allowed
    assert b"Traceback" not in answer.body
    assert b"secret inside" not in answer.body
    assert b"ZeroDivisionError" in answer.body
    [record] = caplog.records
    assert record.message == "admission_failed"
    assert record.exc_info is not None
    monkeypatch.undo()
    assert mutated(pod).patch, "a fault of ours is not remembered"


@pytest.mark.parametrize("judge", [mutate, validate])
def test_when_no_verdict_can_be_given_failure_policy_decides(
    monkeypatch: pytest.MonkeyPatch, judge: object
) -> None:
    def wait(*_: object) -> None:
        raise NotReady("the facts are not loaded yet")

    monkeypatch.setattr(webhook.decision, "make_plan", wait)
    assert callable(judge)
    answer = judge(review(pod_with(nodeSelector={"not": "ready"})), facts=golden_facts(), settings=SETTINGS)
    assert answer.http_status == 500
    assert answer.outcome.reason is Reason.NOT_READY
