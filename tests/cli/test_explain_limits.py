"""What a namespace's limits mean for a pod, told before it is created: from the same manifests that are on the cluster."""

import json
from pathlib import Path

import pytest

from sidemount.cli import main
from tests.webhook.admission import GOLDEN


def _explained(case: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["explain", "-f", str(GOLDEN / case / "pod.yaml"), "--facts", str(GOLDEN / "facts")])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "exit_code", "told"),
    [
        ("limit-range-fitted", 0, "a LimitRange lowers the limits of sidemount-train: cpu 1, memory 256Mi"),
        ("limit-range-refused", 3, "the pod needs at least 576Mi of memory (its own containers 448Mi,"),
        ("quota-refused", 3, "the pod has 510m of requests.cpu (its own containers 450m,"),
        (
            "quota-used-up",
            0,
            "too little is left of ResourceQuota compute for the pod's 640Mi of limits.memory",
        ),
    ],
)
def test_explain_shows_what_limits_and_quotas_do(
    case: str, exit_code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = _explained(case, capsys)
    assert code == exit_code
    assert told in text


def test_inject_fits_our_containers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = GOLDEN / "limit-range-fitted/pod.yaml"
    assert main(["inject", "-f", str(pod), "--facts", str(GOLDEN / "facts"), "-o", "json"]) == 0
    containers = json.loads(capsys.readouterr().out)["spec"]["initContainers"]
    assert containers[1]["resources"]["limits"] == {"cpu": "1", "memory": "256Mi"}
