"""`sidemount status` against an API server: what it reads, what it prints, how it ends."""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from sidemount.cli import main
from sidemount.commands import status
from sidemount.commands.health import survey
from tests.cli.cluster_pods import STARTED_MS, golden, log, log_line, running
from tests.cli.fake_cluster import FakeCluster, fake_cluster, forbidden, refusal
from tests.manifests.files import ROOT

PODS = "/api/v1/namespaces/ml/pods"
SERVING = log_line("phase_changed", "train", phase="Serving", generation=1)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as running_cluster:
        yield running_cluster


@pytest.fixture
def call(cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the command: (exit code, output, errors)."""
    kubeconfig = cluster.kubeconfig(tmp_path, namespace="ml")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["status", "--kubeconfig", str(kubeconfig), *arguments])
        printed = capsys.readouterr()
        assert "tkn-never-shown" not in printed.out + printed.err
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


def named(name: str, **states: Any) -> dict[str, Any]:
    return running(golden(name=name, namespace="ml"), **states)


def serve(cluster: FakeCluster, pods: list[dict[str, Any]], *lines: str) -> None:
    cluster.objects[PODS] = pods
    for pod in pods:
        cluster.logs[f"{PODS}/{pod['metadata']['name']}/log"] = log(*(lines or (SERVING,)))


TABLE = """\
POD   VOLUME  CLASS      SOURCE               MODE  HEALTH   TAKEOVERS  STALL  RESTARTS      SINCE
good  train   directory  dir:///srv/datasets  rw    serving  1          31 ms  0             7m
ill   train   directory  dir:///srv/datasets  rw    failing  1          31 ms  4 (keeper 1)  7m

ml/ill train: failing: its daemon: CrashLoopBackOff; OOMKilled, exit code 137; kubectl -n ml logs ill -c sidemount-train

status: 2 pods, 2 volumes: 1 serving, 1 failing; 1 needs a look
"""


def test_a_person_sees_at_a_glance_what_is_wrong_and_what_to_do(
    cluster: FakeCluster, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = STARTED_MS / 1000 + 246 + 7 * 60
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: now_s))
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    crashing = {
        "started": False,
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": ended,
    }
    ill = named("ill", sidemount_train=crashing, sidemount_keeper={"restartCount": 1})
    plain = {"metadata": {"name": "plain", "namespace": "ml"}, "spec": {"containers": []}}
    serve(cluster, [ill, named("good"), plain], SERVING, log_line("taken_over", "train", stall_ms=31))
    code, out, err = call()
    assert (code, err) == (1, "")
    assert out == TABLE


def test_everything_is_in_the_document(cluster: FakeCluster, call: Any) -> None:
    serve(cluster, [named("good")], SERVING, log_line("taken_over", "train", stall_ms=31, generation=2))
    code, out, _ = call("-o", "json")
    assert code == 0
    (pod,) = json.loads(out)["pods"]
    (volume,) = pod["volumes"]
    assert (pod["namespace"], pod["name"], pod["node"], pod["log"]) == ("ml", "good", "node-1", "read")
    assert volume["views"]
    expected = {
        "name": "train", "class": "directory", "delivery": "sidecar", "health": "serving", "phase": "Serving",
        "takeovers": 1, "remounts": 0, "lastStallMs": 31, "daemonRestarts": 0, "countedSinceStart": True,
        "since": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    assert {key: volume[key] for key in expected} == expected
    assert yaml.safe_load(call("-o", "yaml")[1]) == json.loads(out)


def test_what_a_bucket_s_volume_counts_is_told_where_somebody_should_know(
    cluster: FakeCluster, call: Any
) -> None:
    numbers = {"store_requests": 9, "write_abandoned": 2, "fault_denied": 3}
    serve(cluster, [named("good")], SERVING, log_line("volume_counted", "train", instance=1, numbers=numbers))
    code, out, _ = call()
    assert code == 0
    assert (
        "ml/good train: 2 closed files are not in the store yet: their commit fails and is tried again" in out
    )
    assert "ml/good train: 3 operations were denied by the store" in out
    (pod,) = json.loads(call("-o", "json")[1])["pods"]
    assert pod["volumes"][0]["numbers"] == numbers
    assert pod["volumes"][0]["since"] == "2026-01-02T03:04:05Z"


def test_one_list_and_one_log_a_pod_is_all_that_is_asked(cluster: FakeCluster, call: Any) -> None:
    serve(cluster, [named("a"), named("b")])
    assert call("-l", "app in (x,y)")[0] == 0
    lists = [each for each in cluster.calls if "/log?" not in each]
    assert [unquote(each) for each in lists] == [f"GET {PODS}?labelSelector=app in (x,y)&limit=500"]
    assert sorted(each.split("?")[0] for each in cluster.calls if "/log?" in each) == [
        f"GET {PODS}/a/log",
        f"GET {PODS}/b/log",
    ]


def test_a_thousand_pods_come_in_pages_and_their_logs_only_when_asked(
    cluster: FakeCluster, call: Any
) -> None:
    pods = [named(f"p{number}") for number in range(1001)]
    cluster.objects["/api/v1/pods"] = pods
    code, out, err = call("-A")
    assert code == 0
    assert len(cluster.calls) == 3
    assert "1001 pods, 1001 volumes: 1001 serving" in out
    assert "their logs are not read" in err
    assert len(pods) > survey.LOGS_MAX


def test_without_the_right_to_logs_the_containers_decide_and_it_says_so(
    cluster: FakeCluster, call: Any
) -> None:
    serve(cluster, [named("a"), named("b")])
    for name in ("a", "b"):
        cluster.answers[f"{PODS}/{name}/log"] = forbidden("pods/log")
    code, out, err = call()
    assert code == 0
    assert "2 serving" in out
    assert err.count("\n") == 1
    assert (
        "the log of 2 of 2 keepers cannot be read: it needs the right to get pods/log in namespace ml" in err
    )


def test_logs_may_be_anything(cluster: FakeCluster, call: Any) -> None:
    serve(cluster, [named("a")])
    cluster.logs[f"{PODS}/a/log"] = "\x00\x1b[31mpanic\n" + "{" * 5000 + '\n{"event":1}\n' + SERVING + "\n"
    code, out, _ = call()
    assert code == 0
    assert "serving" in out
    assert "0+" in out  # its beginning is not there, so there may have been more


@pytest.mark.parametrize("answer", ["not json", "[]", '{"items": 5}', '{"items": {}}', "{" * 100_000])
def test_an_answer_of_another_kind_is_one_line(cluster: FakeCluster, call: Any, answer: str) -> None:
    cluster.answers[PODS] = (200, answer)
    code, out, err = call()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "pods cannot be listed" in err


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refusal(401, "Unauthorized", "Unauthorized"), "does not accept the credentials"),
        (forbidden("pods"), "is forbidden"),
        (refusal(503, "ServiceUnavailable", "etcd is away"), "etcd is away"),
    ],
)
def test_a_refusal_is_one_line_with_the_way_out(
    cluster: FakeCluster, call: Any, answer: tuple[int, Any], told: str
) -> None:
    cluster.answers[PODS] = answer
    code, out, err = call()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert told in err
    assert err.endswith("(ClusterAccess)\n")


def test_a_server_that_does_not_answer_ends_the_command_in_time(cluster: FakeCluster, call: Any) -> None:
    cluster.delays[PODS] = 2.0
    code, _, err = call("--request-timeout", "0.3s")
    assert code == 1
    assert "no answer in 0.3 s" in err


def test_nobody_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cluster() as gone:
        kubeconfig = gone.kubeconfig(tmp_path)
    assert main(["status", "--kubeconfig", str(kubeconfig)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"http://127.0.0.1:{gone.port} cannot be reached: Connection refused" in err


def test_the_proxy_of_the_environment_is_used_as_kubectl_does(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.objects["/api/v1/namespaces/default/pods"] = []
    kubeconfig = cluster.kubeconfig(tmp_path)
    kubeconfig.write_text(kubeconfig.read_text().replace(f"127.0.0.1:{cluster.port}", "cluster.invalid:80"))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{cluster.port}")
    monkeypatch.setenv("no_proxy", "")
    assert main(["status", "--kubeconfig", str(kubeconfig)]) == 0
    assert cluster.calls[0].startswith("GET http://cluster.invalid")
    monkeypatch.setenv("no_proxy", "cluster.invalid")
    assert main(["status", "--kubeconfig", str(kubeconfig), "--request-timeout", "5"]) == 1
    assert len(cluster.calls) == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_what_listens_there_and_is_no_api_server_is_one_line(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = cluster.kubeconfig(tmp_path)
    kubeconfig.write_text(kubeconfig.read_text().replace("http://", "https://"))
    assert main(["status", "--kubeconfig", str(kubeconfig), "--request-timeout", "5"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "does not speak TLS" in err


def test_a_named_pod_that_is_not_there_or_not_ours_is_said(cluster: FakeCluster, call: Any) -> None:
    plain = {"metadata": {"name": "plain", "namespace": "ml"}, "spec": {}}
    serve(cluster, [named("a"), plain])
    code, out, err = call("pod/a", "plain", "gone")
    assert code == 1
    assert "1 pod, 1 volume: 1 serving" in out
    assert "there is no pod gone in namespace ml" in err
    assert "pod plain has no volume of Sidemount" in err


def test_nothing_there_is_said(cluster: FakeCluster, call: Any) -> None:
    cluster.objects[PODS] = []
    assert call() == (0, "status: no pod in namespace ml has a volume of Sidemount\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "-A"),
        ("a", "-l", "x=y"),
        ("-n", "Not_A_Namespace"),
        ("../../secrets/x",),
        ("--context", "other"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(
    cluster: FakeCluster, call: Any, arguments: tuple[str, ...]
) -> None:
    code, out, err = call(*arguments)
    assert (code, out, cluster.calls) == (2, "", [])
    assert err.startswith("sidemount status: ")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param("", "", id="empty"),
        pytest.param("[1, 2]", "", id="list"),
        pytest.param("{", "", id="no yaml"),
        pytest.param("contexts: []", "has no current context", id="no context"),
        pytest.param("contexts: 5", "", id="contexts of another kind"),
        pytest.param(
            '{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}',
            "names no cluster",
            id="no cluster",
        ),
    ],
)
def test_any_kubeconfig_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, told: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    assert main(["status", "--kubeconfig", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(path) in err
    assert told in err


def test_a_credential_plugin_that_fails_is_named_and_what_it_says_is_not_repeated(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cluster.kubeconfig(tmp_path)
    content = json.loads(path.read_text())
    content["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", "import sys; sys.exit('s3cr3t')"],
        }
    }
    path.write_text(json.dumps(content))
    assert main(["status", "--kubeconfig", str(path)]) == 2
    err = capsys.readouterr().err
    assert "the credential plugin" in err
    assert "s3cr3t" not in err
    assert cluster.calls == []


def test_as_a_plugin_of_kubectl_it_calls_itself_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-sidemount"])
    with pytest.raises(SystemExit):
        main(["status", "--help"])
    assert capsys.readouterr().out.startswith("usage: kubectl sidemount status")


def test_kubectl_finds_the_same_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-sidemount"] == scripts["sidemount"] == "sidemount.cli:main"


def test_a_volume_by_csi_is_looked_for_among_the_mount_pods(cluster: FakeCluster, call: Any) -> None:
    """It is another namespace's pod; who may not list it is told so, and sees the rest."""
    pod = running(golden("csi-and-sidecar", name="both", namespace="ml", uid="u-1"))
    serve(cluster, [pod])
    target = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/hot/mount"
    crashed = {"waiting": {"reason": "CrashLoopBackOff"}}
    mount_pod = {
        "metadata": {
            "namespace": "sidemount-mounts",
            "name": "csi-0",
            "annotations": {"sidemount.io/target": target},
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": "daemon", "state": crashed}]},
    }
    cluster.objects["/api/v1/pods"] = [mount_pod]
    code, out, err = call()
    assert code == 1
    assert "ml/both hot: failing: its mount pod sidemount-mounts/csi-0: CrashLoopBackOff" in out
    assert err == ""
    cluster.answers["/api/v1/pods"] = forbidden("pods")
    code, out, err = call()
    assert code == 0
    assert "hot: unknown: it is delivered by CSI" in out
    assert "mount pods cannot be listed" in err
