"""What applications see when something of the volume, of the pod or of the node fails: the design's table on a real cluster.

A row is printed for each event at the end of the run. `E2E_FAULTS_PAGE=docs/failures.md` writes them into that page.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster.bring_up import answers, node_is_ready
from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.places import SOURCE
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.deployment import Installation
from e2e.tests.fault_table import Row, render, write_page
from e2e.tests.images import sidemount
from e2e.tests.pods import Namespace
from e2e.tests.sources import Source, Sources
from e2e.tests.witness_pod import (
    APPS,
    DAEMON,
    KEEPER,
    LOST,
    RECOVERED_S,
    SHELF,
    WitnessPod,
    fill,
    kill,
    manifest,
)

_PAGE = "E2E_FAULTS_PAGE"
_PAUSE, _REOPENED = "a pause, no error", "files that were open: ENOTCONN; opened anew: works"
_LATE_S = 60.0
_JOURNALS = {APPS[0]: f"journal-{APPS[0]}.0", APPS[1]: f"{SHELF}/journal-{APPS[1]}.0"}
_GROWN_BYTES = 100
# Many processes, each smaller than any of the daemon's: where the kernel ends one at a time, it begins with the largest.
_ALLOCATE = """
import os, time
while True:
    if os.fork() == 0:
        kept = b"x" * (3 << 20)
        time.sleep(600)
        os._exit(0)
    time.sleep(0.02)
"""
_CLASSES: dict[str, Json] = {
    "faults-takeover": {"hungAfter": "2s"},
    "faults-remount": {"hungAfter": "2s", "abilities": {"takeover": False}},
    "faults-small": {"resources": {"limits": {"memory": "128Mi"}}},
}


def _class(name: str) -> Json:
    spec = {
        "deliveries": ["sidecar"],
        "sources": ["dir:///srv/faults/**"],
        "namespaces": {},
        "filesystem": "directory",
    }
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": name},
        "spec": {**spec, **_CLASSES[name]},
    }


@pytest.fixture(scope="module")
def classes(installation: Installation) -> Iterator[None]:
    """The classes of these tests, which nobody else's sources match."""
    installation.api.apply(*(_class(name) for name in _CLASSES))
    yield
    for name in _CLASSES:
        installation.api.delete("fusedriverclass", name)


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[list[Row]]:
    """The table, shown when all is done."""
    rows: list[Row] = []
    yield rows
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        print(f"\n\n{render(rows)}")
    if os.environ.get(_PAGE):
        write_page(Path(os.environ[_PAGE]), rows)


@pytest.fixture
def source(sources: Sources, request: pytest.FixtureRequest) -> Iterator[Source]:
    """The directory that a pod's volume shows; what was in it before the pod is as it was afterwards."""
    made = sources.make({}, name=f"faults/{os.urandom(4).hex()}", mode=0o777)
    before = fill(made)
    yield made
    after = made.digests()
    assert {name: after.get(name) for name in before} == before, "a source was changed"
    made.remove()


