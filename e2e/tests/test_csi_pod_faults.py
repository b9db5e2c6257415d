"""Pods with volumes by CSI that are deleted by force, at every stage of their life, and with their claims at once: nothing is left of them."""

import signal
import time
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.conftest import OPEN, in_namespace, named_after
from e2e.tests.csi_rest import nothing_left
from e2e.tests.csi_world import CSI, GONE_S, WITHIN_S, CsiPath, World, claim, user_pod
from e2e.tests.pods import Namespace, is_ending
from e2e.tests.sources import Source, Sources
from e2e.tests.witness_pod import DAEMON, KEEPER, RECOVERED_S, WitnessPod, fill, kill, manifest

_GRACE_S = 20
_FORCE = ("--force", "--grace-period=0")
_HUGE = "faults-csi-huge"
_WRITES = "while true; do echo $HOSTNAME >>/data/lines; sync /data/lines; sleep 0.05; done"
_STAYS = "trap '' TERM; " + _WRITES


@pytest.fixture
def leaves_nothing(csi: CsiPath, namespaces_go: None, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace; afterwards the node, the store and the mount pods are as they were."""
    with nothing_left(csi):
        for made in in_namespace(csi.api, named_after(request.node), {}):
            yield World(csi, made)


@pytest.fixture
def huge(csi: CsiPath) -> Iterator[str]:
    """A StorageClass whose mount pods fit on no node."""
    found = csi.api.get("fusedriverclass", "pooled")
    assert found is not None
    room = {"requests": {"cpu": "1000"}, "limits": {"cpu": "1000"}}
    csi.api.apply(
        {
            "apiVersion": "sidemount.io/v1alpha1",
            "kind": "FuseDriverClass",
            "metadata": {"name": _HUGE},
            "spec": {**found["spec"], "resources": room},
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": _HUGE},
            "provisioner": "csi.sidemount.io",
            "parameters": {"class": _HUGE, "source": "dir:///srv/pool"},
        },
    )
    yield _HUGE
    csi.api.delete("storageclass", _HUGE)
    csi.api.delete("fusedriverclass", _HUGE)


def test_a_pod_deleted_by_force_while_it_is_created_leaves_nothing(leaves_nothing: World) -> None:
    """S0-20, S0-21: at whatever moment of its publish."""
    world = leaves_nothing
    world.make(claim("data"))
    for number in range(6):
        name = f"early-{number}"
        world.make(user_pod(name, {"data": "data"}))
        time.sleep(number * 0.3)  # moments, not waiting for anything
        world.api.delete("pod", name, world.name, *_FORCE)
    # And the next one finds nothing of them in its way.
    world.make(user_pod("next", {"data": "data"}))
    world.runs("next")
    world.gone("next")
    world.unclaim("data")


def test_a_pod_whose_volume_finds_no_room_says_so_and_leaves_nothing(
    leaves_nothing: World, huge: str
) -> None:
    """Its event names the mount pod and the reason. It stays ContainerCreating until it is deleted by force."""
    world = leaves_nothing
    world.make(claim("data", storage_class=huge), user_pod("waits", {"data": "data"}))
    told = wait_for(lambda: _told_of(world, "waits", "FailedScheduling"), WITHIN_S)
    assert told is not None, world.events("waits")
    assert "sidemount-mounts-baseline/csi-" in told
    assert "cpu" in told
    waits = world.pod("waits")
    assert waits is not None
    assert waits["status"]["phase"] == "Pending"
    world.api.delete("pod", "waits", world.name, *_FORCE)
    world.unclaim("data")


def _told_of(world: World, name: str, word: str) -> str | None:
    return next((line for line in world.events(name).splitlines() if word in line), None)


def test_a_pod_deleted_by_force_while_it_runs_or_ends_leaves_nothing(leaves_nothing: World) -> None:
    """S0-20, S0-21: it writes all the time, and does not heed SIGTERM. What it has written is there.

    The kubelet gives a pod that ends already the rest of its grace, whoever deletes it by force: it is served for as long.
    """
    world = leaves_nothing
    world.make(claim("data", "64Mi"))
    stays = user_pod("ends", {"data": "data"}, _STAYS, terminationGracePeriodSeconds=_GRACE_S)
    world.make(user_pod("runs", {"data": "data"}, _WRITES), stays)
    world.runs("runs", "ends")
    written = int(world.sh("ends", "wc -l </data/lines"))
    world.api.delete("pod", "runs", world.name, *_FORCE)
    world.api.delete("pod", "ends", world.name)
    ends = world.until("ends", is_ending, "ending")
    assert len(_servants(world, ends)) == 1
    world.api.delete("pod", "ends", world.name, *_FORCE)
    world.make(user_pod("reads", {"data": "data"}))
    world.runs("reads")
    lines = world.sh("reads", "cat /data/lines").split()
    assert len(lines) > written
    assert set(lines) == {"runs", "ends"}
    world.gone("reads")
    world.unclaim("data")


def _servants(world: World, of: Json) -> list[Json]:
    pods = world.path.mount_pods()
    return [
        each
        for each in pods
        if of["metadata"]["uid"] in each["metadata"]["annotations"]["sidemount.io/target"]
    ]


@pytest.mark.parametrize("how", [pytest.param((), id="told"), pytest.param(_FORCE, id="by-force")])
def test_pod_and_claim_deleted_at_once_leave_nothing(leaves_nothing: World, how: tuple[str, ...]) -> None:
    """While it runs, and while it is created: the volume goes when nobody has it mounted any more."""
    world = leaves_nothing
    world.make(claim("of-runs"), user_pod("runs", {"data": "of-runs"}, _WRITES))
    world.runs("runs")
    world.make(claim("of-early", storage_class="sidemount-immediate"))
    volumes = [world.bound("of-runs"), world.bound("of-early")]
    world.make(user_pod("early", {"data": "of-early"}, _WRITES))
    objects = ("pod/runs", "pvc/of-runs", "pod/early", "pvc/of-early")
    world.api.run("delete", *objects, f"--namespace={world.name}", "--wait=false", *how)

    def left() -> list[str]:
        there = [volume for volume in volumes if world.api.get("pv", volume) is not None]
        return there + [volume for volume in volumes if f"volumes/{volume}" in world.path.in_pool()]

    assert wait_for(lambda: not left(), GONE_S), f"left: {left()}\n{world.path.told()}"


# Sidecars ----------------------------------------------------------------------------------------------


@pytest.fixture
def source(sources: Sources) -> Iterator[Source]:
    """The directory that a sidecar's volume shows; what was in it is as it was afterwards."""
    made = sources.make({}, mode=0o777)
    before = fill(made)
    yield made
    after = made.digests()
    assert {name: after.get(name) for name in before} == before, "a source was changed"
    made.remove()


@pytest.fixture
def injected(csi: CsiPath, sources: Sources, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace that is open to injection, on a cluster with the node service; afterwards the node is as it was."""
    with nothing_left(csi):
        yield from in_namespace(csi.api, named_after(request.node), OPEN, sources.node)


def test_the_node_service_ends_a_pod_whose_keeper_and_daemon_are_dead(
    cluster: RunningCluster, csi: CsiPath, injected: Namespace, source: Source
) -> None:
    """Deleted in the moment when both are killed: nobody of the pod can unmount (kubernetes/kubernetes#129550).

    Killed for the second time, neither is started again at once.
    """
    injected.create(manifest("witness", {"source": source.uri}))
    pod = WitnessPod(cluster, injected, "witness")
    pod.goes_on()
    before = pod.restarts()
    _both_killed(pod)
    pod.settled({KEEPER: 1, DAEMON: 1}, before)
    _both_killed(pod)
    csi.api.delete("pod", pod.name, injected.name, "--grace-period=1")
    assert wait_for(lambda: not pod.has_processes(), RECOVERED_S), pod.described("has processes")
    pod.wait_gone(RECOVERED_S)
    assert wait_for(lambda: not pod.mounts(), RECOVERED_S), pod.mounts()
    told = csi.api.run("logs", f"--namespace={CSI}", "daemonset/node", "--since=10m").splitlines()
    assert any("leftover_detached" in line and pod.uid in line for line in told), told[-40:]


def _both_killed(pod: WitnessPod) -> None:
    kill(signal.SIGKILL, *(pod.first_process(name) for name in (KEEPER, DAEMON)))
