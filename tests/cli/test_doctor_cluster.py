"""`sidemount doctor --cluster`: a finding for each thing that an installation consists of, and for each way in which it fails."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sidemount.cli import main
from tests.cli import installed_cluster as place
from tests.cli.fake_cluster import FakeCluster, fake_cluster, forbidden, refusal
from tests.cli.installed_cluster import install, metrics, namespace, node, webhook_pod

NOW = datetime.now(UTC)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as there:
        install(there, NOW)
        yield there
        assert there.writes == []


@pytest.fixture
def doctor(cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the command: (exit code, output)."""
    kubeconfig = cluster.kubeconfig(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["doctor", "--kubeconfig", str(kubeconfig), *(arguments or ("--cluster",))])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        assert "tkn-never-shown" not in printed.out + printed.err
        return code, printed.out

    return run


def findings(doctor: Any, *arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    code, out = doctor(*(arguments or ("--cluster",)), "-o", "json")
    found: dict[str, list[dict[str, str]]] = {}
    for each in json.loads(out)["findings"]:
        found.setdefault(each["topic"], []).append(each)
    assert json.loads(out)["ok"] == (code == 0)
    return code, found


GOOD = """\
    TOPIC               FOUND
ok  API server          v1.31.2
ok  type                fusedriverclasses.sidemount.io, v1alpha1
ok  mutating webhook    2 entries, the authority holds until {until}
ok  validating webhook  3 entries, the authority holds until {until}
ok  policies            4, in force
ok  webhook             2 of 2 replicas ready in sidemount-system
ok  certificate         holds until {leaf}
ok  facts               the webhook's are 3 s old
ok  classes             directory
ok  namespaces          open to injection: ml
ok  kernels             1 node: 6.12.9
ok  runtimes            containerd://2.1.4
ok  other webhooks      none changes pods
ok  CSI                 no CSIDriver csi.sidemount.io: volumes come by sidecar alone
ok  trial               a pod in ml that asks for a volume of class directory gets it: the API server reaches and trusts the webhook

doctor: this cluster can run volumes
"""


def test_a_good_cluster_is_a_list_of_good_findings(doctor: Any) -> None:
    code, out = doctor()
    until = out.split("holds until ")[1].split("\n")[0]
    assert out == GOOD.format(until=until, leaf=f"{NOW + timedelta(days=80):%Y-%m-%d}")
    assert code == 0


def change(path: str, edit: Callable[[list[dict[str, Any]]], Any]) -> Callable[[FakeCluster], None]:
    def apply(cluster: FakeCluster) -> None:
        edit(cluster.objects[path])

    return apply


def answer(path: str, status: int, body: Any) -> Callable[[FakeCluster], None]:
    def apply(cluster: FakeCluster) -> None:
        cluster.answers[path] = (status, body)

    return apply


def _empty_bundle(configurations: list[dict[str, Any]]) -> None:
    configurations[0]["webhooks"][0]["clientConfig"]["caBundle"] = ""


def _strange_bundle(configurations: list[dict[str, Any]]) -> None:
    configurations[0]["webhooks"][1]["clientConfig"]["caBundle"] = "AAAA"


def _mirror(configurations: list[dict[str, Any]]) -> None:
    rules = [{"apiGroups": ["*"], "operations": ["*"], "resources": ["*"]}]
    configurations.append(
        {"metadata": {"name": "imageswap-webhook"}, "webhooks": [{"name": "x.y.z", "rules": rules}]}
    )


METRICS_A = f"{place.WEBHOOK_PODS}/https:webhook-a:8443/proxy/metrics"
SOON = metrics(NOW + timedelta(days=3))


@pytest.mark.parametrize(
    ("break_it", "topic", "verdict", "told"),
    [
        pytest.param(answer("/version", 200, {"gitVersion": "v1.28.1", "major": "1", "minor": "28+"}),
                     "API server", "fail", "1.30", id="old cluster"),
        pytest.param(answer("/version", *forbidden("version")), "API server", "cannot tell", "get the path /version", id="no version"),
        pytest.param(change(place.TYPES, list.clear), "type", "fail", "no fusedriverclasses", id="no type"),
        pytest.param(change(place.TYPES, lambda types: types[0].pop("status")), "type", "fail",
                     "not established", id="type not established"),
        pytest.param(change(place.MUTATING, list.clear), "mutating webhook", "fail", "no pods.sidemount.io", id="no mutating"),
        pytest.param(change(place.VALIDATING, lambda all_of: all_of[0]["webhooks"].pop()), "validating webhook", "warn",
                     "no classes.sidemount.io", id="an entry is gone"),
        pytest.param(change(place.MUTATING, _empty_bundle), "mutating webhook", "fail", "caBundle is empty", id="empty caBundle"),
        pytest.param(change(place.VALIDATING, _strange_bundle), "validating webhook", "fail", "no certificate", id="strange caBundle"),
        pytest.param(change(place.BINDINGS, list.pop), "policies", "warn", "not bound: sidemount-exec", id="a policy is not bound"),
        pytest.param(change(place.POLICIES, list.clear), "policies", "warn", "no sidemount-pods", id="no policies"),
        pytest.param(change(place.WEBHOOK_PODS, list.clear), "webhook", "fail", "0 of 0", id="no replica"),
        pytest.param(change(place.WEBHOOK_PODS, list.pop), "webhook", "warn", "1 of 1", id="one replica alone"),
        pytest.param(change(place.WEBHOOK_PODS, lambda pods: pods.append(webhook_pod("c", "False"))), "webhook", "warn",
                     "2 of 3", id="a replica is not ready"),
        pytest.param(answer(METRICS_A, 200, SOON), "certificate", "warn", "ends soon", id="certificate ends soon"),
        pytest.param(answer(METRICS_A, 200, metrics(NOW - timedelta(days=1))), "certificate", "fail", "ended at", id="certificate ended"),
        pytest.param(answer(METRICS_A, 200, metrics(NOW + timedelta(days=80), 1e9)), "facts", "warn", "good then", id="old facts"),
        pytest.param(answer(METRICS_A, *forbidden("pods/proxy")), "certificate", "cannot tell", "get pods/proxy", id="no proxy"),
        pytest.param(change(place.CLASSES, list.clear), "classes", "warn", "none", id="no class"),
        pytest.param(change(place.CLASSES, lambda classes: classes.append({"metadata": {"name": "bad"}, "spec": {"sources": 1}})),
                     "classes", "fail", "bad is not in force", id="a class with faults"),
        pytest.param(change(place.NAMESPACES, list.pop), "namespaces", "warn", "none is open", id="no open namespace"),
        pytest.param(change(place.NAMESPACES, lambda all_of: all_of.append(
                         namespace("n", **{"sidemount.io/injection": "enabled", "pod-security.kubernetes.io/enforce": "baseline"}))),
                     "namespaces", "warn", "n: labelled, but Pod Security", id="a namespace too narrow"),
        pytest.param(change(place.NAMESPACES, lambda all_of: all_of.append(namespace("n", **{"sidemount.io/injection": "true"}))),
                     "namespaces", "warn", "is not 'enabled'", id="a wrong label"),
        pytest.param(change(place.NODES, lambda nodes: nodes.append(node("old", "5.4.0"))), "kernels", "warn",
                     "old: older than 5.12", id="a kernel too old"),
        pytest.param(change(place.NODES, lambda nodes: nodes.append(node("mid", "6.1.0-18-amd64"))), "kernels", "warn",
                     "NoResend", id="a kernel without RESEND"),
        pytest.param(change(place.NODES, lambda nodes: nodes.append(node("k", "6.12.0", kubeletVersion="v1.28.3"))), "kubelets",
                     "warn", "older than 1.29: k", id="an old kubelet"),
        pytest.param(change(place.NODES, lambda nodes: nodes.append(node("win", "10.0", operatingSystem="windows"))), "nodes", "ok",
                     "Windows: win", id="windows"),
        pytest.param(change(place.NODES, list.clear), "nodes", "fail", "no Linux node", id="no node"),
        pytest.param(change(place.DRIVERS, lambda drivers: drivers.append({"metadata": {"name": "csi.sidemount.io"}})), "CSI", "warn",
                     "NoInlineVolumes", id="no inline volumes"),
        pytest.param(change(place.DRIVERS, lambda drivers: drivers.append(
                         {"metadata": {"name": "csi.sidemount.io"}, "spec": {"volumeLifecycleModes": ["Ephemeral"]}})),
                     "CSI", "ok", "CSIDriver csi.sidemount.io", id="our driver"),
        pytest.param(change(place.MUTATING, _mirror), "other webhooks", "warn", "--image-mirrors", id="an image mirror"),
    ],
)  # fmt: skip
def test_each_fault_is_found_alone(
    cluster: FakeCluster,
    doctor: Any,
    break_it: Callable[[FakeCluster], None],
    topic: str,
    verdict: str,
    told: str,
) -> None:
    break_it(cluster)
    code, found = findings(doctor)
    matching = [each for each in found[topic] if each["verdict"] == verdict]
    assert matching, found[topic]
    assert told in json.dumps(matching, ensure_ascii=False)
    assert verdict != "fail" or code == 1
    assert verdict not in ("warn", "fail") or any(each["meaning"] or each["wayOut"] for each in matching)


CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
CSI_PODS = "/api/v1/namespaces/sidemount-csi/pods"


def csi_pod(name: str, ready: str = "True") -> dict[str, Any]:
    return {
        "metadata": {"name": f"{name}-0", "labels": {"app.kubernetes.io/name": name}},
        "spec": {"nodeName": "node-1"},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def stuck_pod() -> dict[str, Any]:
    waits = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    return {
        "metadata": {"namespace": "sidemount-mounts", "name": "csi-1"},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "daemon", "state": waits}]},
    }


