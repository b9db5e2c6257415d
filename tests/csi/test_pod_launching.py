"""Launcher `pod`, with an API server and a kubelet of the tests' own: daemons are real, in a mount namespace without the node's paths."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from csi.launching import instance_of
from csi.mount_pod import INSTANCE_LABEL, NODE_LABEL
from sidemount.host.readiness import wait_readable
from tests.csi.fake_kubelet import FakeKubelet
from tests.csi.plugin import CLASSES, Plugin, Refused
from tests.csi.pod_api import Manifest, PodApi
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]

CANARY = "c4nary-s3cret-value"
MORE_CLASSES = """
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: nobody}
spec:
  deliveries: [csi]
  sources: ["dir:///**"]
  namespaces: {}
  filesystem: directory
  uid: 65532
  abilities: {descriptor: true, takeover: true, readOnly: enforced}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: secretive}
spec:
  deliveries: [csi]
  sources: ["dir:///**"]
  namespaces: {}
  filesystem: directory
  uid: 65532
  credentials: {secretKeys: [token], required: true}
"""


@dataclass
class World:
    """One node."""

    plugin: Plugin
    api: PodApi
    kubelet: FakeKubelet

    def pod(self) -> Manifest:
        """Return the only pod."""
        (pod,) = self.api.pods.values()
        return pod

    def uid(self) -> str:
        """Return the only pod's uid."""
        return str(self.pod()["metadata"]["uid"])

    def secret(self, uid: str) -> Path:
        """Return where a pod's credential is, for this process."""
        comm = self.kubelet.runs[uid].comm
        return Path(f"/proc/{self.plugin.node.pid}/root{comm}/secrets/token")

    def nothing_is_left(self) -> None:
        """Check it."""
        assert list(self.api.pods) == []
        eventually(lambda: self.kubelet.runs == {}, what="every volume of a pod is unmounted")
        assert self.plugin.leftovers() == []


