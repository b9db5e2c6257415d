"""The end of a cluster: whatever ran on it, nothing is left on the machine. And two clusters beside one another."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.bring_up import bring_up
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.more_nodes import join
from e2e.cluster.namespaces import first_processes_of, pid_namespace
from e2e.cluster.places import SOURCE, ClusterPlaces, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, is_held, take_down
from e2e.cluster.topology import Topology
from e2e.cluster.waiting import wait_for
from e2e.tests.conftest import make_namespace
from e2e.tests.machine_state import MachineState, look_at_machine
from e2e.tests.pods import pod, shell

_END_S = 60.0
_NAME = "e2e-end"


@pytest.fixture
def places() -> Iterator[ClusterPlaces]:
    """The places of a second cluster, which is not there before nor after."""
    places = places_of(_NAME)
    take_down(places)
    yield places
    take_down(places)


def _look() -> MachineState:
    topology = Topology(_NAME)
    of_all_nodes = topology.cgroup_of(topology.nodes[0]).removesuffix("0")
    return look_at_machine(of_all_nodes, _NAME)


def _busy_cluster(places: ClusterPlaces) -> RunningCluster:
    """Start a cluster on which a privileged pod holds a mount that nobody will take away."""
    cluster = bring_up(places, Progress())
    holds = shell(
        "holder",
        "mount -t tmpfs left /mounts && echo kept >/mounts/file",
        securityContext={"privileged": True},
        volumeMounts=[{"name": "mounts", "mountPath": "/mounts", "mountPropagation": "Bidirectional"}],
    )
    volume = {"name": "mounts", "emptyDir": {"medium": "Memory"}}
    namespace = make_namespace(cluster.kubectl(), "busy", {})
    namespace.run(pod("holder", holds, volumes=[volume]))
    assert "left" in cluster.on_node("cat", "/proc/self/mountinfo")
    return cluster


def test_a_cluster_that_is_taken_down_leaves_nothing(cluster: RunningCluster, places: ClusterPlaces) -> None:
    before = _look()
    other = _busy_cluster(places)
    second = join(other, Progress())
    namespaces = [pid_namespace(node.pid) for node in (other, second)]
    assert _look().cgroups - before.cgroups
    assert "node-1" in other.on_node("ip", "-o", "link")
    assert take_down(places)
    after = _look()
    assert after.mounts == before.mounts
    assert after.cgroups == before.cgroups
    assert after.devices == before.devices
    assert after.settings == before.settings
    assert not {f"pid:[{namespace}]" for namespace in namespaces} & after.namespaces
    assert sorted(path.name for path in places.directory.iterdir()) == ["lock", "logs"]
    assert cluster.kubectl().run("get", "--raw=/readyz") == "ok", "the cluster beside it runs on"


def test_the_death_of_the_first_process_ends_everything(places: ClusterPlaces) -> None:
    """Whoever kills it, and without a word to the components."""
    cluster = bring_up(places, Progress(), api_only=True)
    first = cluster.pid
    namespace = pid_namespace(first)
    os.kill(first, signal.SIGKILL)
    assert wait_for(lambda: not is_held(places), _END_S)
    assert f"pid:[{namespace}]" not in _look().namespaces
    assert take_down(places), "what is left of a dead cluster is removed"


def test_an_api_server_alone_takes_types_and_pods(places: ClusterPlaces) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "e2e.cluster", "up", "--name", _NAME, "--api-only", "-o", "json"],
        capture_output=True,
        text=True,
        cwd=SOURCE,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["components"]) == {"etcd", "kube-apiserver"}
    api = Kubectl(Path(told["kubeconfig"]), tuple(told["kubectl"][:-1]), told["kubectl"][-1])
    assert api.items("pods") == []
    made = api.create({**pod("plain", shell("app")), "metadata": {"name": "plain", "namespace": "default"}})
    assert made["spec"]["containers"][0]["terminationMessagePolicy"] == "File"
    again = subprocess.run(
        [sys.executable, "-m", "e2e.cluster", "up", "--name", _NAME],
        capture_output=True,
        text=True,
        cwd=SOURCE,
        timeout=300,
    )
    assert again.returncode == 1
    assert f"cluster '{_NAME}' runs already" in again.stderr


def test_a_start_that_was_killed_is_taken_down(places: ClusterPlaces) -> None:
    """At whatever moment: what it had started is found by its command line, listening or not."""
    before = _look()
    argv = [sys.executable, "-m", "e2e.cluster", "up", "--name", _NAME]
    with subprocess.Popen(argv, cwd=SOURCE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starting:
        assert wait_for(lambda: bool(first_processes_of(places)), _END_S)
        starting.kill()
    take_down(places)
    assert not first_processes_of(places)
    after = _look()
    assert (after.mounts, after.cgroups, after.devices) == (before.mounts, before.cgroups, before.devices)