def install_csi(cluster: FakeCluster) -> None:
    """Put the CSI path there, in good health."""
    driver = {"metadata": {"name": "csi.sidemount.io"}, "spec": {"volumeLifecycleModes": ["Ephemeral"]}}
    cluster.objects[place.DRIVERS] = [driver]
    drivers = [{"name": "csi.sidemount.io"}]
    cluster.objects[CSI_NODES] = [{"metadata": {"name": "node-1"}, "spec": {"drivers": drivers}}]
    cluster.objects[CSI_PODS] = [csi_pod("csi-node"), csi_pod("csi-controller")]
    cluster.objects["/api/v1/pods"] = []


def test_a_csi_path_that_works_is_four_good_findings_more(cluster: FakeCluster, doctor: Any) -> None:
    install_csi(cluster)
    code, found = findings(doctor)
    assert code == 0
    assert {
        topic: [each["found"] for each in found[topic]]
        for topic in found
        if "CSI" in topic or "mount" in topic
    } == {
        "CSI": ["CSIDriver csi.sidemount.io"],
        "CSI nodes": ["the driver is known to 1 of 1 kubelet"],
        "CSI node service": ["1 of 1 ready in sidemount-csi"],
        "CSI controller": ["1 of 1 ready in sidemount-csi"],
        "mount pods": ["0, none stuck"],
    }
    assert all(each["verdict"] == "ok" for topic in found for each in found[topic])


