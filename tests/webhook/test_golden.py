"""Golden pods: pods as people write them, what the webhook makes of them, and that it makes no more of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.webhook.admission import (
    GOLDEN,
    Reviewed,
    assert_only_ours_changed,
    between_rounds,
    mutated,
    validated,
)

CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name != "facts")

# The mutating webhook leaves a namespace that is not labelled alone; a copy of our containers is refused everywhere.
HAND_MADE = ("unlabelled-namespace-not-asking",)


def load(case: str) -> tuple[dict[str, Any], str]:
    """Return a golden pod and the namespace its review names."""
    pod = yaml.safe_load((GOLDEN / case / "pod.yaml").read_text())
    return pod, pod["metadata"].get("namespace", "default")


def expected_files(reviewed: Reviewed) -> dict[str, str]:
    """Return the files that a case consists of beside its pod."""
    response = {key: value for key, value in reviewed.response.items() if key not in ("uid", "patch")}
    files = {"answer.yaml": _yaml(response)}
    if reviewed.patch:
        files["patch.json"] = json.dumps(reviewed.patch, indent=1, ensure_ascii=False) + "\n"
        files["after.yaml"] = _yaml(reviewed.after)
    return files


def _yaml(value: Any) -> str:
    # A round trip through JSON: an anchor in a golden file would only say that two values were one object.
    plain = json.loads(json.dumps(value))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)


def test_there_are_at_least_forty_golden_pods() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES)
def test_golden_pod_is_answered_as_recorded(case: str, update_golden: bool) -> None:
    pod, namespace = load(case)
    directory: Path = GOLDEN / case
    found = expected_files(mutated(pod, namespace))
    if update_golden:
        for path in directory.iterdir():
            if path.name != "pod.yaml":
                path.unlink()
        for name, text in found.items():
            (directory / name).write_text(text)
    recorded = {path.name: path.read_text() for path in directory.iterdir() if path.name != "pod.yaml"}
    assert recorded == found


@pytest.mark.parametrize("case", CASES)
def test_golden_pod_is_left_alone_when_it_is_admitted_again(case: str) -> None:
    pod, namespace = load(case)
    first = mutated(pod, namespace)
    second = mutated(first.after, namespace)
    assert second.outcome.allowed == first.outcome.allowed, second.response
    assert second.patch == []
    if first.patch:
        assert second.response["auditAnnotations"] == first.response["auditAnnotations"]


@pytest.mark.parametrize("case", CASES)
def test_golden_pod_is_left_alone_in_a_second_round_of_the_api_server(case: str) -> None:
    pod, namespace = load(case)
    first = mutated(pod, namespace)
    again = mutated(between_rounds(first.after), namespace)
    assert again.outcome.allowed == first.outcome.allowed, again.response
    assert again.patch == []


@pytest.mark.parametrize("case", CASES)
def test_golden_pod_is_valid_once_it_is_injected_and_only_then(case: str) -> None:
    pod, namespace = load(case)
    first = mutated(pod, namespace)
    if first.outcome.allowed and case not in HAND_MADE:
        assert validated(between_rounds(first.after), namespace).outcome.allowed
    else:
        assert not validated(pod, namespace).outcome.allowed
    asks = any("volume" in key and "sidemount.io" in key for key in pod["metadata"].get("annotations") or {})
    if first.patch and asks:
        refused = validated(pod, namespace)
        assert refused.reason == "NotInjected"


@pytest.mark.parametrize("case", CASES)
def test_golden_pod_keeps_everything_of_its_own(case: str) -> None:
    pod, namespace = load(case)
    reviewed = mutated(pod, namespace)
    assert {operation["op"] for operation in reviewed.patch} <= {"add", "replace"}
    assert_only_ours_changed(pod, reviewed.after)


def test_no_golden_pod_fails_its_proof() -> None:
    for case in CASES:
        pod, namespace = load(case)
        outcome = mutated(pod, namespace).outcome
        assert not outcome.proof_failed, case
        assert outcome.code != 500, case
