"""Mounts that appear while a pod runs: who sees them, through what, after which restart (mounts.md)."""

import signal

import pytest

from e2e.podlet.client import Podlet, RunningPod
from tests.podlet.eventually import eventually
from tests.podlet.pods import Json, container, mount, pod, sidecar

pytestmark = pytest.mark.root
MOUNTS = {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
PRIVILEGED = {"privileged": True}
# Mounts a tmpfs before anybody else starts and detaches every layer at its end, as a keeper does.
KEEP = (
    "trap 'while umount -l /m/vol 2>/dev/null; do :; done; exit 0' TERM;"
    "mkdir -p /m/vol; mount -t tmpfs one /m/vol; echo one > /m/vol/f; touch /up"
)


def keeper(script: str = KEEP, propagation: str = "Bidirectional") -> Json:
    """Return a privileged sidecar that mounts beneath /m."""
    mounts = [mount("m", "/m", mountPropagation=propagation)]
    probe = {"exec": {"command": ["test", "-e", "/up"]}, "periodSeconds": 1, "failureThreshold": 100}
    return sidecar("keeper", script, securityContext=PRIVILEGED, volumeMounts=mounts, startupProbe=probe)


def viewer(name: str = "app", **fields: object) -> Json:
    """Return an app that mounts the view by subPath."""
    return container(
        name,
        volumeMounts=[
            mount("m", "/v", **{"subPath": "vol", "mountPropagation": "HostToContainer", **fields})
        ],
    )


def start(node: Podlet, *apps: Json, first: Json | None = None) -> RunningPod:
    """Run a pod with a keeper until it is ready."""
    running = node.run(pod(*apps, inits=[first or keeper()], volumes=[MOUNTS]))
    running.wait_ready(20)
    return running


def seen(running: RunningPod, name: str = "app", path: str = "/v/f") -> str:
    """Return what a container reads in the view."""
    done = running.exec(name, ["cat", path])
    return done.stdout.strip() or done.stderr.strip()


def stack(running: RunningPod, text: str) -> None:
    """Mount another tmpfs on the view, from the keeper."""
    done = running.exec("keeper", ["sh", "-c", f"mount -t tmpfs {text} /m/vol && echo {text} > /m/vol/f"])
    assert done.exit_code == 0, done.stderr


def test_a_bidirectional_mount_is_seen_through_sub_path_and_stacking_reaches_running_apps(
    node: Podlet,
) -> None:
    whole = container(
        "whole", volumeMounts=[mount("m", "/m", mountPropagation="HostToContainer", readOnly=True)]
    )
    private = viewer("private", mountPropagation="None")
    running = start(node, viewer(), whole, private)
    assert [seen(running), seen(running, "whole", "/m/vol/f"), seen(running, "private")] == ["one"] * 3
    stack(running, "two")
    assert [seen(running), seen(running, "whole", "/m/vol/f")] == ["two", "two"]
    assert seen(running, "private") == "one", "propagation None is a copy of what was there at the start"
    running.delete()


def test_what_is_mounted_without_bidirectional_stays_in_its_container(node: Podlet) -> None:
    running = start(node, viewer(), first=keeper(propagation="None"))
    assert "No such file" in seen(running)
    assert "vol" not in " ".join(m.source for m in running.mounts() if m.fstype == "tmpfs")
    running.delete()


def test_a_mount_made_after_the_app_started_arrives_in_its_sub_path(node: Podlet) -> None:
    late = keeper("trap 'umount -l /m/vol; exit 0' TERM; mkdir -p /m/vol; touch /up")
    running = start(node, viewer(), first=late)
    assert "No such file" in seen(running)
    stack(running, "late")
    assert seen(running) == "late"
    running.delete()


def test_the_sub_path_bind_is_made_once_and_reused_when_the_container_restarts(node: Podlet) -> None:
    running = start(node, viewer())
    bind = next(m for m in running.mounts() if "volume-subpaths" in m.mount_point)
    running.kill("app")
    running.wait_for(lambda s: s.containers["app"].restart_count == 1 and s.ready, 20, "restarted")
    assert [m.mount_id for m in running.mounts() if "volume-subpaths" in m.mount_point] == [bind.mount_id]
    stack(running, "two")
    running.kill("app")
    running.wait_for(lambda s: s.containers["app"].restart_count == 2 and s.ready, 20, "restarted")
    assert seen(running) == "two"
    running.delete()


def _view(running: RunningPod) -> str:
    return str(running.directory / "volumes" / "kubernetes.io~empty-dir" / "m" / "vol")


def _fuse_over_the_view(node: Podlet, running: RunningPod) -> int:
    """Mount bindfs over the view on the node, as if a sidecar had; return the daemon's process id there."""
    source = node.root / "fuse-source"
    source.mkdir()
    (source / "f").write_text("fuse")
    done = node.on_node(["bindfs", "-o", "allow_other,nonempty", str(source), _view(running)])
    assert done.exit_code == 0, done.stderr
    return int(node.on_node(["pgrep", "-x", "bindfs"]).stdout)


def test_an_app_cannot_restart_on_a_dead_view_and_does_once_it_is_healed(node: Podlet) -> None:
    running = start(node, viewer())
    daemon = _fuse_over_the_view(node, running)
    assert seen(running) == "fuse"
    node.on_node(["kill", "-9", str(daemon)])
    # Attributes that the kernel still remembers would let kubelet's checks pass.
    eventually(lambda: node.on_node(["stat", "-c", "%i", _view(running)]).exit_code != 0)
    assert "not connected" in seen(running)
    running.kill("app")
    status = running.wait_for(
        lambda s: s.containers["app"].reason == "CreateContainerConfigError", 20, "refused"
    )
    assert "Transport endpoint is not connected" in status.containers["app"].message
    stack(running, "healed")
    running.wait_ready(20)
    assert seen(running) == "healed"
    running.delete()


def test_a_hung_view_is_refused_after_a_bounded_wait(node: Podlet) -> None:
    running = start(node, viewer())
    daemon = _fuse_over_the_view(node, running)
    node.on_node(["kill", f"-{signal.SIGSTOP.value}", str(daemon)])
    running.kill("app")
    status = running.wait_for(
        lambda s: s.containers["app"].reason == "CreateContainerConfigError", 20, "refused"
    )
    assert "no answer within" in status.containers["app"].message
    node.on_node(["kill", f"-{signal.SIGCONT.value}", str(daemon)])
    running.wait_ready(20)
    assert seen(running) == "fuse"
    running.delete()


def test_a_dead_mount_at_the_source_itself_is_refused_by_the_runtime(node: Podlet) -> None:
    place = node.root / "place"
    place.mkdir()
    source = node.root / "source"
    source.mkdir()
    assert node.on_node(["bindfs", str(source), str(place)]).exit_code == 0
    node.on_node(["pkill", "-9", "-x", "bindfs"])
    volume = {"name": "v", "hostPath": {"path": str(place)}}
    running = node.run(pod(container("app", volumeMounts=[mount("v", "/v")]), volumes=[volume]))
    status = running.wait_for(lambda s: s.containers["app"].reason == "CreateContainerError", 20, "refused")
    assert "Transport endpoint is not connected" in status.containers["app"].message
    node.on_node(["umount", str(place)])
    running.wait_ready(20)
    running.delete()


def test_a_source_that_is_not_shared_is_refused_for_propagation(node: Podlet) -> None:
    place = node.root / "place"
    place.mkdir()
    node.on_node(["mount", "-t", "tmpfs", "x", str(place)])
    node.on_node(["mount", "--make-private", str(place)])
    volume = {"name": "v", "hostPath": {"path": str(place)}}
    app = container("app", volumeMounts=[mount("v", "/v", mountPropagation="HostToContainer")])
    running = node.run(pod(app, volumes=[volume]))
    status = running.wait_for(lambda s: s.containers["app"].reason == "CreateContainerError", 20, "refused")
    assert "is not a shared or slave mount" in status.containers["app"].message
    running.delete()
