"""The CSI path on the cluster, installed as docs/csi.md says: with Kubernetes' own companions; and what tests of it make."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from e2e.cluster.companion_images import load_companions, snapshot_types
from e2e.cluster.errors import ClusterFault
from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.places import BUILD, SOURCE
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster
from e2e.cluster.running_node import RunningNode
from e2e.cluster.waiting import wait_for
from e2e.tests.deployment import Installation
from e2e.tests.images import busybox
from e2e.tests.pods import Namespace
from e2e.tests.rendered import MANIFESTS
from sidemount.model.names import CSI_DRIVER

CSI, MOUNTS, MOUNTS_RESTRICTED = "sidemount-csi", "sidemount-mounts-baseline", "sidemount-mounts"
"""Namespaces of the plugin, and of mount pods: those of the class `pooled` are in the first of the two."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
WITHIN_S, GONE_S = 180.0, 240.0
_APPLY_S, _ROLLOUT_S = 120.0, 240.0
_POOL = "/srv/pool"
SHOWN = "/srv/e2e-shown"
"""A directory of every node that the node service has too, for classes whose sources are no pool. Anybody may write to it."""
BUCKET_POOL = "s3://bucket/claims"
"""A pool that the controller knows besides, of which nobody can say where it is before there is a class for it."""
# As docs/csi.md says: a directory that a class serves is mounted into the DaemonSet at its own path.
_OVERLAY = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../manifests/overlays/{overlay}]
patches:
- target: {{kind: DaemonSet, name: node}}
  patch: |
    - {{op: add, path: /spec/template/spec/containers/0/volumeMounts/-, value: {{name: shown, mountPath: {shown}, mountPropagation: HostToContainer}}}}
    - {{op: add, path: /spec/template/spec/volumes/-, value: {{name: shown, hostPath: {{path: {shown}, type: DirectoryOrCreate}}}}}}
- target: {{kind: Deployment, name: controller}}
  patch: |
    - {{op: add, path: /spec/template/spec/containers/0/args/-, value: "--pool={bucket}"}}
