"""What applications see when something of a volume by CSI fails: the plugin, the mount pod, the node's components.

Launcher `pod`, class `pooled` (with takeover). A row is printed for each event at the end of the run; `E2E_FAULTS_PAGE=docs/failures.md`
writes them into that page.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from e2e.cluster.bring_up import answers, node_is_ready
from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.conftest import in_namespace, named_after
from e2e.tests.csi_plugin import Plugin
from e2e.tests.csi_rest import clear_forgotten, nothing_left
from e2e.tests.csi_witness import DAEMON, CsiStage, MountPod, ServedPod
from e2e.tests.csi_world import CSI, CsiPath, World, claim, user_pod
from e2e.tests.fault_table import Row, render, write_page
from e2e.tests.pods import GONE_S, is_ending
from e2e.tests.witness_pod import RECOVERED_S, kill

_PAGE = "E2E_FAULTS_PAGE"
_SMALL = "faults-csi-small"
_LONG_S, _SHORT_S = 60.0, 10.0
_GRACE_S = 30
_BLOWS = 4
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


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[list[Row]]:
    """The table, shown when all is done."""
    rows: list[Row] = []
    yield rows
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        print(f"\n\n{render(rows)}")
    if os.environ.get(_PAGE):
        write_page(Path(os.environ[_PAGE]), rows, of="csi")


@pytest.fixture
def stage(
    cluster: RunningCluster,
    csi: CsiPath,
    namespaces_go: None,
    rows: list[Row],
    request: pytest.FixtureRequest,
) -> Iterator[CsiStage]:
    """The test's stage; afterwards nothing of it is left, though the plugin's pod may be another one."""
    with nothing_left(csi):
        for made in in_namespace(csi.api, named_after(request.node), {}):
            yield CsiStage(cluster, World(csi, made), rows)


@pytest.fixture
def small(csi: CsiPath) -> Iterator[str]:
    """A StorageClass whose mount pods have little memory."""
    found = csi.api.get("fusedriverclass", "pooled")
    assert found is not None
    spec = {**found["spec"], "resources": {"limits": {"memory": "128Mi"}}}
    kind = {"apiVersion": "sidemount.io/v1alpha1", "kind": "FuseDriverClass", "metadata": {"name": _SMALL}}
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _SMALL},
        "provisioner": "csi.sidemount.io",
        "parameters": {"class": _SMALL, "source": "dir:///srv/pool"},
    }
    csi.api.apply({**kind, "spec": spec}, storage)
    yield _SMALL
    csi.api.delete("storageclass", _SMALL)
    csi.api.delete("fusedriverclass", _SMALL)


# The plugin --------------------------------------------------------------------------------------------


def test_an_application_notices_nothing_of_the_plugin_s_death_or_roll(stage: CsiStage) -> None:
    """S0-08, S0-19, S3-07, S3-09: the same daemon serves on, as the same process."""
    pod, plugin = stage.pod(), Plugin(stage.world.path, stage.cluster)
    serving = pod.mount_pod().numbers()
    stage.survive(pod, "plugin's keeper killed", lambda: _struck(plugin, "keeper"))
    stage.survive(pod, "plugin killed", lambda: _struck(plugin, "plugin"))
    stage.survive(pod, "plugin's pod deleted", plugin.replace)
    stage.survive(pod, "DaemonSet rolled", lambda: _rolled(stage.world.path, plugin))
    assert pod.mount_pod().numbers() == serving
    stage.end(pod)


def _struck(plugin: Plugin, which: str) -> None:
    plugin.ready()
    before = plugin.processes()
    assert plugin.kill(which)
    assert wait_for(
        lambda: set(plugin.processes()) == set(before) and _are_others(plugin, before, which), RECOVERED_S
    )
    plugin.ready()


def _are_others(plugin: Plugin, before: dict[str, int], which: str) -> bool:
    return plugin.processes().get(which) != before[which]


def _rolled(path: CsiPath, plugin: Plugin) -> None:
    before = plugin.ready()["metadata"]["uid"]
    path.api.run("rollout", "restart", "daemonset/node", f"--namespace={CSI}")
    path.roll_out()
    assert plugin.ready()["metadata"]["uid"] != before


@pytest.mark.parametrize(
    "for_s",
    [pytest.param(_SHORT_S, id="short"), pytest.param(_LONG_S, id="a-minute", marks=pytest.mark.slow)],
)
def test_an_application_goes_on_while_the_plugin_crashes_at_random(stage: CsiStage, for_s: float) -> None:
    """And pods that come and go meanwhile, ready or not, leave nothing: on the node, in the store, of mount pods."""
    pod, plugin = stage.pod(), Plugin(stage.world.path, stage.cluster)
    serving = pod.mount_pod().numbers()
    stage.world.make(claim("comers", "16Mi"))
    stage.survive(pod, f"plugin killed at random for {for_s:g} s", lambda: _storm(stage.world, plugin, for_s))
    assert pod.mount_pod().numbers() == serving
    stage.world.unclaim("comers")
    stage.end(pod)


def _storm(world: World, plugin: Plugin, for_s: float) -> None:
    """Kill plugin, keeper or the whole pod at random moments; have pods come and go."""
    chosen = random.Random(seed := int.from_bytes(os.urandom(4)))
    print(f"seed {seed}")
    until, faults = time.monotonic() + for_s, []
    blows = 0

    def come_and_go(slot: int) -> None:
        own = random.Random(seed + slot)
        number = 0
        try:
            while time.monotonic() < until:
                name, number = f"comer-{slot}-{number}", number + 1
                world.create(
                    user_pod(name, {"data": "comers"}, "echo $HOSTNAME >/data/$HOSTNAME; sleep 1000")
                )
                time.sleep(own.uniform(0.0, 5.0))  # whatever it has come to
                grace = own.choice(("--grace-period=0", "--grace-period=1"))
                force = ("--force",) if grace.endswith("=0") else ()
                world.api.delete("pod", name, world.name, grace, *force)
        except Exception as error:
            faults.append(error)

    comers = [threading.Thread(target=come_and_go, args=(slot,), daemon=True) for slot in (1, 2)]
    for comer in comers:
        comer.start()
    while time.monotonic() < until or blows < _BLOWS:
        assert time.monotonic() < until + RECOVERED_S, f"only {blows} blows"
        time.sleep(chosen.uniform(0.2, 2.0))
        if chosen.random() < 0.5:
            blows += plugin.kill(chosen.choice(("plugin", "keeper")))
        else:  # kubelet starts the container of a pod that lives ever more seldom
            plugin.delete("--force", "--grace-period=0")
            blows += 1
    for comer in comers:
        comer.join(GONE_S)
        assert not comer.is_alive()
    assert not faults, faults
    plugin.ready()
    ours = {each["metadata"]["name"] for each in world.pods()} - {"witness"}
    assert wait_for(lambda: not ({each["metadata"]["name"] for each in world.pods()} & ours), GONE_S), (
        world.pods()
    )
    clear_forgotten(plugin.node)


# The mount pod -----------------------------------------------------------------------------------------


def test_an_application_outlives_the_processes_of_its_mount_pod(stage: CsiStage) -> None:
    """S3-10, S3-11: a pause, whichever of them dies; a container that is started again takes over, too."""
    pod = stage.pod()
    stage.survive(pod, "serving process killed", pod.mount_pod().strike)
    stage.survive(pod, "mount pod's container killed", lambda: _first_killed(pod.mount_pod()), anew=1)
    stage.survive(pod, "serving process killed again", pod.mount_pod().strike)
    stage.end(pod)


def _first_killed(servant: MountPod) -> None:
    kill(signal.SIGKILL, servant.first_process(DAEMON))


def test_a_mount_pod_that_exceeds_its_memory_is_succeeded(stage: CsiStage, small: str) -> None:
    pod = stage.pod(small)
    stage.survive(pod, "mount pod out of memory", lambda: _exhaust_memory(pod.mount_pod()), anew=1)
    stage.end(pod)


def _exhaust_memory(servant: MountPod) -> None:
    """Use more memory in the daemon's container than it may."""
    with pytest.raises(KubectlFailed):
        servant.namespace.exec(servant.name, DAEMON, "python3", "-S", "-c", _ALLOCATE)

    def ended() -> Json | None:
        (status,) = servant.look()["status"]["containerStatuses"]
        return status["lastState"].get("terminated")  # type: ignore[no-any-return]

    found = wait_for(ended, RECOVERED_S)
    assert found is not None, servant.described("has lost no container")
    assert found["reason"] == "OOMKilled", found


