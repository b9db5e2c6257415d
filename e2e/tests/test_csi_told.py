"""What the node service tells of volumes: Events on the pods that use them, and metrics."""

from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import CSI, GONE_S, MOUNTS, SHOWN, WITHIN_S, CsiPath, World, claim, user_pod
from e2e.tests.exposition import samples
from sidemount.model.names import CSI_DRIVER

_HUGE = "e2e-huge"
_KILL_SERVER = """
import os, signal
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    if pid not in (1, os.getpid()):
        try: os.kill(pid, signal.SIGKILL)
        except ProcessLookupError: pass
"""


@pytest.fixture
def huge(csi: CsiPath) -> Iterator[str]:
    """A class whose daemons no node has room for."""
    csi.api.create(
        {
            "apiVersion": "sidemount.io/v1alpha1",
            "kind": "FuseDriverClass",
            "metadata": {"name": _HUGE},
            "spec": {
                "deliveries": ["csi"],
                "sources": ["dir:///**"],
                "namespaces": {},
                "filesystem": "directory",
                "uid": 65532,
                "capabilities": [],
                "resources": {"requests": {"memory": "900Ti"}},
            },
        }
    )
    yield _HUGE
    csi.api.delete("fusedriverclass", _HUGE)


def test_the_pod_that_uses_a_volume_is_told_what_becomes_of_it(world: World, huge: str) -> None:
    """S3-04; a mount pod that cannot run is named with the reason, while the publish still waits."""
    world.make(claim("data"), user_pod("app", {"data": "data"}))
    world.make(
        user_pod("unknown", {"data": _inline(**{"class": "no-such", "source": "dir:///srv/x"})}),
        user_pod("waiting", {"data": _inline(**{"class": huge, "source": f"dir://{SHOWN}"})}),
    )
    world.runs("app")
    (mount_pod,) = world.api.items("pods", MOUNTS)
    name = mount_pod["metadata"]["name"]
    world.api.run("exec", name, f"--namespace={MOUNTS}", "--", "python3", "-c", _KILL_SERVER)
    _await_event(world, "app", "TakenOver", "volume pvc-", "open files live on")
    _await_event(world, "unknown", "MountFailed", "volume data", "(UnknownClass)")
    _await_event(
        world, "waiting", "MountPodNotRunning", "sidemount-mounts/csi-", "FailedScheduling", "memory"
    )
    text = _metrics(world.path, "csi-node")
    assert samples(text, "sidemount_csi_registered")[0].value == 1
    assert sum(each.value for each in samples(text, "sidemount_csi_takeovers_total")) >= 1
    assert samples(text, "sidemount_csi_volumes", state="serving")[0].value >= 1
    assert samples(text, "sidemount_csi_daemons", state="running")[0].value >= 1
    written = samples(text, "sidemount_csi_events_total", result="written")
    assert {each.labels["reason"] for each in written} >= {"TakenOver", "MountFailed", "MountPodNotRunning"}
    assert samples(_metrics(world.path, "csi-controller"), "sidemount_csi_ready")[0].value == 1
    world.gone("app", "unknown", "waiting")
    world.unclaim("data")
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()


def _inline(**attributes: str) -> Json:
    return {"csi": {"driver": CSI_DRIVER, "volumeAttributes": attributes}}


def _await_event(world: World, pod: str, *parts: str) -> None:
    """Wait until one Event of a pod has all of these in it."""

    def is_told() -> bool:
        return any(all(part in line for part in parts) for line in world.events(pod).splitlines())

    assert wait_for(is_told, WITHIN_S), (parts, world.events(pod))


def _metrics(path: CsiPath, label: str) -> str:
    found = path.api.items("pods", CSI, selector=f"app.kubernetes.io/name={label}")
    name = found[0]["metadata"]["name"]
    return str(path.api.run("get", "--raw", f"/api/v1/namespaces/{CSI}/pods/{name}:8080/proxy/metrics"))