"""
_CONTROLLER = SOURCE / "e2e/cluster/companions/snapshot-controller.yaml"
_SNAPSHOTS = "snapshot.storage.k8s.io"
_LIST = "cd {pool} 2>/dev/null && find volumes snapshots .unfinished -mindepth 1 -maxdepth 1 ! -name locks 2>/dev/null || true"


class CsiPath:
    """One installation for all tests that need it, from the first of them to the last.

    `api` is the administrator's. `directory` is the run's own, for the overlays that are applied.
    """

    def __init__(self, installation: Installation, cluster: RunningCluster, directory: Path) -> None:
        self.api, self.cluster = installation.api, cluster
        self._installation, self._directory = installation, directory
        (directory / "manifests").symlink_to(MANIFESTS)
        self._is_there = self._has_snapshots = False

    def ensure(self) -> None:
        """Install what docs/csi.md says, unless it is there: webhook, node service, controller, classes."""
        self._installation.ensure()
        if self._is_there:
            return
        self._is_there = True
        load_companions(self.cluster, BUILD, Progress())
        self._apply_overlay("csi")
        self.cluster.on_node("chmod", "777", SHOWN)
        self._apply("csi/volumes")
        assert wait_for(self.is_registered, WITHIN_S), "kubelet does not know the driver"

    def ensure_snapshots(self) -> None:
        """Add what snapshots need, in the order that docs/csi.md names: types, snapshot-controller, overlay, class."""
        self.ensure()
        if self._has_snapshots:
            return
        self._has_snapshots = True
        self.api.run(
            "apply", "--server-side", "-k", str(snapshot_types(BUILD, Progress())), timeout_s=_APPLY_S
        )
        self.api.run("apply", "-f", str(_CONTROLLER))
        self._apply_overlay("csi-snapshots")
        self._roll_out("deployment/snapshot-controller", "kube-system")
        self._apply("csi/snapshots")

    def remove(self) -> None:
        """Take away what there is of it, everything that was made by it first."""
        if self._has_snapshots:
            self._delete("volumesnapshots", "--all", "--all-namespaces")
            self._delete("-k", str(MANIFESTS / "csi/snapshots"))
            self._delete("-k", str(snapshot_types(BUILD, Progress())))
            self._delete("-f", str(_CONTROLLER))
            self._delete("lease", "snapshot-controller-leader", "--namespace=kube-system")
        if self._is_there:
            wait_for(lambda: not self._volumes() and not self.mount_pods(), GONE_S)
            self._delete("-k", str(MANIFESTS / "csi/volumes"))
            if self._has_snapshots:
                self._delete("-f", str(MANIFESTS / "components/snapshots/rbac.yaml"))
            self._delete("-k", str(MANIFESTS / "components/csi"))
            self.cluster.on_node("rm", "-rf", SHOWN)
        self._is_there = self._has_snapshots = False

    def roll_out(self) -> None:
        """Wait until node service and controller are what is wanted, and ready."""
        for name in ("daemonset/node", "deployment/controller"):
            self._roll_out(name, CSI)

    def is_registered(self) -> bool:
        """Tell whether kubelet of every node knows the driver."""
        return all(
            CSI_DRIVER in [driver["name"] for driver in node["spec"].get("drivers") or ()]
            for node in self.api.items("csinode")
        )

    def mount_pods(self) -> list[Json]:
        """Return the mount pods of both namespaces."""
        return [*self.api.items("pods", MOUNTS), *self.api.items("pods", MOUNTS_RESTRICTED)]

    def _volumes(self) -> list[Json]:
        found = self.api.items("pv")
        return [each for each in found if each["spec"].get("csi", {}).get("driver") == CSI_DRIVER]

    def in_pool(self, node: RunningNode | None = None) -> set[str]:
        """Return what there is in the pool: volumes, snapshots, and what is being made or removed."""
        listed = (node or self.cluster).on_node("sh", "-c", _LIST.format(pool=_POOL))
        return set(listed.split())

    def is_idle(self) -> bool:
        """Tell whether nothing is left: no mount pod, nothing in the pool."""
        return not self.mount_pods() and not self.in_pool()

    def told(self) -> str:
        """Return what a person would look at first."""
        told = []
        for label in ("csi-node", "csi-controller"):
            chosen = (
                f"--selector=app.kubernetes.io/name={label}",
                "--all-containers",
                "--prefix",
                "--tail=30",
            )
            with suppress(KubectlFailed):
                told.append(self.api.run("logs", f"--namespace={CSI}", *chosen))
        with suppress(ClusterFault):
            told.append(f"in the pool: {sorted(self.in_pool())}")
        return "\n".join(told)

    def _apply_overlay(self, name: str) -> None:
        (own := self._directory / name).mkdir(exist_ok=True)
        (own / "kustomization.yaml").write_text(
            _OVERLAY.format(overlay=name, shown=SHOWN, bucket=BUCKET_POOL)
        )
        self.api.run("apply", "-k", str(own), timeout_s=_APPLY_S)
        self.roll_out()

    def _apply(self, path: str) -> None:
        self.api.run("apply", "-k", str(MANIFESTS / path), timeout_s=_APPLY_S)

    def _delete(self, *what: str) -> None:
        self.api.run("delete", *what, "--ignore-not-found", timeout_s=GONE_S)

    def _roll_out(self, name: str, namespace: str) -> None:
        wait = f"--timeout={_ROLLOUT_S:g}s"
        arguments = ("rollout", "status", name, f"--namespace={namespace}", wait)
        try:
            self.api.run(*arguments, timeout_s=_ROLLOUT_S + 30)
        except KubectlFailed as fault:
            raise AssertionError(f"{fault}\n{self.told()}") from None


class World(Namespace):
    """A test's namespace, with claims and pods."""

    def __init__(self, path: CsiPath, namespace: Namespace, node: str = "") -> None:
        super().__init__(namespace.api, namespace.name, node)
        self.path = path

    def make(self, *manifests: Json) -> None:
        """Create objects here."""
        for manifest in manifests:
            self.create(manifest)

    def runs(self, *names: str) -> None:
        """Wait until pods are ready; a failure tells what the plugin says."""
        for name in names:
            try:
                self.ready(name)
            except AssertionError as fault:
                raise AssertionError(f"{fault}\n{self.path.told()}") from None

    def sh(self, name: str, command: str) -> str:
        """Run a command in a pod's first container; return all that it printed, also when it failed."""
        argv = ("exec", name, f"--namespace={self.name}", "--", "sh", "-c", f"({command}) 2>&1 || true")
        return self.api.run(*argv, timeout_s=WITHIN_S)

    def gone(self, *names: str) -> None:
        """Delete pods and wait until they are gone."""
        self.api.run("delete", "pod", *names, f"--namespace={self.name}", timeout_s=GONE_S)

    def bound(self, name: str) -> str:
        """Wait until a claim is bound; return its volume's name."""
        found = self.until_object("pvc", name, is_bound, "bound")
        return str(found["spec"]["volumeName"])

    def unclaim(self, *names: str) -> None:
        """Delete claims and wait until their volumes are gone from the API, and from the pool."""
        found = [self.api.get("pvc", name, self.name) for name in names]
        volumes = [each["spec"]["volumeName"] for each in found if each and each["spec"].get("volumeName")]
        self.api.run("delete", "pvc", *names, f"--namespace={self.name}", timeout_s=GONE_S)

        def left() -> list[str]:
            there = [volume for volume in volumes if self.api.get("pv", volume) is not None]
            return there + [volume for volume in volumes if f"volumes/{volume}" in self.path.in_pool()]

        assert wait_for(lambda: not left(), GONE_S), f"left: {left()}\n{self.path.told()}"

    def uncut(self, *names: str) -> None:
        """Delete snapshots and wait until what they stand for is gone, from the API and from the pool."""
        found = [self.api.get("volumesnapshot", name, self.name) for name in names]
        contents = [each["status"]["boundVolumeSnapshotContentName"] for each in found if each]
        handles = [
            f"snapshots/{content['status']['snapshotHandle']}"
            for content in (self.api.get("volumesnapshotcontent", each) for each in contents)
            if content
        ]
        self.api.run("delete", "volumesnapshot", *names, f"--namespace={self.name}", timeout_s=GONE_S)

        def left() -> list[str]:
            there = [each for each in contents if self.api.get("volumesnapshotcontent", each) is not None]
            return there + [each for each in handles if each in self.path.in_pool()]

        assert wait_for(lambda: not left(), GONE_S), f"left: {left()}\n{self.path.told()}"

    def grow(self, name: str, size: str) -> None:
        """Ask for a larger volume, and wait for nothing."""
        patch = json.dumps({"spec": {"resources": {"requests": {"storage": size}}}})
        self.api.run("patch", "pvc", name, f"--namespace={self.name}", "-p", patch)

    def kubelet_stats(self, name: str, of_claim: str) -> dict[str, int]:
        """Return what kubelet's summary has counted of a claim that a pod has; empty when it has not counted yet."""
        pod = self.pod(name)
        assert pod is not None
        path = f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/stats/summary"
        for each in json.loads(self.api.run("get", "--raw", path))["pods"]:
            for volume in each.get("volume", ()) if each["podRef"]["uid"] == pod["metadata"]["uid"] else ():
                if volume.get("pvcRef", {}).get("name") == of_claim:
                    return {key: value for key, value in volume.items() if isinstance(value, int)}
        return {}

    def events(self, name: str) -> str:
        """Return what is told of an object of that name, of whatever kind."""
        found = self.api.items("events", self.name)
        return "\n".join(
            f"{each['reason']}: {each['message']}" for each in found if each["involvedObject"]["name"] == name
        )