@pytest.mark.parametrize(
    ("path", "objects", "topic", "told"),
    [
        (CSI_NODES, [{"metadata": {"name": "node-1"}, "spec": {"drivers": None}}], "CSI nodes", "not on node-1"),
        (CSI_PODS, [csi_pod("csi-node", "False"), csi_pod("csi-controller")], "CSI node service", "0 of 1 ready"),
        (CSI_PODS, [csi_pod("csi-node")], "CSI controller", "none in namespace sidemount-csi"),
        ("/api/v1/pods", [stuck_pod()], "mount pods", "sidemount-mounts/csi-1: ErrImagePull; no such image"),
    ],
)  # fmt: skip
def test_each_fault_of_the_csi_path_is_a_warning_for_sidecars_work(
    cluster: FakeCluster, doctor: Any, path: str, objects: list[dict[str, Any]], topic: str, told: str
) -> None:
    install_csi(cluster)
    cluster.objects[path] = objects
    code, found = findings(doctor)
    assert code == 0
    warned = [
        each for each in (item for items in found.values() for item in items) if each["verdict"] == "warn"
    ]
    assert [each["topic"] for each in warned] == [topic]
    assert told in json.dumps(warned)
    assert warned[0]["wayOut"]


def test_what_of_the_csi_path_may_not_be_read_is_said(cluster: FakeCluster, doctor: Any) -> None:
    install_csi(cluster)
    for path, what in ((CSI_NODES, "csinodes"), (CSI_PODS, "pods"), ("/api/v1/pods", "pods")):
        cluster.answers[path] = forbidden(what)
    _, found = findings(doctor)
    for topic in ("CSI nodes", "CSI node service", "CSI controller", "mount pods"):
        (each,) = found[topic]
        assert each["verdict"] == "cannot tell"
        assert "needs the right to list" in each["found"]


