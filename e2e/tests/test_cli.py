"""`sidemount status` and `doctor --cluster` against a real API server: what it refuses, lists and judges in a dry run."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.bring_up import bring_up
from e2e.cluster.errors import MachineLacks
from e2e.cluster.kubectl import Json, Kubectl, KubectlFailed
from e2e.cluster.places import places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import take_down
from e2e.cluster.waiting import wait_for
from e2e.tests.command import findings, sidemount_command, somebody
from e2e.tests.rendered import MANIFESTS
from tests.cli.cluster_pods import golden, running

_SERVED_S = 120.0
_BLOCKING = (
    "mutatingwebhookconfiguration",
    "validatingwebhookconfiguration",
    "validatingadmissionpolicybinding",
    "validatingadmissionpolicy",
)


@pytest.fixture(scope="module")
def bare() -> Iterator[Kubectl]:
    """An API server of the module's own with a node that nobody runs."""
    places = places_of("e2e-command")
    take_down(places)  # what an interrupted run has left
    try:
        api = bring_up(places, Progress(), api_only=True).kubectl()
    except MachineLacks as fault:
        pytest.exit(f"e2e: {fault}", returncode=3)
    try:
        _add_node(api, "node-1", "6.12.9")
        yield api
    finally:
        take_down(places)


def _add_node(api: Kubectl, name: str, kernel: str) -> None:
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    info = {
        **dict.fromkeys(
            ("machineID", "systemUUID", "bootID", "osImage", "kubeProxyVersion", "architecture"), "x"
        ),
        "kernelVersion": kernel,
        "kubeletVersion": "v1.37.2",
        "containerRuntimeVersion": "containerd://2.1.4",
        "operatingSystem": "linux",
    }
    ready = {"type": "Ready", "status": "True", "reason": "x", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}
    _patch_status(api, "node", name, {"nodeInfo": info, "conditions": [ready]})


def _patch_status(api: Kubectl, kind: str, name: str, status: Json, *where: str) -> None:
    patch = json.dumps({"status": status})
    api.run("patch", kind, name, *where, "--subresource=status", "--type=merge", f"--patch={patch}")


def _namespace(api: Kubectl, name: str, **labels: str) -> str:
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    return name


def _create(api: Kubectl, namespace: str, manifest: Json) -> None:
    """Create a pod and give it its status, which a creation leaves out."""
    manifest = copy.deepcopy(manifest)
    status = manifest.pop("status")
    manifest["metadata"]["namespace"] = namespace
    manifest["metadata"].pop("creationTimestamp", None)
    api.create(manifest)
    _patch_status(api, "pod", manifest["metadata"]["name"], status, f"--namespace={namespace}")


def test_pods_are_judged_by_what_the_api_server_has_of_them(bare: Kubectl) -> None:
    """The keepers' logs cannot be had, because there is no kubelet: that is said, and the rest is shown."""
    here, elsewhere = _namespace(bare, "status-here"), _namespace(bare, "status-elsewhere")
    crashing: dict[str, Any] = {
        "started": False,
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }
    _create(bare, here, running(golden("three-volumes", name="good")))
    _create(bare, here, running(golden(name="ill", labels={"app": "ill"}), sidemount_train=crashing))
    _create(bare, elsewhere, running(golden(name="other")))
    said = sidemount_command(bare, "status", "-n", here, "-o", "json")
    assert said.code == 1
    pods = {pod["name"]: pod for pod in said.document["pods"]}
    assert set(pods) == {"good", "ill"}
    assert [volume["health"] for volume in pods["good"]["volumes"]] == ["serving"] * 3
    (ill,) = pods["ill"]["volumes"]
    assert (ill["health"], ill["daemonRestarts"], ill["lastEnd"]) == (
        "failing",
        4,
        "OOMKilled, exit code 137",
    )
    assert "logs ill -c sidemount-train" in ill["wayOut"]
    assert "cannot be read" in said.err
    everywhere = sidemount_command(bare, "status", "-A", "--no-health")
    assert everywhere.err == ""
    assert "3 pods, 5 volumes: 4 serving, 1 failing" in everywhere.out
    assert sidemount_command(bare, "status", "-n", here, "good", "--no-health").code == 0
    assert sidemount_command(bare, "status", "-n", here, "-l", "app=ill", "--no-health").code == 1
    missing = sidemount_command(bare, "status", "-n", here, "gone")
    assert (missing.code, missing.err.count("\n")) == (1, 1)