def claim(
    name: str,
    size: str = "1Mi",
    storage_class: str = "sidemount",
    modes: Sequence[str] = ("ReadWriteMany",),
    **spec: Any,
) -> Json:
    """Return a PersistentVolumeClaim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": list(modes),
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
            **spec,
        },
    }


def from_snapshot(name: str) -> Json:
    """Return the dataSource of a claim that restores a snapshot."""
    return {"apiGroup": _SNAPSHOTS, "kind": "VolumeSnapshot", "name": name}


def from_claim(name: str) -> Json:
    """Return the dataSource of a claim that clones another."""
    return {"kind": "PersistentVolumeClaim", "name": name}


def snapshot(name: str, of_claim: str, snapshot_class: str = "sidemount") -> Json:
    """Return a VolumeSnapshot."""
    return {
        "apiVersion": f"{_SNAPSHOTS}/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {
            "volumeSnapshotClassName": snapshot_class,
            "source": {"persistentVolumeClaimName": of_claim},
        },
    }


def user_pod(
    name: str,
    volumes: Mapping[str, str | Json],
    command: str = "sleep 100000 & trap 'exit 0' TERM; wait $!",
    *,
    uid: int = 1000,
    mount: Mapping[str, Any] | None = None,
    security: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod as the level `restricted` allows it, with each volume at `/NAME`.

    A volume is a claim's name, or the volume itself without its name. `mount`: further fields of every volumeMount.
    """
    sources = {
        key: {"persistentVolumeClaim": {"claimName": value}} if isinstance(value, str) else value
        for key, value in volumes.items()
    }
    container = {
        "name": "app",
        "image": busybox(),
        "command": ["sh", "-c", command],
        "volumeMounts": [{"name": key, "mountPath": f"/{key}", **(mount or {})} for key in sources],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    of_pod = {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "fsGroup": 2000,
        "seccompProfile": {"type": "RuntimeDefault"},
        **(security or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": of_pod,
            "containers": [container],
            "volumes": [{"name": key, **source} for key, source in sources.items()],
            **spec,
        },
    }


def is_bound(found: Json) -> bool:
    """Tell whether a claim is bound."""
    return bool(found["status"].get("phase") == "Bound")


def is_cut(found: Json) -> bool:
    """Tell whether a snapshot is ready to be used."""
    return bool((found.get("status") or {}).get("readyToUse"))