def test_a_mount_pod_that_is_deleted_serves_on_and_is_succeeded(stage: CsiStage) -> None:
    """S3-08: SIGTERM is nothing to a daemon in use. Its pod ends with its application's, or when its grace is over."""
    pod = stage.pod(sub_path=False)
    servant = pod.mount_pod()
    with pytest.raises(KubectlFailed, match="disruption budget"):
        _evict(servant)
    stage.survive(
        pod,
        "mount pod deleted, when its grace is over",
        lambda: _told_to_end(pod, servant),
        keeps=False,
        anew=None,
    )
    again = pod.mount_pod()
    forced = ("--force", "--grace-period=0")
    stage.survive(
        pod,
        "mount pod deleted by force",
        lambda: again.namespace.api.delete("pod", again.name, again.namespace.name, *forced),
        keeps=False,
        anew=None,
    )
    last = pod.mount_pod()
    last.namespace.api.delete("pod", last.name, last.namespace.name)  # with the ten minutes that it has
    pod.goes_on(held=False)
    assert is_ending(last.look())
    stage.end(pod)


def _told_to_end(pod: ServedPod, servant: MountPod) -> None:
    """Delete a mount pod, and see its volume used meanwhile as before."""
    api, namespace = servant.namespace.api, servant.namespace.name
    api.delete("pod", servant.name, namespace, f"--grace-period={_GRACE_S}")
    pod.goes_on()
    assert is_ending(servant.look())


