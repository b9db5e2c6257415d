"""What kubectl says, and what a program reads of our own command."""

import json
from pathlib import Path

import pytest

from e2e.cluster import command
from e2e.cluster.kubectl import Kubectl, KubectlFailed
from e2e.cluster.places import ClusterPlaces


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo difference; exit 1", "difference"),
        ("echo output; echo refusal >&2; exit 1", "refusal"),
        ("exit 3", "exit status 3"),
    ],
)
def test_what_kubectl_says_of_a_failure_is_in_the_error(tmp_path: Path, script: str, said: str) -> None:
    """`diff` says it on standard output, all others on the other one."""
    with pytest.raises(KubectlFailed) as failed:
        Kubectl(tmp_path, program="sh").run("-c", script)
    assert failed.value.reason == said


def test_nothing_but_json_is_printed_where_json_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RunningCluster", _named)
    monkeypatch.setattr(command, "load_services", lambda *_: ("registry.example/image:1",))
    assert command.main(["load-images", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"images": ["registry.example/image:1"]}
    assert command.main(["load-images"]) == 0
    assert capsys.readouterr().out == "registry.example/image:1\n"


def _named(places: ClusterPlaces) -> ClusterPlaces:
    return places