class Writer:
    """An application with an open file. A process of its own: one that forks must have no file open that may hang."""

    def __init__(self, plugin: Plugin) -> None:
        program = (
            "import os, sys\n"
            "file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o644)\n"
            "for line in sys.stdin:\n"
            "    os.write(file, line[:-1].encode()); os.fsync(file); print('done', flush=True)\n"
            "os.close(file)\n"
        )
        self._process = subprocess.Popen(
            [
                "nsenter",
                "-t",
                str(plugin.node.pid),
                "-m",
                sys.executable,
                "-c",
                program,
                plugin.target("t") / "file",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._process.kill()
        _, _ = self._process.communicate(timeout=10)
        assert error[0] is not None or self._process.returncode == 0

    def write(self, text: str) -> None:
        """Write, and wait until it is in the store."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{text}\n")
        assert wait_readable(self._process.stdout.fileno(), 30), "no answer within 30 s"
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture
def world(node: MountNode) -> Iterator[World]:
    """Return a plugin that runs, with its state in memory."""
    plugin = Plugin(node)
    (node.work / "facts" / "classes.yaml").write_text(CLASSES + MORE_CLASSES)
    plugin.state.mkdir()
    node.run("mount", "-t", "tmpfs", "-o", "mode=711", "state", plugin.state)
    api = PodApi()
    kubelet = FakeKubelet(node, api)
    plugin.flags = (
        *("--launcher", "pod", "--image", "registry.example/sidemount:1", "--mount-timeout-seconds", "20"),
        *("--kubeconfig", str(api.kubeconfig(node.work / "kubeconfig"))),
        *("--kubelet-dir", str(kubelet.directory)),
    )
    try:
        plugin.start()
        yield World(plugin, api, kubelet)
    finally:
        plugin.end()
        kubelet.end()
        api.end()


def test_a_volume_is_served_by_one_pod_and_nothing_is_left_of_it(world: World) -> None:
    """S0-18, S0-20: one pod a target; after unpublish no mount, no pod, no directory, and kubelet could unmount at once."""
    plugin = world.plugin
    plugin.publish()
    (plugin.seen() / "file").write_text("through a pod")
    assert (plugin.store() / "file").read_text() == "through a pod"
    plugin.publish()
    assert len(world.api.made) == 1
    assert world.pod()["metadata"]["namespace"] == "sidemount-mounts-baseline"
    plugin.unpublish()
    world.nothing_is_left()
    plugin.publish(**{"class": "nobody"})
    assert world.pod()["metadata"]["namespace"] == "sidemount-mounts"
    plugin.unpublish()
    world.nothing_is_left()
    assert world.kubelet.busy_unmounts == 0


def test_the_daemon_cannot_leave_its_source(world: World) -> None:
    """The descriptor it is given is the root of a mount of its own: `..` stays there."""
    plugin = world.plugin
    (plugin.node.work / "store" / "beside").mkdir()
    plugin.publish()
    found = [
        os.listdir(f"/proc/{pid}/fd/{number}/..")
        for pid in _family(world.kubelet.daemon(world.uid()))
        for number in os.listdir(f"/proc/{pid}/fd")
        if _is_source(pid, number)
    ]
    assert found
    assert all("beside" not in names for names in found)
    plugin.unpublish()


def test_io_goes_on_while_the_plugin_is_dead_and_the_next_one_takes_over(world: World) -> None:
    """S0-08, S0-19, S3-09: no error, the same daemon; also when the API server does not answer meanwhile."""
    plugin = world.plugin
    plugin.publish()
    daemon, mounts = world.kubelet.daemon(world.uid()), plugin.mount_ids()
    with Writer(plugin) as writer:
        writer.write("before")
        plugin.kill()
        writer.write(", while it is dead")
        world.api.refuse = lambda method, path: 503
        plugin.start()
        eventually(lambda: _is_healthy(plugin), what="taken over without the API server")
        world.api.refuse = lambda method, path: None
        writer.write(", after")
    assert (plugin.store() / "file").read_text() == "before, while it is dead, after"
    assert (world.kubelet.daemon(world.uid()), plugin.mount_ids()) == (daemon, mounts)
    assert len(world.api.made) == 1
    plugin.unpublish()
    world.nothing_is_left()


def test_a_killed_daemon_is_succeeded_where_its_state_is(world: World) -> None:
    """S0-28, S0-29: kubelet starts the container again in the same pod; open files live on, by a source it has no path to."""
    plugin = world.plugin
    plugin.publish()
    uid = world.uid()
    with Writer(plugin) as writer:
        writer.write("one ")
        os.killpg(world.kubelet.daemon(uid), signal.SIGKILL)
        writer.write("two")
    assert (plugin.store() / "file").read_text() == "one two"
    assert world.uid() == uid
    assert world.kubelet.runs[uid].restarts == 1
    plugin.unpublish()
    world.nothing_is_left()


@pytest.mark.parametrize("grace_s", [0, 1])
def test_a_deleted_pod_is_replaced_and_the_volume_mounted_again(world: World, grace_s: int) -> None:
    """S0-30, S3-10: a record without a pod gets one; new opens work without anybody asking."""
    plugin = world.plugin
    plugin.publish()
    (plugin.seen() / "file").write_text("kept")
    uid = world.uid()
    (key,) = world.api.pods
    world.api.delete(key, grace_s=grace_s)
    eventually(
        lambda: [pod["metadata"]["uid"] for pod in world.api.pods.values()] not in ([], [uid]), timeout_s=30
    )
    # The mount answers until the last process of the deleted pod is dead.
    eventually(lambda: _is_healthy(plugin) and _content(plugin) == "kept", what="served again", timeout_s=30)
    plugin.unpublish()
    world.nothing_is_left()


def test_a_pod_of_the_name_that_is_ending_is_waited_for(world: World) -> None:
    """S0-18: never two; a slow deletion delays the next publish, it does not spoil it."""
    plugin = world.plugin
    plugin.publish()
    (key,) = world.api.pods
    world.kubelet.hold_deletions = True
    refused: list[Refused] = []

    def unpublish() -> None:
        try:
            plugin.unpublish()
        except Refused as error:
            refused.append(error)

    leaving = threading.Thread(target=unpublish)
    leaving.start()
    eventually(lambda: world.pod()["metadata"].get("deletionTimestamp"), what="being deleted")
    assert len(world.api.made) == 1
    world.kubelet.hold_deletions = False
    leaving.join(40)
    assert refused == []
    left_over = _foreign_pod(world, key[1], instance=_instance(plugin), namespace=key[0])
    plugin.publish()
    assert world.uid() != left_over["metadata"]["uid"]
    plugin.unpublish()
    world.nothing_is_left()


def test_a_pod_of_the_name_that_is_somebody_elses_is_left_alone(world: World) -> None:
    plugin = world.plugin
    plugin.publish()
    (key,) = world.api.pods
    plugin.unpublish()
    world.kubelet.reject = {"phase": "Pending"}
    theirs = _foreign_pod(world, key[1], instance="another", namespace=key[0])
    with pytest.raises(Refused, match="none of this node service") as refused:
        plugin.publish()
    assert refused.value.code.name == "ALREADY_EXISTS"
    assert world.uid() == theirs["metadata"]["uid"]


def test_an_unpublish_without_api_server_is_retried_by_itself(world: World) -> None:
    """S0-20, S0-21: never OK while the pod may be there; once the API server is back nothing is left though nobody asks again."""
    plugin = world.plugin
    plugin.publish()
    (plugin.seen() / "file").write_text("flushed")
    world.api.refuse = lambda method, path: 0
    with pytest.raises(Refused) as refused:
        plugin.unpublish()
    assert refused.value.code.name == "UNAVAILABLE"
    assert plugin.mount_ids() == []
    assert (plugin.store() / "file").read_text() == "flushed"
    world.api.refuse = lambda method, path: None
    eventually(lambda: not world.api.pods and plugin.leftovers() == [], what="retried", timeout_s=40)
    plugin.unpublish()


def test_a_publish_without_api_server_leaves_nothing(world: World) -> None:
    world.api.refuse = lambda method, path: 503 if method != "GET" else None
    with pytest.raises(Refused) as refused:
        world.plugin.publish()
    assert refused.value.code.name == "UNAVAILABLE"
    world.api.refuse = lambda method, path: None
    world.plugin.unpublish()
    world.nothing_is_left()


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        pytest.param(
            {"phase": "Failed", "reason": "OutOfmemory", "message": "Node didn't have enough resource"},
            "RESOURCE_EXHAUSTED",
            "OutOfmemory",
            id="rejected-by-kubelet",
        ),
        pytest.param(
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse"}}}
                ],
            },
            "INTERNAL",
            "InvalidImageName",
            id="image",
        ),
        pytest.param(
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available: 1 Too many pods",
                    }
                ],
            },
            "DEADLINE_EXCEEDED",
            "FailedScheduling: 0/1 nodes are available",
            id="node-full",
        ),
    ],
)
def test_why_a_pod_does_not_run_is_told_with_its_name(
    node: MountNode, world: World, status: dict[str, Any], code: str, told: str
) -> None:
    """M#534, M#778: the event that kubelet makes of the error names pod and reason."""
    plugin = world.plugin
    assert plugin.stop() == 0
    plugin.flags = (*plugin.flags, "--mount-timeout-seconds", "3")
    plugin.start()
    world.kubelet.reject = status
    with pytest.raises(Refused, match=told) as refused:
        plugin.publish()
    assert refused.value.code.name == code
    assert "sidemount-mounts-baseline/csi-" in refused.value.message
    world.nothing_is_left()


def test_a_publish_whose_target_is_taken_away_ends(world: World) -> None:
    """A kubelet removes the directories of a pod that is gone from the API, and does nothing else with the volume before this call ends."""
    world.kubelet.reject = {"phase": "Pending"}
    refused: list[Refused] = []

    def publish() -> None:
        try:
            world.plugin.publish()
        except Refused as error:
            refused.append(error)

    publishing = threading.Thread(target=publish)
    publishing.start()
    eventually(lambda: world.api.pods, what="a mount pod is made")
    eventually(world.plugin.seen().is_dir, what="the target is made")
    world.plugin.seen().rmdir()
    publishing.join(20)
    (error,) = refused
    assert error.code.name == "ABORTED"
    assert "was taken away" in error.message
    world.plugin.unpublish()
    world.nothing_is_left()


def test_a_source_that_is_not_there_is_the_callers_fault(world: World) -> None:
    began = time.monotonic()
    with pytest.raises(Refused, match=r"source .*/store/missing does not exist") as refused:
        world.plugin.publish(source=f"dir://{world.plugin.node.work}/store/missing")
    assert refused.value.code.name == "FAILED_PRECONDITION"
    assert time.monotonic() - began < 10
    world.nothing_is_left()


def test_credentials_are_files_of_the_pod_and_nowhere_else(world: World) -> None:
    """S0-22, S4-26: in no manifest, log, record, argument, environment; renewed in place by a repeated publish."""
    plugin = world.plugin
    request = plugin.publish_request(**{"class": "secretive"})
    request.secrets.update({"token": CANARY, "other": "unwanted"})
    plugin.call("Node", "NodePublishVolume", request)
    file = world.secret(world.uid())
    status = file.stat()
    assert (file.read_text(), status.st_mode & 0o777, status.st_uid) == (CANARY, 0o400, 65532)
    assert [path.name for path in file.parent.iterdir()] == ["token"]
    request.secrets.update({"token": f"{CANARY}-renewed"})
    plugin.call("Node", "NodePublishVolume", request)
    assert file.read_text() == f"{CANARY}-renewed"
    told = [plugin.log.read_text(), Path("/proc/self/mountinfo").read_text(), repr(world.api.history)]
    told += [path.read_text() for path in plugin.seen_state.glob("targets/*")]
    told += [path.read_text() for path in plugin.node.work.glob("container-*.log")]
    for pid in (plugin.process.pid, *_family(world.kubelet.daemon(world.uid()))):
        told += [Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "environ")]
    assert not any(CANARY in text for text in told)
    # A new pod gets them without the caller.
    uid = world.uid()
    (key,) = world.api.pods
    world.api.delete(key, grace_s=0)
    eventually(lambda: world.api.pods and world.uid() != uid, what="replaced", timeout_s=30)
    eventually(lambda: _is_healthy(plugin), what="served again", timeout_s=30)
    eventually(lambda: world.uid() in world.kubelet.runs and world.secret(world.uid()).exists(), what="given")
    assert world.secret(world.uid()).read_text() == f"{CANARY}-renewed"
    plugin.unpublish()
    assert list(plugin.seen_state.rglob("token")) == []
    world.nothing_is_left()


def test_what_a_pod_plants_in_its_volume_is_not_followed(world: World) -> None:
    """A hostile pod can write in `comm`; the node service writes nowhere else for that."""
    plugin = world.plugin
    request = plugin.publish_request(**{"class": "secretive"})
    request.secrets.update({"token": CANARY})
    plugin.call("Node", "NodePublishVolume", request)
    victim = plugin.node.work / "victim"
    victim.mkdir()
    secrets = world.secret(world.uid()).parent
    secrets.rename(secrets.parent / "aside")
    secrets.symlink_to(victim)
    request.secrets.update({"token": "another"})
    with pytest.raises(Refused, match="credentials"):
        plugin.call("Node", "NodePublishVolume", request)
    assert list(victim.iterdir()) == []
    plugin.unpublish()
    world.nothing_is_left()


def test_pods_that_belong_to_no_record_are_deleted_and_only_ours(world: World) -> None:
    """S3-10: by label and node."""
    plugin = world.plugin
    plugin.publish()
    kept = world.pod()["metadata"]["name"]
    world.kubelet.reject = {"phase": "Pending"}
    _foreign_pod(world, "orphan", instance=_instance(plugin))
    _foreign_pod(world, "another-plugins", instance="another")
    _foreign_pod(world, "another-nodes", instance=_instance(plugin), node="n2")
    eventually(lambda: ("sidemount-mounts", "orphan") not in world.api.pods, what="deleted")
    plugin.kill()
    _foreign_pod(world, "orphan", instance=_instance(plugin))
    plugin.start()
    eventually(lambda: ("sidemount-mounts", "orphan") not in world.api.pods, what="deleted", timeout_s=20)
    assert {name for _, name in world.api.pods} == {kept, "another-plugins", "another-nodes"}
    plugin.unpublish()


def test_many_targets_need_one_watch_a_namespace(world: World) -> None:
    plugin = world.plugin
    names = [f"t{number}" for number in range(4)]
    for name in names:
        plugin.publish(name)
        (plugin.seen(name) / name).write_text(name)
    for name in names:
        plugin.unpublish(name)
    world.nothing_is_left()
    asked = [path for method, path in world.api.calls if method == "GET" and path.endswith("/pods")]
    assert len(asked) == 4  # a list and a watch of each


def _is_healthy(plugin: Plugin) -> bool:
    return not plugin.stats().volume_condition.abnormal


def _content(plugin: Plugin) -> str:
    try:
        return (plugin.seen() / "file").read_text()
    except OSError as error:
        return str(error)


def _instance(plugin: Plugin) -> str:
    return instance_of("n1", str(plugin.state))


def _foreign_pod(
    world: World, name: str, *, instance: str, namespace: str = "sidemount-mounts", node: str = "n1"
) -> Manifest:
    labels = {INSTANCE_LABEL: instance, NODE_LABEL: node}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    container = {
        "name": "daemon",
        "command": ["python3"],
        "args": ["-m", "sidecar", "daemon", "--run-dir", "/run/sidemount"],
        "securityContext": {"runAsUser": 65532, "capabilities": {}},
    }
    status, made = world.api.create({"metadata": metadata, "spec": {"containers": [container]}})
    assert status == 201
    return made


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(process for child in children for process in _family(int(child)))]


def _is_source(pid: int, number: str) -> bool:
    try:
        flags = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
        is_directory = os.path.isdir(f"/proc/{pid}/fd/{number}")
    except OSError:
        return False
    return is_directory and any(
        line.startswith("flags:") and int(line.split()[1], 8) & os.O_PATH for line in flags.splitlines()
    )