class Stage:
    """Where an event takes place."""

    def __init__(
        self, cluster: RunningCluster, namespace: Namespace, source: Source, rows: list[Row]
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.source = source
        self._rows = rows

    def pod(self, kind: str = "faults-takeover", name: str = "witness") -> WitnessPod:
        """Have a pod of witnesses run."""
        self.namespace.create(manifest(name, {"class": kind, "source": self.source.uri}))
        pod = WitnessPod(self.cluster, self.namespace, name)
        pod.goes_on()
        return pod

    def survive(
        self, pod: WitnessPod, event: str, strike: Callable[[], None], *, keeps: bool = True, **restarted: int
    ) -> None:
        """Have something happen that the pod outlives; `keeps`: and its open files too. `restarted`: how often keeper and daemon are."""
        more = {{"keeper": KEEPER, "daemon": DAEMON}[name]: count for name, count in restarted.items()}
        before, marks = pod.restarts(), pod.mark()
        strike()
        pod.settled(more, before)
        pod.goes_on(held=keeps)
        stalls = [0.0]
        for name in APPS:
            seen = pod.seen(name, marks[name])
            stalls += seen.stalls_ms
            if keeps:
                assert seen.outcomes == {"held": ["ok"], "fresh": ["ok"]}, pod.described("saw an error")
            else:
                assert seen.outcomes["held"][-1] == "ENOTCONN", pod.described("kept what was open")
                assert seen.outcomes["fresh"][-1] == "ok", pod.described("opens nothing")
                assert set(seen.outcomes["held"] + seen.outcomes["fresh"]) <= {"ok", *LOST}, pod.described(
                    "saw"
                )
        self._rows.append(
            Row(
                event=event,
                saw=_PAUSE if keeps else _REOPENED,
                stall_ms=max(stalls),
                restarts=", ".join(f"{name} {count}x" for name, count in restarted.items()),
            )
        )

    def writes_on(self, pod: WitnessPod) -> None:
        """Wait until both journals have grown, which is seen without anything of Kubernetes."""
        srv = self.cluster.places.node / self.source.path.lstrip("/")
        journals = [srv / at for at in _JOURNALS.values()]
        before = [len(journal.read_bytes()) for journal in journals]

        def have_grown() -> bool:
            return all(
                len(at.read_bytes()) > was + _GROWN_BYTES for at, was in zip(journals, before, strict=True)
            )

        assert wait_for(have_grown, RECOVERED_S), pod.described("writes nothing")

    def end(self, pod: WitnessPod, event: str, strike: Callable[[], None], *, late_s: float = 0.0) -> None:
        """Have something happen that ends the pod, and see it gone: in its grace and little more, with what was acknowledged written.

        `late_s` is how long the event itself keeps kubelet from it.
        """
        acknowledged = {name: pod.acknowledged(name) for name in APPS}
        began = time.monotonic()
        strike()
        pod.wait_gone(pod.grace_s + late_s + _LATE_S)
        self._rows.append(Row(event=event, saw="its end", gone_s=time.monotonic() - began))
        gone = wait_for(lambda: not pod.mounts(), RECOVERED_S)
        assert gone, "mounts are left\n" + "\n".join(pod.mounts())
        for name, at in _JOURNALS.items():
            written = [int(line) for line in self.source.read(at).splitlines()]
            assert written == list(range(len(written))), "a line is there twice, or is not"
            assert len(written) >= acknowledged[name] >= 10, (len(written), acknowledged)

    def delete(self, pod: WitnessPod, *arguments: str) -> None:
        """Ask for the end of the pod."""
        self.namespace.api.delete("pod", pod.name, self.namespace.name, *arguments)


@pytest.fixture
def stage(cluster: RunningCluster, classes: None, source: Source, ml: Namespace, rows: list[Row]) -> Stage:
    """The test's stage; the node is as it was when its namespace is gone."""
    return Stage(cluster, ml, source, rows)


def _killed(pod: WitnessPod, *containers: str) -> None:
    """Kill whole containers, as the kernel would for want of memory; several at once."""
    kill(signal.SIGKILL, *[pod.first_process(name) for name in containers])


def test_an_application_outlives_the_processes_of_its_volume(stage: Stage) -> None:
    """Serving process, keeper, daemon, each once: files stay open, nothing is written twice, no container of the user's ends."""
    pod = stage.pod()
    stage.survive(pod, "serving process killed", lambda: pod.strike_serving(signal.SIGKILL))
    stage.survive(pod, "keeper killed", lambda: _killed(pod, KEEPER), keeper=1)
    stage.survive(pod, "daemon's container killed", lambda: _killed(pod, DAEMON), daemon=1)
    stage.end(pod, "pod deleted", lambda: stage.delete(pod))


def test_an_application_outlives_a_hung_daemon_and_the_node_s_components(stage: Stage) -> None:
    pod = stage.pod()
    stage.survive(pod, "serving process hung, `hungAfter: 2s`", lambda: pod.strike_serving(signal.SIGSTOP))
    for component in ("kubelet", "containerd"):
        stage.survive(pod, f"{component} killed", partial(_component_killed, stage.cluster, pod, component))
    stage.end(pod, "pod deleted without grace", lambda: stage.delete(pod, "--force", "--grace-period=0"))


@pytest.mark.slow
def test_an_application_outlives_an_upgrade(stage: Stage) -> None:
    """By other images, in the order that docs/troubleshooting.md tells. `tests/pods/test_upgrades.py` does it without a cluster."""
    pod = stage.pod()
    other = f"{sidemount()}-upgraded"
    pod.node.ctr("images", "tag", "--force", sidemount(), other)
    stage.survive(pod, "daemon's image changed", lambda: _set_image(stage, pod, DAEMON, other), daemon=1)
    stage.survive(pod, "keeper's image changed", lambda: _set_image(stage, pod, KEEPER, other), keeper=1)
    stage.end(pod, "pod deleted after an upgrade", lambda: stage.delete(pod))


def _set_image(stage: Stage, pod: WitnessPod, container: str, image: str) -> None:
    patch = {"spec": {"initContainers": [{"name": container, "image": image}]}}
    stage.namespace.api.run(
        "patch", "pod", pod.name, f"--namespace={stage.namespace.name}", "-p", json.dumps(patch)
    )


def _component_killed(cluster: RunningCluster, pod: WitnessPod, component: str) -> None:
    starts = pod.node.status()[component]["starts"]
    pod.node.signal(component, signal.SIGKILL)
    assert wait_for(lambda: pod.node.status()[component]["starts"] > starts, RECOVERED_S)
    _component_back(cluster, pod)


def _component_back(cluster: RunningCluster, pod: WitnessPod) -> None:
    """Wait for kubelet itself: what the API server has of pods and nodes is from before until it speaks."""
    assert wait_for(pod.is_reached, RECOVERED_S), pod.described("is not reached")
    assert wait_for(lambda: answers(cluster) and node_is_ready(cluster, pod.node.name), RECOVERED_S)


def test_what_is_opened_anew_works_when_keeper_and_daemon_die_at_once(stage: Stage) -> None:
    """And a pod that is deleted while kubelet is away ends when it is back."""
    pod = stage.pod()
    stage.survive(
        pod,
        "keeper and daemon killed at once",
        lambda: _killed(pod, KEEPER, DAEMON),
        keeps=False,
        keeper=1,
        daemon=1,
    )
    pod.node.stop("kubelet")
    try:
        stage.delete(pod)
        assert not pod.is_gone()
    finally:
        pod.node.start("kubelet")
    stage.end(pod, "pod deleted while kubelet was away, then started", lambda: None)


def test_a_daemon_that_exceeds_its_memory_is_succeeded(stage: Stage) -> None:
    """By its container's own limit: the kernel ends what it likes of it, the last of all what asked for too much."""
    pod = stage.pod("faults-small")
    stage.survive(pod, "daemon's container out of memory", lambda: _exhaust_memory(stage, pod), daemon=1)
    stage.end(pod, "pod evicted", lambda: _evict(stage, pod))


def _exhaust_memory(stage: Stage, pod: WitnessPod) -> None:
    """Use more memory in the daemon's container than it may."""
    with pytest.raises(KubectlFailed):
        stage.namespace.exec(pod.name, DAEMON, "python3", "-S", "-c", _ALLOCATE)
    ended = wait_for(lambda: _last_end(pod.look(), DAEMON), RECOVERED_S)
    assert ended is not None, pod.described("has lost no container")
    assert ended["reason"] == "OOMKilled", ended


def _last_end(found: Json, container: str) -> Json:
    statuses = found["status"]["initContainerStatuses"]
    return next(
        dict(each["lastState"].get("terminated", {})) for each in statuses if each["name"] == container
    )


def _evict(stage: Stage, pod: WitnessPod) -> None:
    where = f"/api/v1/namespaces/{stage.namespace.name}/pods/{pod.name}"
    order = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": stage.namespace.name},
    }
    stage.namespace.api.run("create", "--raw", f"{where}/eviction", "-f", "-", text=json.dumps(order))


