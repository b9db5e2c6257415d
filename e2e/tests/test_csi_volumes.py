"""Claims on the real cluster: the overlay csi with Kubernetes' own companions, as docs/csi.md installs it."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.companion_images import load_companions
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.places import BUILD
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.conftest import in_namespace, named_after
from e2e.tests.deployment import Installation
from e2e.tests.images import busybox
from e2e.tests.pods import Namespace
from e2e.tests.rendered import MANIFESTS
from sidemount.model.names import CSI_DRIVER

_APPLY_S, _ROLLOUT_S, _GONE_S, _WITHIN_S = 120.0, 240.0, 240.0, 180.0
_CSI = "sidemount-csi"
_MOUNTS = "sidemount-mounts-baseline"
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_WRITER = "i=0; while true; do i=$((i+1)); echo $i >/data/n && sync /data/n || echo fault; sleep 0.05; done"


@pytest.fixture(scope="module")
def csi(installation: Installation, own_cluster: RunningCluster | None) -> Iterator[Kubectl]:
    """The CSI path, installed; taken away with everything that it made."""
    if own_cluster is None:
        pytest.skip("the companions' images are on no other cluster")
    installation.ensure()
    api = installation.api
    load_companions(own_cluster, BUILD, Progress())
    try:
        api.run("apply", "-k", str(MANIFESTS / "overlays/csi"), timeout_s=_APPLY_S)
        for name in ("daemonset/node", "deployment/controller"):
            wait = f"--timeout={_ROLLOUT_S:g}s"
            api.run("rollout", "status", name, f"--namespace={_CSI}", wait, timeout_s=_ROLLOUT_S + 30)
        api.run("apply", "-k", str(MANIFESTS / "csi/volumes"))
        assert wait_for(lambda: _is_registered(api), _WITHIN_S)
        yield api
    finally:
        if not os.environ.get("E2E_CLUSTER"):
            api.run("delete", "-k", str(MANIFESTS / "csi/volumes"), "--ignore-not-found", timeout_s=_GONE_S)
            api.run(
                "delete", "-k", str(MANIFESTS / "components/csi"), "--ignore-not-found", timeout_s=_GONE_S
            )


def _is_registered(api: Kubectl) -> bool:
    drivers = [driver for node in api.items("csinode") for driver in node["spec"].get("drivers") or ()]
    return CSI_DRIVER in [driver["name"] for driver in drivers]


def _claim(name: str, size: str = "1Mi", storage_class: str = "sidemount") -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def _pod(name: str, claim: str, command: str = "sleep 3600", uid: int = 1000) -> dict[str, Any]:
    """Return a pod as the level `restricted` allows it."""
    container = {
        "name": "app",
        "image": busybox(),
        "command": ["sh", "-c", command],
        "volumeMounts": [{"name": "v", "mountPath": "/data"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": uid,
                "fsGroup": 2000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


class _World:
    """A namespace with claims and pods."""

    def __init__(self, namespace: Namespace) -> None:
        self.api, self.name = namespace.api, namespace.name

    def make(self, *manifests: dict[str, Any]) -> None:
        for manifest in manifests:
            manifest["metadata"]["namespace"] = self.name
            self.api.create(manifest)

    def runs(self, pod: str) -> None:
        wait = f"--timeout={_WITHIN_S:g}s"
        self.api.run(
            "wait", f"pod/{pod}", "--for=condition=Ready", wait, "-n", self.name, timeout_s=_WITHIN_S + 30
        )

    def sh(self, pod: str, command: str) -> str:
        return self.api.run("exec", pod, "-n", self.name, "--", "sh", "-c", f"({command}) 2>&1 || true")

    def gone(self, *pods: str) -> None:
        self.api.run("delete", "pod", *pods, "-n", self.name, timeout_s=_GONE_S)


@pytest.fixture
def world(csi: Kubectl, namespace: Namespace) -> _World:
    """A namespace of the test's own that enforces the level `restricted`."""
    return _World(namespace)