WEBHOOK_URL = 'Post "https://webhook.sidemount-system.svc:443/mutate?timeout=3s"'
CALLING = 'Internal error occurred: failed calling webhook "pods.sidemount.io": failed to call webhook: '


@pytest.mark.parametrize(
    ("status", "message", "verdict", "told"),
    [
        (500, f"{CALLING}{WEBHOOK_URL}: tls: failed to verify certificate: x509: certificate signed by unknown authority",
         "fail", "UnknownAuthority"),
        (500, f"{CALLING}{WEBHOOK_URL}: tls: failed to verify certificate: x509: certificate has expired or is not yet valid",
         "fail", "certificate is refused"),
        (500, f'{CALLING}{WEBHOOK_URL}: no endpoints available for service "webhook"', "fail", "no webhook is there"),
        (500, f"{CALLING}{WEBHOOK_URL}: dial tcp 10.0.0.9:443: connect: connection refused", "fail", "does not listen"),
        (500, f"{CALLING}{WEBHOOK_URL}: context deadline exceeded", "fail", "does not answer in time"),
        (500, 'Internal error occurred: failed calling webhook "x.example.com": boom', "fail", "not of Sidemount"),
        (403, 'admission webhook "pods.sidemount.io" denied the request: volume "data": no (SourceNotPermitted)',
         "fail", "refused by pods.sidemount.io of Sidemount"),
        (422, "Pod is invalid: ValidatingAdmissionPolicy 'sidemount-pods' with binding 'sidemount-pods' denied request: (NotInjected)",
         "fail", "refused by sidemount-pods of Sidemount"),
        (403, 'pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged', "fail", "Pod Security refuses"),
        (403, 'pods "x" is forbidden: unable to validate against any security context constraint: [...]', "fail", "OpenShift"),
        (400, 'admission webhook "warden-validating.common-webhooks.networking.gke.io" denied the request: GKE Warden rejected',
         "fail", "Autopilot"),
        (400, 'admission webhook "validate.kyverno.svc-fail" denied the request: disallow-privileged', "fail", "Kyverno"),
        (403, 'admission webhook "validation.gatekeeper.sh" denied the request: [psp-privileged]', "fail", "Gatekeeper"),
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: cpu=70m', "fail", "quota"),
        (403, 'pods is forbidden: User "dev" cannot create resource "pods" in API group "" in the namespace "ml"',
         "cannot tell", "right to create pods"),
        (400, 'admission webhook "x.example.com" does not support dry run', "cannot tell", "dry run"),
        (403, 'admission webhook "x.example.com" denied the request: no privileged containers', "fail", "refused by x.example.com"),
        (418, "", "fail", "status 418"),
    ],
)  # fmt: skip
def test_the_api_servers_answer_to_the_trial_is_explained(
    cluster: FakeCluster, doctor: Any, status: int, message: str, verdict: str, told: str
) -> None:
    cluster.answers[place.TRIAL] = refusal(status, "x", message)
    _, found = findings(doctor)
    (trial,) = found["trial"]
    assert trial["verdict"] == verdict
    assert told in json.dumps(trial)


def test_a_pod_that_comes_back_without_its_volume_is_found(cluster: FakeCluster, doctor: Any) -> None:
    cluster.admit = lambda _, pod: pod
    assert "came back without it" in json.dumps(findings(doctor)[1]["trial"])


def test_a_webhook_that_strips_the_restart_policy_is_found(cluster: FakeCluster, doctor: Any) -> None:
    def stripped(path: str, pod: dict[str, Any]) -> dict[str, Any]:
        found = place.injected(cluster, path.split("/")[4], pod)
        for container in found["spec"]["initContainers"]:
            del container["restartPolicy"]
        return found

    cluster.admit = stripped
    assert "has lost restartPolicy: Always" in json.dumps(findings(doctor)[1]["trial"])


def test_somebody_without_rights_is_told_which_ones_are_needed(cluster: FakeCluster, doctor: Any) -> None:
    for path in list(cluster.objects):
        cluster.answers[path] = forbidden(path.rsplit("/", 1)[-1])
    cluster.answers["/api/v1/namespaces/default/pods"] = refusal(
        403, "Forbidden", 'User "dev" cannot create resource "pods" in API group ""'
    )
    code, out = doctor()
    assert code == 0
    assert "needs the right to list mutatingwebhookconfigurations" in out
    assert "needs the right to list nodes" in out
    assert "as far as could be seen" in out


