"""What docs/install.md says of an installation: what it does, what is the same as in the files, how it is rolled out."""

import json
import secrets
import threading
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json, Kubectl, KubectlFailed
from e2e.cluster.waiting import wait_for
from e2e.tests.deployment import CONFIGURATIONS, DEPLOYMENT, Installation
from e2e.tests.pods import Namespace, pod, shell, task
from e2e.tests.rendered import MANIFESTS, as_text, render
from sidemount.model.names import OWN_NAMESPACE

_EFFECT_S = 120.0
_BEATS = 40


def _asking(name: str, script: str) -> Json:
    app = task("app", script, volumeMounts=[{"name": "books", "mountPath": "/data"}])
    return pod(
        name,
        app,
        annotations={"volume.sidemount.io/books": "dir:///srv/nowhere?readOnly=true"},
        volumes=[{"name": "books", "emptyDir": {}}],
        restartPolicy="Never",
    )


def test_whoever_asks_in_another_namespace_is_told_why(installed: Installation, namespace: Namespace) -> None:
    with pytest.raises(KubectlFailed, match="NamespaceNotEnabled"):
        namespace.create(_asking("reader", "true"))
    namespace.create(pod("bystander", shell("app")))


def test_what_a_pod_asks_for_is_settled(ml: Namespace) -> None:
    """S2-05. Everything else of its annotations may change."""
    ml.create(_asking("reader", "sleep 1"))
    where = (f"--namespace={ml.name}", "pod/reader")
    ml.api.run("annotate", *where, "example.com/note=x")
    with pytest.raises(KubectlFailed, match="Immutable"):
        ml.api.run("annotate", *where, "--overwrite", "volume.sidemount.io/books=dir:///srv/elsewhere")


def test_what_a_class_s_type_cannot_say_the_webhook_says(installed: Installation) -> None:
    api = installed.api
    found = next(each for each in render(api, MANIFESTS / "classes") if each["kind"] == "FuseDriverClass")
    found["metadata"]["name"] = f"slow-{secrets.token_hex(3)}"
    found["spec"]["options"] = {"a": {"type": "string", "pattern": "(a+)+"}}
    with pytest.raises(KubectlFailed, match="too many ways"):
        api.create(found)


@pytest.mark.parametrize("way", [(), ("--server-side", "--force-conflicts")], ids=["client", "server"])
def test_what_is_installed_is_what_the_files_say(installed: Installation, way: tuple[str, ...]) -> None:
    """Certificates, defaults and status are no difference; applying again changes nothing that works."""
    api, files = installed.api, ("-k", str(installed.overlay))
    bundles = [_bundles(api, kind) for kind in CONFIGURATIONS]
    assert all(bundle for found in bundles for bundle in found)
    if not way:
        assert api.run("diff", *files) == ""
    api.run("apply", *way, *files)
    assert [_bundles(api, kind) for kind in CONFIGURATIONS] == bundles
    assert api.run("diff", *way, *files) == ""


def test_authorities_that_somebody_took_out_are_no_difference_and_come_back(installed: Installation) -> None:
    """J705: what a chart or a person resets is put right, and neither moment is a difference from the files."""
    api, files = installed.api, ("-k", str(installed.overlay))
    before = [_bundles(api, kind) for kind in CONFIGURATIONS]
    for kind, found in zip(CONFIGURATIONS, before, strict=True):
        gone = [{"op": "remove", "path": f"/webhooks/{at}/clientConfig/caBundle"} for at in range(len(found))]
        api.run("patch", kind, "sidemount", "--type=json", f"--patch={json.dumps(gone)}")
        assert api.run("diff", *files) == ""
    assert wait_for(lambda: [_bundles(api, kind) for kind in CONFIGURATIONS] == before, _EFFECT_S)
    assert api.run("diff", *files) == ""
    assert wait_for(installed.is_asked, _EFFECT_S)


def _bundles(api: Kubectl, kind: str) -> list[str]:
    found = api.get(kind, "sidemount") or {}
    return [entry["clientConfig"].get("caBundle", "") for entry in found["webhooks"]]


def test_the_policies_fit_the_types_that_they_judge(installed: Installation) -> None:
    """The controller checks every expression against the types of the cluster's own release."""

    def statuses() -> list[Json]:
        policies = installed.api.items(
            "validatingadmissionpolicy", selector="app.kubernetes.io/part-of=sidemount"
        )
        found = [each.get("status", {}) for each in policies]
        return found if all("typeChecking" in status for status in found) else []

    checked = wait_for(statuses, _EFFECT_S)
    assert checked
    assert all(not status["typeChecking"].get("expressionWarnings") for status in checked), checked


@pytest.fixture
def patient(installed: Installation) -> Iterator[None]:
    """API servers that wait for half a minute: what is lost then is lost, and not late on a machine with more to do."""
    api = installed.api
    for kind in CONFIGURATIONS:
        entries = (api.get(kind, "sidemount") or {})["webhooks"]
        waits = [
            {"op": "replace", "path": f"/webhooks/{index}/timeoutSeconds", "value": 30}
            for index in range(len(entries))
        ]
        api.run("patch", kind, "sidemount", "--type=json", f"--patch={json.dumps(waits)}")
    yield
    api.run("apply", "-k", str(installed.overlay))


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_no_pod_is_lost_while_the_webhook_is_replaced(ml_beside: Namespace, installed: Installation) -> None:
    """J714: created without a pause, in a dry run of the server's, until all replicas are other ones."""
    lost: list[str] = []
    created, is_over = [0], threading.Event()

    def create_on_and_on() -> None:
        manifest = _asking("again", "true")
        manifest["metadata"]["namespace"] = ml_beside.name
        while not is_over.is_set():
            try:
                installed.api.run(
                    "create", "--dry-run=server", "-f", "-", text=as_text([manifest] * _BEATS), timeout_s=300
                )
                created[0] += _BEATS
            except KubectlFailed as fault:
                lost.append(fault.reason)

    creating = threading.Thread(target=create_on_and_on)
    creating.start()
    try:
        assert wait_for(lambda: created[0] or lost, _EFFECT_S)
        installed.api.run("rollout", "restart", f"deployment/{DEPLOYMENT}", f"--namespace={OWN_NAMESPACE}")
        installed.roll_out()
        before = created[0]
        assert wait_for(lambda: created[0] > before or lost, _EFFECT_S)
    finally:
        is_over.set()
        creating.join()
    assert lost == []