@pytest.fixture
def world_beside(csi: Kubectl, request: pytest.FixtureRequest) -> Iterator[_World]:
    """The same, where the node cannot be compared: the plugin's own pod is another one afterwards."""
    for made in in_namespace(csi, named_after(request.node), _RESTRICTED):
        yield _World(made)


restricted = pytest.mark.parametrize("namespace", [_RESTRICTED], indirect=True, ids=["restricted"])


@restricted
def test_a_claim_is_provisioned_limited_grown_while_mounted_and_deleted(world: _World) -> None:
    """S4-36, S4-39, S4-42, S4-43, S4-44, S4-09: in a namespace that enforces `restricted`."""
    world.make(_claim("data"), _pod("app", "data"))
    world.runs("app")
    write = "dd if=/dev/zero of=/data/{} bs=1k count={} conv=fsync"
    assert "1024" in world.sh("app", "df -kP /data").splitlines()[-1].split()
    assert "768+0 records out" in world.sh("app", write.format("a", 768))
    assert "Disk quota exceeded" in world.sh("app", write.format("b", 512))
    assert world.sh("app", "stat -c %g /data/a").strip() == "2000"
    grown = '{"spec":{"resources":{"requests":{"storage":"4Mi"}}}}'
    world.api.run("patch", "pvc", "data", "-n", world.name, "-p", grown)
    assert wait_for(lambda: "4096" in world.sh("app", "df -kP /data").splitlines()[-1].split(), _WITHIN_S), (
        "the pod does not see the new size"
    )
    assert "512+0 records out" in world.sh("app", write.format("b", 512))
    found = world.api.get("pvc", "data", world.name)
    assert found is not None
    volume = found["spec"]["volumeName"]
    world.gone("app")
    world.api.run("delete", "pvc", "data", "-n", world.name)
    assert wait_for(lambda: world.api.get("pv", volume) is None, _GONE_S)
    assert wait_for(lambda: not world.api.items("pods", _MOUNTS), _GONE_S)


@restricted
def test_two_pods_of_different_users_see_the_same_bytes(world: _World) -> None:
    """S4-37, S4-38; Immediate: the volume is there before any pod is."""
    world.make(_claim("shared", "64Mi", "sidemount-immediate"))
    bound = f"--timeout={_WITHIN_S:g}s"
    waiting = ("wait", "pvc/shared", "--for=jsonpath={.status.phase}=Bound", bound, "-n", world.name)
    world.api.run(*waiting, timeout_s=_WITHIN_S + 30)
    world.make(_pod("one", "shared", uid=1000), _pod("two", "shared", uid=1001))
    world.runs("one")
    world.runs("two")
    written = world.sh("one", "dd if=/dev/urandom of=/data/f bs=1M count=8 conv=fsync; md5sum </data/f")
    assert world.sh("two", "md5sum </data/f").split()[0] == written.splitlines()[-1].split()[0]
    world.gone("one", "two")


def test_writing_goes_on_while_the_plugin_s_pod_is_replaced(world_beside: _World) -> None:
    """S0-08, S0-19, S3-07, S3-09: no error, and the same mount pod serves on."""
    world = world_beside
    world.make(_claim("data"), _pod("app", "data", _WRITER))
    world.runs("app")
    before = [each["metadata"]["uid"] for each in world.api.items("pods", _MOUNTS)]
    world.api.run(
        "delete", "pod", "--namespace", _CSI, "-l", "app.kubernetes.io/name=csi-node", timeout_s=_GONE_S
    )
    wait = f"--timeout={_ROLLOUT_S:g}s"
    world.api.run(
        "rollout", "status", "daemonset/node", f"--namespace={_CSI}", wait, timeout_s=_ROLLOUT_S + 30
    )
    reached = int(world.sh("app", "cat /data/n"))
    assert wait_for(lambda: int(world.sh("app", "cat /data/n") or 0) > reached + 5, _WITHIN_S)
    assert "fault" not in world.api.run("logs", "app", "-n", world.name)
    assert [each["metadata"]["uid"] for each in world.api.items("pods", _MOUNTS)] == before
    world.gone("app")
    assert wait_for(lambda: not world.api.items("pods", _MOUNTS), _GONE_S)
