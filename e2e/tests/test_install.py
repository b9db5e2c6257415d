"""What docs/install.md says, done: installed from `manifests/`, used, rolled out under load, and taken away."""

import json
import re
import secrets
import shlex
import threading
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json, Kubectl, KubectlFailed
from e2e.cluster.places import SOURCE
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.conftest import in_namespace
from e2e.tests.pods import Namespace, has_ended, pod, shell, task
from e2e.tests.rendered import MANIFESTS, as_text, render
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL, OWN_NAMESPACE

_ROLLOUT_S, _GONE_S, _EFFECT_S = 240.0, 180.0, 60.0
_DEFAULT = MANIFESTS / "overlays/default"
_CONFIGURATIONS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
_BEATS = 40


@pytest.fixture(scope="module")
def installed(own_cluster: RunningCluster | None) -> Iterator[Kubectl]:
    """The default overlay and the first class, as the page says, on a cluster of ours, where the image is."""
    if own_cluster is None:
        pytest.skip("the images and sources of these tests are on our own cluster")
    api = own_cluster.kubectl()
    try:
        api.run("apply", "-k", str(_DEFAULT), timeout_s=120)
        _roll_out(api)
        api.run("apply", "-k", str(MANIFESTS / "classes"))
        yield api
    finally:
        _uninstall(api)


def _roll_out(api: Kubectl) -> None:
    where = f"--namespace={OWN_NAMESPACE}"
    try:
        api.run(
            "rollout",
            "status",
            "deployment/webhook",
            where,
            f"--timeout={_ROLLOUT_S:g}s",
            timeout_s=_ROLLOUT_S + 30,
        )
    except KubectlFailed as fault:
        told = [str(fault), api.run("describe", "pods", where)]
        told += [
            api.run(
                "logs",
                where,
                "--selector=app.kubernetes.io/name=webhook",
                "--all-containers",
                "--tail=20",
                "--prefix",
            )
        ]
        pytest.fail("\n".join(told))


