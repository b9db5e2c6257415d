"""What is left when a pod ends: a kubelet's dangers must show here as they do there (mounts.md §4)."""

from pathlib import Path

import pytest

from e2e.podlet.client import Podlet, RunningPod
from e2e.podlet.errors import PodLeaked, PodStuck
from tests.podlet.eventually import eventually
from tests.podlet.pods import Json, container, mount, pod, sidecar

pytestmark = pytest.mark.root
MEMORY = {"name": "m", "emptyDir": {"medium": "Memory"}}
DISK = {"name": "m", "emptyDir": {}}


def _careless(script: str) -> Json:
    """Return a privileged sidecar that mounts at /m/vol and forgets it."""
    mounts = [mount("m", "/m", mountPropagation="Bidirectional"), mount("precious", "/precious")]
    probe = {"exec": {"command": ["test", "-e", "/up"]}, "periodSeconds": 1, "failureThreshold": 50}
    script = f"mkdir -p /m/vol; {script}; touch /up"
    return sidecar(
        "careless", script, securityContext={"privileged": True}, volumeMounts=mounts, startupProbe=probe
    )


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a directory with a file that nobody may lose."""
    directory = tmp_path / "precious"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "file").write_text("precious")
    return directory


def _run(
    node: Podlet, precious: Path, volume: Json, script: str = "mount -o bind /precious /m/vol"
) -> RunningPod:
    kept = {"name": "precious", "hostPath": {"path": str(precious)}}
    running = node.run(pod(container("app"), inits=[_careless(script)], volumes=[volume, kept]))
    running.wait_ready(20)
    return running


def _view(running: RunningPod) -> str:
    return str(running.directory / "volumes" / "kubernetes.io~empty-dir" / "m" / "vol")


def test_a_leftover_in_a_memory_empty_dir_keeps_the_pod_and_its_files(node: Podlet, precious: Path) -> None:
    running = _run(node, precious, MEMORY)
    with pytest.raises(PodStuck, match=r"pod pod stuck Terminating: .*target is busy"):
        running.delete(1, deadline_s=1.5)
    assert running.status().summary == "Terminating"
    assert (precious / "deep" / "file").read_text() == "precious"
    assert any(_view(running) in leak for leak in running.leaks())
    node.on_node(["umount", _view(running)])
    running.delete()
    assert (precious / "deep" / "file").read_text() == "precious"


def test_a_live_mount_in_a_disk_empty_dir_has_its_files_deleted(node: Podlet, precious: Path) -> None:
    """The danger that medium Memory is there for: podlet must not be kinder than a kubelet."""
    running = _run(node, precious, DISK)
    with pytest.raises(PodStuck, match="Device or resource busy"):
        running.delete(1, deadline_s=1.5)
    assert list(precious.iterdir()) == []


def _dead_fuse(node: Podlet, running: RunningPod, precious: Path) -> None:
    assert node.on_node(["bindfs", str(precious), _view(running)]).exit_code == 0
    node.on_node(["pkill", "-9", "-x", "bindfs"])


@pytest.mark.parametrize(
    ("volume", "message"), [(MEMORY, "target is busy"), (DISK, "Transport endpoint is not connected")]
)
def test_a_dead_mount_keeps_the_pod_until_it_is_detached(
    node: Podlet, precious: Path, volume: Json, message: str
) -> None:
    """k/k#129550."""
    running = _run(node, precious, volume, "true")
    _dead_fuse(node, running, precious)
    with pytest.raises(PodStuck, match=message):
        running.delete(1, deadline_s=1.5)
    node.on_node(["umount", "-l", _view(running)])
    running.delete()
    assert (precious / "deep" / "file").read_text() == "precious"


def test_a_dead_sub_path_bind_is_unmounted_by_the_node(node: Podlet, precious: Path) -> None:
    """A keeper need only detach its own: kubelet takes its binds of the dead mount away itself."""
    app = container("app", volumeMounts=[mount("m", "/v", subPath="vol", mountPropagation="HostToContainer")])
    kept = {"name": "precious", "hostPath": {"path": str(precious)}}
    running = node.run(pod(app, inits=[_careless("true")], volumes=[MEMORY, kept]))
    running.wait_ready(20)
    _dead_fuse(node, running, precious)
    assert len([m for m in running.mounts() if m.fstype == "fuse"]) == 2
    node.on_node(["umount", "-l", _view(running)])
    running.delete()


def test_two_layers_on_a_sub_path_bind_are_one_too_many(node: Podlet, precious: Path) -> None:
    """kubelet unmounts a sub-path bind once at each attempt and tries again later."""
    app = container("app", volumeMounts=[mount("m", "/v", subPath="vol", mountPropagation="HostToContainer")])
    kept = {"name": "precious", "hostPath": {"path": str(precious)}}
    running = node.run(pod(app, inits=[_careless("true")], volumes=[MEMORY, kept]))
    running.wait_ready(20)
    bind = next(m.mount_point for m in running.mounts() if "volume-subpaths" in m.mount_point)
    node.on_node(["mount", "-t", "tmpfs", "layer", bind])
    running.delete()
    assert any("another mount lies beneath" in event for event in node.events)


def test_a_mount_left_outside_the_pod_is_told_as_a_leak(node: Podlet, precious: Path) -> None:
    mounts = [mount("precious", "/precious", mountPropagation="Bidirectional")]
    leaky = container(
        "app", "mount -t tmpfs leak /precious/deep", securityContext={"privileged": True}, volumeMounts=mounts
    )
    running = node.run(pod(leaky, volumes=[{"name": "precious", "hostPath": {"path": str(precious)}}]))
    eventually(lambda: any("leak" in leak for leak in running.leaks()))
    with pytest.raises(PodLeaked, match=f"pod pod left behind: mount tmpfs leak at {precious}/deep"):
        running.delete()


def test_processes_and_directories_left_behind_are_told(node: Podlet) -> None:
    running = node.run(pod(container("app")))
    running.wait_ready(20)
    node.on_node(["sh", "-c", "sleep 4321 >/dev/null 2>&1 &"])
    (node.root / "pods" / "stray").mkdir()
    with pytest.raises(PodLeaked, match=r"process \d+ \(sleep\); directory .*/pods/stray"):
        running.delete()


def test_a_pod_that_kept_to_itself_leaves_nothing(node: Podlet, precious: Path) -> None:
    script = "trap 'umount -l /m/vol; exit 0' TERM; mount -t tmpfs x /m/vol"
    running = _run(node, precious, MEMORY, script)
    assert running.leaks()
    running.delete()
    assert running.leaks() == ()
    assert not running.directory.exists()