def test_before_an_installation_it_is_tried_whether_a_keeper_would_be_let_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_cluster() as bare:
        bare.objects[place.NODES] = [node("n", "6.12.0")]
        kubeconfig = str(bare.kubeconfig(tmp_path))
        assert main(["doctor", "--cluster", "--kubeconfig", kubeconfig]) == 0
        assert "a privileged native sidecar in default is allowed" in capsys.readouterr().out
        bare.answers["/api/v1/namespaces/default/pods"] = refusal(
            403, "Forbidden", 'violates PodSecurity "baseline:latest"'
        )
        assert main(["doctor", "--cluster", "--kubeconfig", kubeconfig]) == 1
        assert bare.writes == []


def test_after_a_removal_what_holds_pods_back_is_named_with_its_command(
    cluster: FakeCluster, doctor: Any
) -> None:
    cluster.answers[place.TRIAL] = refusal(
        500, "InternalError", f"{CALLING}{WEBHOOK_URL}: context deadline exceeded"
    )
    code, out = doctor("--uninstalled", "-n", "ml")
    assert code == 1
    for command in (
        "kubectl delete mutatingwebhookconfiguration sidemount",
        "kubectl delete validatingwebhookconfiguration sidemount",
        "kubectl delete validatingadmissionpolicy sidemount-pods sidemount-ephemeral-containers sidemount-images sidemount-exec",
        "kubectl delete customresourcedefinition fusedriverclasses.sidemount.io",
    ):
        assert command in out
    assert "something left can hold pods back" in out


def test_a_type_that_cannot_go_is_found_with_what_holds_it(cluster: FakeCluster, doctor: Any) -> None:
    cluster.objects[place.TYPES][0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.objects[place.CLASSES][0]["metadata"]["finalizers"] = ["x.y/z"]
    _, found = findings(doctor, "--uninstalled")
    assert found["type"][0]["verdict"] == "fail"
    assert "directory" in found["type"][0]["meaning"]


def test_after_a_clean_removal_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cluster() as bare:
        assert main(["doctor", "--uninstalled", "--kubeconfig", str(bare.kubeconfig(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "nothing left holds a pod back" in out
    assert {
        line.split()[0] for line in out.splitlines()[1:] if line.startswith(("ok", "warn", "FAIL", "?"))
    } == {"ok"}


@pytest.mark.parametrize(
    "body", ["x", "[]", '{"items": [1, {}, {"metadata": 5}, {"metadata": {"name": 7}}]}']
)
def test_no_answer_of_a_cluster_makes_it_fail(cluster: FakeCluster, doctor: Any, body: str) -> None:
    for path in [*cluster.objects, place.TRIAL, METRICS_A, "/version"]:
        cluster.answers[path] = (200, body)
        cluster.answers["/version"] = (200, {"major": [], "minor": None})
    assert doctor()[0] == 1
    assert doctor("--uninstalled")[0] in (0, 1)


def test_arguments_about_a_cluster_need_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--context", "x"]) == 2
    assert "add --cluster" in capsys.readouterr().err


def test_classes_and_explain_can_work_with_what_the_cluster_has(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = str(cluster.kubeconfig(tmp_path))
    cluster.answers["/api/v1/persistentvolumeclaims"] = forbidden("persistentvolumeclaims")
    assert main(["classes", "--cluster", "--kubeconfig", kubeconfig]) == 1
    printed = capsys.readouterr()
    assert "directory" in printed.out
    assert "needs the right to list persistentvolumeclaims" in printed.err
    pod = tmp_path / "pod.json"
    pod.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "p",
                    "namespace": "ml",
                    "annotations": {"volume.sidemount.io/d": "dir:///srv/x"},
                },
                "spec": {
                    "volumes": [{"name": "d", "emptyDir": {}}],
                    "containers": [{"name": "a", "image": "b"}],
                },
            }
        )
    )
    assert main(["explain", "-f", str(pod), "--facts", "cluster", "--kubeconfig", kubeconfig]) == 0
    assert "SidecarPreferred" in capsys.readouterr().out
