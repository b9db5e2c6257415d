"""Sidemount on a real API server and under a real kubelet: README's pod, deaths, deletion; the node as it was after each."""

import json
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.bring_up import node_is_ready
from e2e.cluster.kubectl import Json, Kubectl, KubectlFailed
from e2e.cluster.places import SOURCE
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests import reader
from e2e.tests.conftest import in_namespace
from e2e.tests.deployment import SERVICE, Certificates, configuration, make_certificates, objects
from e2e.tests.images import busybox, sidemount
from e2e.tests.pods import Namespace, container_ids, has_ended, pod, restarts, shell, task
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL, OWN_NAMESPACE

_READY_S, _ROUNDS_S = 180.0, 120.0
_KEEPER, _DAEMON = "sidemount-keeper", "sidemount-books"
_BLOCKS = 64


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    """The webhook's certificates."""
    return make_certificates(datetime.now(UTC))


@pytest.fixture(scope="module")
def open_namespaces(own_cluster: RunningCluster | None, certificates: Certificates) -> Iterator[list[str]]:
    """Names of namespaces that the webhook knows to be open to injection, with the webhook up and the API server asking it."""
    if own_cluster is None:
        pytest.skip("the images and sources of these tests are on our own cluster")
    api = own_cluster.kubectl()
    names = [f"ml-{secrets.token_hex(3)}" for _ in range(20)]
    api.apply(*objects(sidemount(), names, certificates))
    try:
        assert wait_for(lambda: _is_available(api), _READY_S), _described(api)
        api.apply(configuration(certificates))
        # Available is not yet reachable: kube-proxy learns of the pod a moment later.
        assert wait_for(lambda: _is_asked(api), _READY_S), _described(api)
        yield names
    finally:
        api.delete("mutatingwebhookconfiguration", "sidemount")
        api.delete("namespace", OWN_NAMESPACE)
        assert wait_for(lambda: api.get("namespace", OWN_NAMESPACE) is None, _READY_S)


def _is_available(api: Kubectl) -> bool:
    found = api.get("deployment", SERVICE, OWN_NAMESPACE) or {}
    available: int = found.get("status", {}).get("availableReplicas", 0)
    return available > 0 and available == found["spec"]["replicas"]


def _is_asked(api: Kubectl) -> bool:
    """Tell whether the API server reaches the webhook: it refuses a pod that asks where nobody may."""
    asking = pod("asking", task("app", "true"), annotations={"volume.sidemount.io/books": "dir:///srv/books"})
    try:
        api.run("create", "--dry-run=server", "--namespace=default", "-f", "-", text=json.dumps(asking))
    except KubectlFailed as fault:
        return "denied the request" in fault.reason
    return False


def _described(api: Kubectl) -> str:
    where = f"--namespace={OWN_NAMESPACE}"
    told = [api.run("describe", "pods", where)]
    try:
        told.append(api.run("logs", where, f"deployment/{SERVICE}", "--tail=30"))
    except KubectlFailed as fault:
        told.append(str(fault))
    return "\n".join(told)


@pytest.fixture
def ml(open_namespaces: list[str], api: Kubectl, unchanged_node: None) -> Iterator[Namespace]:
    """A namespace that is open to injection."""
    yield from in_namespace(api, open_namespaces.pop(), {INJECTION_LABEL: INJECTION_ENABLED})


@pytest.fixture
def ml_with_other_webhook(open_namespaces: list[str], api: Kubectl) -> Iterator[Namespace]:
    """The same, where the node cannot be compared: the webhook's own pod is another one afterwards."""
    yield from in_namespace(api, open_namespaces.pop(), {INJECTION_LABEL: INJECTION_ENABLED})


@pytest.fixture
def sources(cluster: RunningCluster) -> Path:
    """The node's /srv, from outside."""
    return cluster.places.node / "srv"