def test_whoever_lacks_rights_is_told_which(bare: Kubectl, tmp_path: Path) -> None:
    here = _namespace(bare, "status-rights")
    reads = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    reader, nobody = (
        somebody(bare, here, name, rules, tmp_path) for name, rules in (("reader", reads), ("nobody", []))
    )
    _create(bare, here, running(golden(name="good")))
    said = sidemount_command(bare, "status", "-n", here, kubeconfig=reader)
    assert said.code == 0
    assert "the right to get pods/log in namespace status-rights" in said.err
    refused = sidemount_command(bare, "status", "-n", here, kubeconfig=nobody)
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert refused.err.endswith("(ClusterAccess)\n")
    doubts = sidemount_command(bare, "doctor", "--cluster", "-n", here, kubeconfig=nobody)
    assert doubts.code == 0
    for right in ("list nodes", "list mutatingwebhookconfigurations", "create pods there"):
        assert right in doubts.out
    assert "as far as could be seen" in doubts.out


def test_a_token_that_does_not_count_any_more_is_said(bare: Kubectl, tmp_path: Path) -> None:
    config = json.loads(bare.run("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": "ended"}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    for command in (("status",), ("doctor", "--cluster"), ("classes", "--cluster")):
        said = sidemount_command(bare, *command, kubeconfig=path)
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
        assert "does not accept the credentials" in said.err


def test_a_cluster_before_with_and_after_an_installation_that_nobody_runs(bare: Kubectl) -> None:
    before = sidemount_command(bare, "doctor", "--cluster")
    assert before.code == 0, before.out
    assert "a privileged native sidecar in default is allowed" in before.out
    assert sidemount_command(bare, "doctor", "--uninstalled").code == 0
    narrow = _namespace(bare, "doctor-narrow", **{"pod-security.kubernetes.io/enforce": "baseline"})
    tried = findings(sidemount_command(bare, "doctor", "--cluster", "-n", narrow, "-o", "json"))["trial"]
    assert "Pod Security refuses the keeper" in tried[0]["found"]
    bare.run("apply", "-k", str(MANIFESTS / "overlays/default"))
    assert wait_for(lambda: _takes_classes(bare), _SERVED_S)
    _namespace(bare, "doctor-open", **{"sidemount.io/injection": "enabled"})
    try:
        _check_unanswered(bare)
    finally:
        for kind in _BLOCKING:
            bare.run("delete", kind, "--selector=app.kubernetes.io/part-of=sidemount")
    uninstalled = ("doctor", "--uninstalled", "-n", "doctor-open", "-o", "json")
    # The API server goes on by a deleted policy for a moment.
    wait_for(lambda: sidemount_command(bare, *uninstalled).code == 0, _SERVED_S)
    after = sidemount_command(bare, *uninstalled)
    assert after.code == 0, after.out
    assert findings(after)["asking pod"][0]["verdict"] == "ok"
    assert findings(after)["the rest"][0]["verdict"] == "warn"


def _check_unanswered(api: Kubectl) -> None:
    """Everything is there and nobody answers: pods that ask are held back, and it is said why."""
    found = findings(sidemount_command(api, "doctor", "--cluster", "-o", "json"))
    assert {
        topic: found[topic][0]["verdict"] for topic in ("type", "policies", "classes", "kernels")
    } == dict.fromkeys(("type", "policies", "classes", "kernels"), "ok")
    for topic in ("mutating webhook", "validating webhook", "webhook", "trial"):
        assert found[topic][0]["verdict"] == "fail", topic
    assert "caBundle is empty" in found["mutating webhook"][0]["found"]
    classes = sidemount_command(api, "classes", "--cluster")
    assert (classes.code, classes.err) == (0, "")
    assert "directory" in classes.out
    left = sidemount_command(api, "doctor", "--uninstalled", "-n", "doctor-open", "-o", "json")
    assert left.code == 1
    blocking = (
        "mutating webhook",
        "validating webhook",
        "admission policies",
        "admission bindings",
        "asking pod",
    )
    assert {topic: findings(left)[topic][0]["verdict"] for topic in blocking} == dict.fromkeys(
        blocking, "fail"
    )


def _takes_classes(api: Kubectl) -> bool:
    """A type is served a moment after it was made."""
    try:
        api.run("apply", "-k", str(MANIFESTS / "classes"))
    except KubectlFailed:
        return False
    return True
