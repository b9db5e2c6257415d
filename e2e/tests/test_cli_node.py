"""`sidemount status` and `doctor --cluster` where everything runs: real logs, a real webhook, kubectl's own way to a plugin."""

import sys
from pathlib import Path

from e2e.cluster.waiting import wait_for
from e2e.tests.command import Said, findings, run_beside, sidemount_command, somebody
from e2e.tests.deployment import Installation
from e2e.tests.pods import Namespace, pod, shell
from e2e.tests.sources import Source

_TOLD_S = 120.0
_KUBECTL_PLUGIN = """\
#!{python}
import sys
from sidemount.cli import main
sys.exit(main())
"""


def test_a_good_installation_is_called_good(installed: Installation, ml: Namespace) -> None:
    """The certificates' end comes from the webhook itself, through the API server; the trial through all of admission."""
    said = sidemount_command(installed.api, "doctor", "--cluster", "-n", ml.name, "-o", "json")
    found = findings(said)
    for topic in (
        "type",
        "mutating webhook",
        "validating webhook",
        "policies",
        "webhook",
        "certificate",
        "facts",
        "trial",
    ):
        assert [each["verdict"] for each in found[topic]] == ["ok"], found[topic]
    assert said.code == 0, said.out
    assert installed.api.items("pods", ml.name) == []  # the trial was a dry run


def test_what_became_of_a_volume_is_told_by_its_keeper(ml: Namespace, source: Source, tmp_path: Path) -> None:
    """A daemon that hands over to the next one on purpose is a takeover with its pause; kubectl finds its plugin."""
    app = shell("app", volumeMounts=[{"name": "books", "mountPath": "/data"}])
    asked = {"volume.sidemount.io/books": f"{source.uri}?readOnly=true"}
    ml.run(pod("reader", app, annotations=asked, volumes=[{"name": "books", "emptyDir": {}}]))
    before = _status(ml)
    assert before.code == 0, before.out + before.err
    (volume,) = before.document["pods"][0]["volumes"]
    expected = {"name": "books", "delivery": "sidecar", "health": "serving", "readOnly": True, "phase": "Serving",
                "takeovers": 0, "remounts": 0, "layers": 1, "source": source.uri}  # fmt: skip
    assert {key: volume[key] for key in expected} == expected
    end_first = "import os, signal; os.kill(1, signal.SIGUSR1)"
    ml.exec("reader", "sidemount-books", "python3", "-c", end_first)
    after = wait_for(lambda: _taken_over(ml), _TOLD_S)
    assert after is not None, _status(ml).out
    assert after["health"] == "serving"
    assert after["lastStallMs"] is not None
    plugin = tmp_path / "kubectl-sidemount"
    plugin.write_text(_KUBECTL_PLUGIN.format(python=sys.executable))
    plugin.chmod(0o755)
    kubectl = run_beside(
        ml.api, [ml.api.program, "sidemount", "status", "-n", ml.name, "reader"], path=tmp_path
    )
    assert kubectl.code == 0, kubectl.err
    assert "1 pod, 1 volume: 1 serving" in kubectl.out
    reads = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    limited = somebody(ml.api, ml.name, "reader", reads, tmp_path)
    said = sidemount_command(ml.api, "status", "-n", ml.name, kubeconfig=limited)
    assert said.code == 0
    assert "the right to get pods/log" in said.err


def _status(namespace: Namespace) -> Said:
    return sidemount_command(namespace.api, "status", "-n", namespace.name, "-o", "json")


def _taken_over(namespace: Namespace) -> dict[str, object] | None:
    volumes = _status(namespace).document["pods"][0]["volumes"]
    found: dict[str, object] = volumes[0]
    return found if found["takeovers"] == 1 else None