def _uninstall(api: Kubectl) -> None:
    """Do what the page says under "Remove", in its order."""
    page = (SOURCE / "docs/install.md").read_text().partition("## Remove")[2]
    commands = re.findall(r"^\$ kubectl (.*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = [word.replace("manifests/", f"{MANIFESTS}/") for word in shlex.split(command)]
        api.run(*words, "--ignore-not-found", timeout_s=_GONE_S)


@pytest.fixture
def ml(installed: Kubectl) -> Iterator[Namespace]:
    """A namespace that is open to injection, a moment old."""
    yield from in_namespace(installed, f"ml-{secrets.token_hex(3)}", {INJECTION_LABEL: INJECTION_ENABLED})


def _asking(name: str, script: str, source: str = "dir:///srv/nowhere") -> Json:
    app = task("app", script, volumeMounts=[{"name": "books", "mountPath": "/data"}])
    return pod(
        name,
        app,
        annotations={"volume.sidemount.io/books": f"{source}?readOnly=true"},
        volumes=[{"name": "books", "emptyDir": {}}],
        restartPolicy="Never",
    )


def test_a_pod_of_a_labelled_namespace_has_its_volume(ml: Namespace, cluster: RunningCluster) -> None:
    directory = cluster.places.node / "srv" / f"install-{secrets.token_hex(3)}"
    directory.mkdir(mode=0o755)
    (directory / "book").write_text("fish\n")
    ml.create(_asking("reader", "cat /data/book", f"dir:///srv/{directory.name}"))
    ended = ml.until("reader", has_ended, "ended")
    assert ended["status"]["phase"] == "Succeeded", ml.described("reader")
    assert ml.logs("reader", "app") == "fish\n"


def test_whoever_asks_in_another_namespace_is_told_why(installed: Kubectl) -> None:
    namespaces = in_namespace(installed, f"closed-{secrets.token_hex(3)}", {})
    closed = next(namespaces)
    try:
        with pytest.raises(KubectlFailed, match="NamespaceNotEnabled"):
            closed.create(_asking("reader", "true"))
        closed.create(pod("bystander", shell("app")))
    finally:
        next(namespaces, None)


def test_what_a_pod_asks_for_is_settled(ml: Namespace) -> None:
    """S2-05. Everything else of its annotations may change."""
    ml.create(_asking("reader", "sleep 1"))
    where = (f"--namespace={ml.name}", "pod/reader")
    ml.api.run("annotate", *where, "example.com/note=x")
    with pytest.raises(KubectlFailed, match="Immutable"):
        ml.api.run("annotate", *where, "--overwrite", "volume.sidemount.io/books=dir:///srv/elsewhere")


def test_what_a_class_s_type_cannot_say_the_webhook_says(installed: Kubectl) -> None:
    found = next(
        each for each in render(installed, MANIFESTS / "classes") if each["kind"] == "FuseDriverClass"
    )
    found["metadata"]["name"] = f"slow-{secrets.token_hex(3)}"
    found["spec"]["options"] = {"a": {"type": "string", "pattern": "(a+)+"}}
    with pytest.raises(KubectlFailed, match="too many ways"):
        installed.create(found)


def test_what_is_installed_is_what_the_files_say(installed: Kubectl) -> None:
    """Certificates, defaults and status are no difference; applying again changes nothing that works."""
    bundles = [_bundles(installed, kind) for kind in _CONFIGURATIONS]
    assert all(bundle for found in bundles for bundle in found)
    assert installed.run("diff", "-k", str(_DEFAULT)) == ""
    installed.run("apply", "-k", str(_DEFAULT))
    assert [_bundles(installed, kind) for kind in _CONFIGURATIONS] == bundles


def _bundles(api: Kubectl, kind: str) -> list[str]:
    found = api.get(kind, "sidemount") or {}
    return [entry["clientConfig"].get("caBundle", "") for entry in found["webhooks"]]


def test_the_policies_fit_the_types_that_they_judge(installed: Kubectl) -> None:
    """The controller checks every expression against the types of the cluster's own release."""

    def statuses() -> list[Json]:
        found = [each.get("status", {}) for each in installed.items("validatingadmissionpolicy")]
        return found if all("typeChecking" in status for status in found) else []

    checked = wait_for(statuses, _EFFECT_S)
    assert checked
    assert all(not status["typeChecking"].get("expressionWarnings") for status in checked), checked


@pytest.fixture
def patient(installed: Kubectl) -> Iterator[None]:
    """API servers that wait for half a minute: what is lost then is lost, and not late on a machine with more to do."""
    for kind in _CONFIGURATIONS:
        entries = (installed.get(kind, "sidemount") or {})["webhooks"]
        waits = [
            {"op": "replace", "path": f"/webhooks/{index}/timeoutSeconds", "value": 30}
            for index in range(len(entries))
        ]
        installed.run("patch", kind, "sidemount", "--type=json", f"--patch={json.dumps(waits)}")
    yield
    installed.run("apply", "-k", str(_DEFAULT))


@pytest.mark.usefixtures("patient")
def test_no_pod_is_lost_while_the_webhook_is_replaced(ml: Namespace) -> None:
    """J714: created without a pause, in a dry run of the server's, until all replicas are other ones."""
    lost: list[str] = []
    created, is_over = [0], threading.Event()

    def create_on_and_on() -> None:
        manifest = _asking("again", "true")
        manifest["metadata"]["namespace"] = ml.name
        while not is_over.is_set():
            try:
                ml.api.run(
                    "create", "--dry-run=server", "-f", "-", text=as_text([manifest] * _BEATS), timeout_s=300
                )
                created[0] += _BEATS
            except KubectlFailed as fault:
                lost.append(fault.reason)

    creating = threading.Thread(target=create_on_and_on)
    creating.start()
    try:
        assert wait_for(lambda: created[0] or lost, _EFFECT_S)
        ml.api.run("rollout", "restart", "deployment/webhook", f"--namespace={OWN_NAMESPACE}")
        _roll_out(ml.api)
        before = created[0]
        assert wait_for(lambda: created[0] > before or lost, _EFFECT_S)
    finally:
        is_over.set()
        creating.join()
    assert lost == []


def test_when_it_is_taken_away_every_pod_starts(installed: Kubectl) -> None:
    """KAI#751: no configuration is left that anybody waits for. Last, because nothing is installed any more."""
    _uninstall(installed)
    gone = wait_for(lambda: installed.get("namespace", OWN_NAMESPACE) is None, _GONE_S)
    assert gone
    for kind in (
        *_CONFIGURATIONS,
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
        "clusterrole",
        "clusterrolebinding",
        "priorityclass",
        "crd",
    ):
        assert not [each for each in installed.items(kind) if "sidemount" in each["metadata"]["name"]], kind
    namespaces = in_namespace(
        installed, f"after-{secrets.token_hex(3)}", {INJECTION_LABEL: INJECTION_ENABLED}
    )
    after = next(namespaces)
    try:
        after.create(_asking("reader", "true"))
        after.until("reader", has_ended, "ended")
    finally:
        next(namespaces, None)