def test_a_class_without_takeover_is_mounted_anew(stage: Stage) -> None:
    pod = stage.pod("faults-remount")
    stage.survive(
        pod, "no takeover: daemon's container killed", lambda: _killed(pod, DAEMON), keeps=False, daemon=1
    )
    stage.survive(pod, "no takeover: keeper killed", lambda: _killed(pod, KEEPER), keeps=False, keeper=1)
    stage.end(pod, "namespace deleted", lambda: stage.namespace.api.delete("namespace", stage.namespace.name))


def test_a_pod_ends_while_its_daemon_hangs(stage: Stage) -> None:
    """All of it, not only what serves: nobody is there who would answer or succeed it."""
    pod = stage.pod()
    kill(signal.SIGSTOP, *pod.family(DAEMON))
    stage.end(pod, "pod deleted while its daemon hangs", lambda: stage.delete(pod))


@pytest.mark.slow
def test_a_volume_needs_nobody_of_the_node_to_recover(stage: Stage) -> None:
    """What serves dies while kubelet, or the container runtime, is away; and a daemon whose first process hangs is started anew."""
    pod = stage.pod()
    for component in ("kubelet", "containerd"):
        event = f"serving process killed while {component} is away"
        stage.survive(pod, event, partial(_killed_meanwhile, stage, pod, component))
    event = "every process of the daemon hung, `hungAfter: 2s`"
    stage.survive(pod, event, lambda: kill(signal.SIGSTOP, *pod.family(DAEMON)), daemon=1)
    stage.end(pod, "pod deleted after a failed probe", lambda: stage.delete(pod))