def _evict(servant: MountPod) -> None:
    where = f"/api/v1/namespaces/{servant.namespace.name}/pods/{servant.name}"
    order = f'{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{servant.name}"}}}}'
    servant.namespace.api.run("create", "--raw", f"{where}/eviction", "-f", "-", text=order)


def test_what_is_opened_anew_works_when_plugin_and_daemon_die_at_once(stage: CsiStage) -> None:
    """S0-29, S3-01: both holders of the descriptor are gone; the volume is mounted anew, and a running container sees it."""
    pod, plugin = stage.pod(sub_path=False), Plugin(stage.world.path, stage.cluster)
    stage.survive(
        pod,
        "plugin and mount pod's container killed at once",
        lambda: _both_killed(pod, plugin),
        keeps=False,
        anew=1,
    )
    stage.end(pod)


def _both_killed(pod: ServedPod, plugin: Plugin) -> None:
    plugin.ready()
    first = pod.mount_pod().first_process(DAEMON)
    kill(signal.SIGKILL, *plugin.processes().values(), first)
    plugin.ready()


@pytest.mark.slow
def test_a_mount_pod_that_hangs_is_started_again_and_keeps_no_pod_from_ending(stage: CsiStage) -> None:
    pod = stage.pod()
    stage.survive(pod, "every process of the mount pod hung", lambda: _all_stopped(pod), anew=1)
    _all_stopped(pod)
    began = time.monotonic()
    stage.end(pod)
    assert time.monotonic() - began < GONE_S


def _all_stopped(pod: ServedPod) -> None:
    kill(signal.SIGSTOP, *pod.mount_pod().family(DAEMON))


# The node ----------------------------------------------------------------------------------------------


def test_an_application_notices_nothing_of_the_node_s_components(stage: CsiStage) -> None:
    """S3-07: kubelet or the container runtime killed, and what serves killed while either is away."""
    pod = stage.pod()
    for component in ("kubelet", "containerd"):
        stage.survive(pod, f"{component} killed", lambda each=component: _component_killed(pod, each))  # type: ignore[misc]
    stage.survive(
        pod, "serving process killed while kubelet is away", lambda: _killed_meanwhile(pod, "kubelet")
    )
    stage.end(pod)


def _component_killed(pod: ServedPod, component: str) -> None:
    starts = pod.node.status()[component]["starts"]
    pod.node.signal(component, signal.SIGKILL)
    assert wait_for(lambda: pod.node.status()[component]["starts"] > starts, RECOVERED_S)
    _back(pod)


def _killed_meanwhile(pod: ServedPod, component: str) -> None:
    servant = pod.mount_pod()
    serving = servant.processes(DAEMON)[servant.serving()]
    pod.node.stop(component)
    try:
        kill(signal.SIGKILL, serving)
        pod.writes_on()
    finally:
        pod.node.start(component)
    _back(pod)


def _back(pod: ServedPod) -> None:
    """Wait for kubelet itself: what the API server has of pods and nodes is from before until it speaks."""
    cluster = pod.path.cluster
    assert wait_for(pod.is_reached, RECOVERED_S), pod.described("is not reached")
    assert wait_for(lambda: answers(cluster) and node_is_ready(cluster, pod.node.name), RECOVERED_S)


@pytest.mark.slow
def test_a_volume_needs_no_api_server(stage: CsiStage) -> None:
    """Served on while it is away, whoever dies: what serves, the mount pod's container, the plugin."""
    pod, plugin = stage.pod(), Plugin(stage.world.path, stage.cluster)
    plugin.replace()  # one that has been killed before is started again ever more seldom
    event = "plugin, then mount pod's container killed while the API server is away"
    stage.survive(pod, event, lambda: _without_api_server(pod, plugin), anew=1)
    stage.end(pod)


def _without_api_server(pod: ServedPod, plugin: Plugin) -> None:
    plugin.ready()
    cluster = pod.path.cluster
    of_plugin, first, back = (
        plugin.processes(),
        pod.mount_pod().first_process(DAEMON),
        plugin.times("came_back"),
    )
    cluster.stop("kube-apiserver")
    try:
        kill(signal.SIGKILL, of_plugin["plugin"])
        pod.writes_on()
        assert wait_for(lambda: back() > 0, RECOVERED_S), "no keeper has it back"
        kill(signal.SIGKILL, first)
        pod.writes_on()
    finally:
        cluster.start("kube-apiserver")
    assert wait_for(lambda: answers(cluster) and node_is_ready(cluster, pod.node.name), RECOVERED_S)
    plugin.ready()
