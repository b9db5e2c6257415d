"""CsiView: what a cluster tells of the CSI path: which kubelets know the driver, where the node service is ready, the mount pods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sidemount.commands.health.mount_pod import MountPodView, read_mount_pod
from sidemount.commands.health.pod import PodView, PodVolume, mapping, mappings, text
from sidemount.model.names import CSI_DRIVER, INLINE_PREFIX

CSI_NAMESPACE = "sidemount-csi"
NAME_LABEL = "app.kubernetes.io/name"
NODE_SERVICE, CONTROLLER = "csi-node", "csi-controller"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiView:
    """What is known. `registered` and `served` are nodes, None where they cannot be read; so are `mount_pods`."""

    registered: frozenset[str] | None = None
    served: frozenset[str] | None = None
    mount_pods: tuple[MountPodView, ...] | None = None
    now_ms: int = 0

    def of_volume(self, pod: PodView, volume: PodVolume) -> tuple[MountPodView, ...]:
        """Return the mount pods that may serve a volume of a pod: its own; of a claim, those of all claims of the pod.

        A claim's mount pod names its PersistentVolume, and none of the pod's own volumes.
        """
        of_pod = [each for each in self.mount_pods or () if pod.uid and each.pod_uid == pod.uid]
        if volume.is_inline:
            return tuple(each for each in of_pod if each.volume == volume.name)
        inline = {each.name for each in pod.volumes if each.is_inline}
        return tuple(
            each for each in of_pod if each.volume not in inline and not each.volume.startswith(INLINE_PREFIX)
        )


def registered_nodes(csi_nodes: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the nodes whose kubelet knows the driver, of all CSINodes."""
    return frozenset(
        text(mapping(each.get("metadata")).get("name"))
        for each in csi_nodes
        if any(
            driver.get("name") == CSI_DRIVER for driver in mappings(mapping(each.get("spec")).get("drivers"))
        )
    )


def named(pods: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the pods of one of our workloads."""
    return [
        each for each in pods if mapping(mapping(each.get("metadata")).get("labels")).get(NAME_LABEL) == name
    ]


def ready(pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pods that are ready."""
    return [
        each
        for each in pods
        if any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in mappings(mapping(each.get("status")).get("conditions"))
        )
    ]


def served_nodes(pods: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the nodes where the node service is ready, of all pods of its namespace."""
    found = ready(named(pods, NODE_SERVICE))
    return frozenset(text(mapping(each.get("spec")).get("nodeName")) for each in found)


def mount_pods_of(pods: Iterable[Mapping[str, Any]]) -> tuple[MountPodView, ...]:
    """Return the mount pods among what was listed by their label."""
    return tuple(read_mount_pod(each) for each in pods)