def _killed_meanwhile(stage: Stage, pod: WitnessPod, component: str) -> None:
    serving = pod.processes(DAEMON)[pod.serving()]
    pod.node.stop(component)
    try:
        kill(signal.SIGKILL, serving)
        stage.writes_on(pod)
    finally:
        pod.node.start(component)
    _component_back(stage.cluster, pod)


def test_a_pod_that_is_deleted_while_its_keeper_is_dead_ends_by_itself(stage: Stage) -> None:
    """Its daemon takes the mounts away. Killed for the second time, the keeper is not started anew at once."""
    pod = stage.pod()
    stage.survive(pod, "keeper killed again", lambda: _killed(pod, KEEPER), keeper=1)
    _killed(pod, KEEPER)
    stage.end(pod, "pod deleted while its keeper is dead", lambda: stage.delete(pod))


@pytest.mark.slow
def test_a_pod_that_is_deleted_while_keeper_and_daemon_are_dead_ends_when_its_mounts_are_detached(
    stage: Stage,
) -> None:
    """kubelet starts no container of a deleted pod anew. No file is touched, and docs/failures.md says what ends it.

    Killed for the second time, the keeper is not started anew at once.
    """
    pod = stage.pod()
    stage.survive(pod, "keeper is killed a second time", lambda: _killed(pod, KEEPER), keeper=1)
    _killed(pod, KEEPER)
    _killed(pod, DAEMON)  # or it would take the mounts away; the one that follows has none of their means
    stage.delete(pod)
    assert wait_for(lambda: not pod.has_processes(), RECOVERED_S), pod.described("has processes")
    assert wait_for(lambda: not _of_apps(pod), RECOVERED_S), pod.mounts()
    assert [line for line in pod.mounts() if " fuse.sidemount " in line], "there is nothing that keeps it"
    pod.node.on_node("sh", "-c", _documented().replace("POD-UID", pod.uid))
    stage.end(
        pod,
        "pod deleted while keeper and daemon are dead, mounts detached by hand",
        lambda: None,
        late_s=130.0,
    )


def _of_apps(pod: WitnessPod) -> list[str]:
    """Return what kubelet itself detaches, when the containers have ended."""
    return [line for line in pod.mounts() if "/volume-subpaths/" in line]


def _documented() -> str:
    """Return the command that the page shows."""
    (command,) = re.findall(r"^# (awk .*)$", (SOURCE / "docs/failures.md").read_text(), re.MULTILINE)
    return str(command)
