"""Sidemount on a real API server and under a real kubelet: deaths, deletion; the node as it was after each."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.bring_up import node_is_ready
from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests import reader
from e2e.tests.deployment import Installation
from e2e.tests.images import sidemount
from e2e.tests.pods import Namespace, container_ids, pod, restarts, shell
from e2e.tests.sources import Source
from sidemount.model.names import OWN_NAMESPACE

_READY_S, _ROUNDS_S = 180.0, 120.0
_KEEPER, _DAEMON = "sidemount-keeper", "sidemount-books"
_BLOCKS = 64


@pytest.fixture
def books(source: Source) -> Iterator[Source]:
    """A source whose file `blob` says in every block which one it is."""
    blob = b"".join(b"%08d" % number * (reader.BLOCK // 8) for number in range(_BLOCKS))
    source.write({"blob": blob}, mode=0o777)
    yield source
    assert source.state()["blob"].endswith(hashlib.sha256(blob).hexdigest()), "a source was changed"


def _reading_pod(books: Source) -> Json:
    """Return a pod that holds a file of its volume open and uses it all the time."""
    app: dict[str, Any] = {
        "name": "app",
        "image": sidemount(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-S", "-u", "-c", Path(str(reader.__file__)).read_text(), "/data"],
        "securityContext": {"runAsUser": 0, "runAsGroup": 0},
        "volumeMounts": [{"name": "books", "mountPath": "/data"}],
    }
    annotations = {"volume.sidemount.io/books": books.uri}
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


def test_the_death_of_what_serves_is_not_noticed(ml: Namespace, books: Source) -> None:
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
    written = books.read("journal").splitlines()
    assert written == [str(number) for number in range(len(written))]
    assert len(written) >= 80


@pytest.mark.slow
@pytest.mark.parametrize("container", [_DAEMON, _KEEPER])
def test_the_death_of_a_whole_container_is_not_noticed(
    cluster: RunningCluster, ml: Namespace, books: Source, container: str
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


@pytest.mark.slow
@pytest.mark.parametrize("component", ["kubelet", "containerd"])
def test_the_death_of_the_node_s_own_component_is_not_noticed(
    cluster: RunningCluster, ml: Namespace, books: Source, component: str
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
    cluster: RunningCluster, ml: Namespace, books: Source, arguments: tuple[str, ...]
) -> None:
    ml.run(_reading_pod(books))
    assert "fuse.sidemount" in cluster.on_node("cat", "/proc/self/mountinfo")
    ml.delete("reader", *arguments)
    gone = wait_for(lambda: "fuse.sidemount" not in cluster.on_node("cat", "/proc/self/mountinfo"), _ROUNDS_S)
    assert gone, cluster.on_node("grep", "fuse", "/proc/self/mountinfo")


@pytest.mark.slow
def test_while_every_webhook_is_away_only_who_asks_is_kept_waiting(
    ml_beside: Namespace, installed: Installation, books: Source
) -> None:
    """Nobody else depends on us, and it recovers by itself."""
    installed.scale(0)
    try:
        assert wait_for(lambda: not installed.api.items("pods", OWN_NAMESPACE), _READY_S)
        ml_beside.run(pod("bystander", shell("app")))
        with pytest.raises(KubectlFailed, match=r"failed calling webhook .pods\.sidemount\.io"):
            ml_beside.create(_reading_pod(books))
    finally:
        installed.scale(2)
    created = wait_for(lambda: _is_created(ml_beside, _reading_pod(books)), _READY_S)
    assert created, f"the webhook is there again, and pods are not created\n{installed.told()}"
    ml_beside.ready("reader")
    installed.roll_out()


def _is_created(ml: Namespace, manifest: Json) -> bool:
    """Try to create an object; tell whether the webhook was there to be asked."""
    try:
        ml.create(manifest)
    except KubectlFailed as fault:
        if "failed calling webhook" not in fault.reason:
            raise
        return False
    return True
