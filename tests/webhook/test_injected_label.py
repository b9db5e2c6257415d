"""The label by which pods with volumes of ours are found. It grants nothing, so a forged one gains nothing."""

import pytest

from sidemount.model.names import INJECTED_LABEL
from tests.webhook.admission import Json, mutated, pod_with


def labelled(pod: Json, value: str) -> Json:
    pod["metadata"]["labels"] = {"app": "x", INJECTED_LABEL: value}
    return pod


def test_a_pod_that_gets_a_volume_is_labelled_once() -> None:
    first = mutated(pod_with())
    assert first.after["metadata"]["labels"] == {INJECTED_LABEL: "true"}
    assert mutated(first.after).patch == []


@pytest.mark.parametrize("value", ["false", "", "true"])
def test_what_the_user_wrote_there_is_put_right(value: str) -> None:
    found = mutated(labelled(pod_with(), value)).after["metadata"]["labels"]
    assert found == {"app": "x", INJECTED_LABEL: "true"}


def test_a_pod_without_metadata_gets_its_label_too() -> None:
    pod = pod_with({}, volumes=[{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}])
    del pod["metadata"]
    after = mutated(pod).after
    assert after["metadata"]["labels"] == {INJECTED_LABEL: "true"}


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_forged_label_is_no_request(value: str) -> None:
    assert mutated(labelled(pod_with({}), value)).patch == []