@pytest.fixture
def books(sources: Path) -> Iterator[Path]:
    """A source whose file `blob` says in every block which one it is."""
    directory = sources / f"books-{secrets.token_hex(3)}"
    directory.mkdir(mode=0o755)
    blob = b"".join(b"%08d" % number * (reader.BLOCK // 8) for number in range(_BLOCKS))
    (directory / "blob").write_bytes(blob)
    yield directory
    assert (directory / "blob").read_bytes() == blob, "a source was changed"


def _reading_pod(books: Path) -> Json:
    """Return a pod that holds a file of its volume open and uses it all the time."""
    app: dict[str, Any] = {
        "name": "app",
        "image": sidemount(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-S", "-u", "-c", Path(str(reader.__file__)).read_text(), "/data"],
        "securityContext": {"runAsUser": 0, "runAsGroup": 0},
        "volumeMounts": [{"name": "books", "mountPath": "/data"}],
    }
    annotations = {"volume.sidemount.io/books": f"dir:///srv/{books.name}"}
    return pod("reader", app, annotations=annotations, volumes=[{"name": "books", "emptyDir": {}}])


def _rounds(ml: Namespace) -> int:
    return len(ml.logs("reader", "app").splitlines())


def _is_reached(ml: Namespace) -> bool:
    """Tell whether kubelet answers for the pod."""
    try:
        return bool(ml.exec("reader", "app", "true") or ml.logs("reader", "app"))
    except KubectlFailed:
        return False


def _goes_on(ml: Namespace, rounds: int = 20) -> None:
    """Wait until the application has done more of its work, and has never ended."""
    before = _rounds(ml)
    done = wait_for(lambda: _rounds(ml) >= before + rounds, _ROUNDS_S)
    assert done, f"the application stands still after {before} rounds\n{ml.described('reader')}"
    found = ml.pod("reader")
    assert found is not None
    assert restarts(found)["app"] == 0, ml.described("reader")


def _serving_process(ml: Namespace) -> int:
    """Return the number that the process which serves has in its container."""
    lines = ml.logs("reader", _DAEMON).splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return int(next(message["pid"] for message in reversed(told) if message.get("event") == "serving"))


def _signal(ml: Namespace, container: str, pid: int, number: int) -> None:
    ml.exec("reader", container, "python3", "-S", "-c", f"import os; os.kill({pid}, {number})")


def _readme_pod() -> Json:
    """Return the pod that README shows."""
    blocks = re.findall(r"```yaml\n(.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL)
    found: Json = next(made for block in blocks if (made := yaml.safe_load(block))["kind"] == "Pod")
    return found


def test_the_readme_s_pod_reads_its_data(ml: Namespace, sources: Path) -> None:
    manifest = _readme_pod()
    volume, source = next(iter(manifest["metadata"]["annotations"].items()))
    directory = sources / source.removeprefix("dir:///srv/").partition("?")[0]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "n01440764.jpg").write_bytes(b"fish")
    # The node has no registry to ask for the image, and the command ends: once is enough.
    manifest["spec"]["containers"][0]["image"] = busybox()
    manifest["spec"]["restartPolicy"] = "Never"
    created = ml.create(manifest)
    names = [each["name"] for each in created["spec"]["initContainers"]]
    assert names == [_KEEPER, f"sidemount-{volume.removeprefix('volume.sidemount.io/')}"]
    ended = ml.until("trainer", has_ended, "ended")
    assert ended["status"]["phase"] == "Succeeded", ml.described("trainer")
    assert "n01440764.jpg" in ml.logs("trainer", "trainer")
    ml.delete("trainer")


def test_the_death_of_what_serves_is_not_noticed(ml: Namespace, books: Path) -> None:
    """Open files go on, and what was written is there once."""
    ml.run(_reading_pod(books))
    _goes_on(ml)
    for _ in range(3):
        _signal(ml, _DAEMON, _serving_process(ml), 9)
        _goes_on(ml)
    found = ml.pod("reader")
    assert found is not None
    assert restarts(found)[_DAEMON] == 0
    ml.delete("reader")
    written = (books / "journal").read_text().splitlines()
    assert written == [str(number) for number in range(len(written))]
    assert len(written) >= 80


@pytest.mark.parametrize("container", [_DAEMON, _KEEPER])
def test_the_death_of_a_whole_container_is_not_noticed(
    cluster: RunningCluster, ml: Namespace, books: Path, container: str
) -> None:
    """Killed from the node, as the kernel would for want of memory."""
    found = ml.run(_reading_pod(books))
    _goes_on(ml)
    status = next(each for each in found["status"]["initContainerStatuses"] if each["name"] == container)
    cluster.ctr("task", "kill", "--signal", "SIGKILL", status["containerID"].removeprefix("containerd://"))
    again = ml.until(
        "reader", lambda now: restarts(now)[container] >= 1 and _is_started(now, container), "restarted"
    )
    assert restarts(again)["app"] == 0
    _goes_on(ml)
    ml.delete("reader")


def _on_node(cluster: RunningCluster, container: str, pid: int) -> int:
    """Return the number that a container's process has on the node."""
    listed = cluster.ctr("tasks", "ps", container.removeprefix("containerd://")).splitlines()[1:]
    for number in (line.split()[0] for line in listed):
        status = cluster.on_node("grep", "NSpid", f"/proc/{number}/status")
        if status.split()[-1] == str(pid):
            return int(number)
    raise AssertionError(f"process {pid} is not among {listed}")


def _is_started(found: Json, container: str) -> bool:
    return any(
        each["name"] == container and each.get("started") and "running" in each["state"]
        for each in found["status"]["initContainerStatuses"]
    )


@pytest.mark.parametrize("component", ["kubelet", "containerd"])
def test_the_death_of_the_node_s_own_component_is_not_noticed(
    cluster: RunningCluster, ml: Namespace, books: Path, component: str
) -> None:
    """And what serves may die while it is away: nobody of the node's is needed for a takeover."""
    before = container_ids(ml.run(_reading_pod(books)))
    _goes_on(ml)
    process = _on_node(cluster, before[_DAEMON], _serving_process(ml))
    cluster.stop(component)
    try:
        cluster.on_node("kill", "-KILL", str(process))
    finally:
        cluster.start(component)
    # The Node object says ready for a while after kubelet has ended: ask kubelet itself.
    assert wait_for(lambda: _is_reached(ml) and node_is_ready(cluster), _READY_S), ml.described("reader")
    assert container_ids(ml.ready("reader")) == before
    _goes_on(ml)
    ml.delete("reader")


@pytest.mark.parametrize("arguments", [(), ("--force", "--grace-period=0")], ids=["deleted", "forced"])
def test_a_deleted_pod_leaves_no_mount(
    cluster: RunningCluster, ml: Namespace, books: Path, arguments: tuple[str, ...]
) -> None:
    ml.run(_reading_pod(books))
    assert "fuse.sidemount" in cluster.on_node("cat", "/proc/self/mountinfo")
    ml.delete("reader", *arguments)
    gone = wait_for(lambda: "fuse.sidemount" not in cluster.on_node("cat", "/proc/self/mountinfo"), _ROUNDS_S)
    assert gone, cluster.on_node("grep", "fuse", "/proc/self/mountinfo")


def test_while_every_webhook_is_away_only_who_asks_is_kept_waiting(
    ml_with_other_webhook: Namespace, api: Kubectl, books: Path
) -> None:
    """Nobody else depends on us, and it recovers by itself."""
    ml = ml_with_other_webhook
    _scale(api, 0)
    try:
        assert wait_for(lambda: not api.items("pods", OWN_NAMESPACE), _READY_S)
        ml.run(pod("bystander", shell("app")))
        with pytest.raises(KubectlFailed, match=r"failed calling webhook .pods\.sidemount\.io"):
            ml.create(_reading_pod(books))
    finally:
        _scale(api, 1)
    created = wait_for(lambda: _is_created(ml, _reading_pod(books)), _READY_S)
    assert created, f"the webhook is there again, and pods are not created\n{_described(api)}"
    ml.ready("reader")


def _scale(api: Kubectl, replicas: int) -> None:
    api.run("scale", f"deployment/{SERVICE}", f"--namespace={OWN_NAMESPACE}", f"--replicas={replicas}")


def _is_created(ml: Namespace, manifest: Json) -> bool:
    """Try to create an object; tell whether the webhook was there to be asked."""
    try:
        ml.create(manifest)
    except KubectlFailed as fault:
        if "failed calling webhook" not in fault.reason:
            raise
        return False
    return True


def test_a_job_s_pods_see_the_volume_from_their_first_container_on(ml: Namespace, books: Path) -> None:
    """An init container writes, an application of another user reads; the job is done when it is, for all our containers."""
    mounted = [{"name": "books", "mountPath": "/data"}]
    first = task("first", "test -s /data/blob && echo written >/data/note", volumeMounts=mounted)
    then = task(
        "then",
        "cat /data/note",
        volumeMounts=[{**mounted[0], "readOnly": True}],
        securityContext={"runAsUser": 1000, "runAsNonRoot": True},
    )
    books.chmod(0o777)
    template = pod(
        "done",
        then,
        initContainers=[first],
        annotations={"volume.sidemount.io/books": f"dir:///srv/{books.name}"},
        volumes=[{"name": "books", "emptyDir": {}}],
        restartPolicy="Never",
    )
    wanted = {"template": {"metadata": template["metadata"], "spec": template["spec"]}, "backoffLimit": 0}
    ml.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "done"}, "spec": wanted})

    def is_complete() -> bool:
        job = ml.api.get("job", "done", ml.name) or {}
        return any(each["type"] == "Complete" for each in job.get("status", {}).get("conditions", ()))

    name = wait_for(lambda: next(iter(ml.api.items("pods", ml.name)), None), _READY_S)
    assert name is not None
    complete = wait_for(is_complete, _READY_S)
    assert complete, ml.described(name["metadata"]["name"])
    assert ml.logs(name["metadata"]["name"], "then") == "written\n"


def test_a_source_that_no_class_serves_is_refused_with_its_reason(ml: Namespace) -> None:
    asking = pod(
        "stranger",
        task("app", "ls /data", volumeMounts=[{"name": "keys", "mountPath": "/data"}]),
        annotations={"volume.sidemount.io/keys": "dir:///etc"},
        volumes=[{"name": "keys", "emptyDir": {}}],
    )
    with pytest.raises(KubectlFailed, match=r"source|dir:///etc"):
        ml.create(asking)
