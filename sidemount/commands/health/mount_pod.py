"""MountPodView: what a mount pod of the CSI path on a cluster tells of itself. Anything may stand in one: nothing here raises."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidemount.commands.health.pod import (
    PATIENT,
    ContainerView,
    container_view,
    mapping,
    mappings,
    moment_ms,
    pending,
    text,
)
from sidemount.model.keeper_log import told
from sidemount.model.names import CSI_DRIVER

MOUNT_PODS = f"app.kubernetes.io/managed-by={CSI_DRIVER}"
"""What selects mount pods, in whatever namespace."""
_CONTAINER = "daemon"
_TARGET_ANNOTATION = "sidemount.io/target"
_OF_POD = re.compile(r"/pods/([0-9A-Za-z-]{1,64})/volumes/kubernetes\.io~csi/([^/]+)/mount")
_PATIENCE_MS = 120_000  # until it has to be scheduled, or started
_SLACK_MS = 60_000  # beyond its grace


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPodView:
    """One mount pod. `pod_uid` and `volume` are those that kubelet's path of its target names, "" if it is no such path.

    `ends_ms`: when its grace is over, 0 while nobody has deleted it.
    """

    namespace: str
    name: str
    node: str
    pod_uid: str
    volume: str
    phase: str
    pending: str
    container: ContainerView
    created_ms: int
    ends_ms: int

    @property
    def told(self) -> str:
        """The pod for a message."""
        return f"{self.namespace}/{self.name}"

    @property
    def look(self) -> str:
        """The command that tells more."""
        return f"kubectl -n {self.namespace} describe pod {self.name}"

    def trouble(self, now_ms: int) -> str:
        """Return why it does not serve, or is stuck; "" if nothing is known against it."""
        if self.ends_ms:
            over_ms = now_ms - self.ends_ms
            return "it is being deleted and does not go" if over_ms > _SLACK_MS else ""
        container = self.container
        if self.phase in ("Failed", "Succeeded"):
            return f"it has ended ({container.reason or self.phase})"
        if container.state == "running":
            return ""
        if self.pending or (container.state == "waiting" and container.reason not in PATIENT):
            parts = (container.reason, container.message, container.last_end)
            return self.pending or "; ".join(part for part in parts if part)
        if container.state == "terminated":
            return f"its container has ended ({container.reason}) and is started again"
        if now_ms - self.created_ms > _PATIENCE_MS:
            return f"it has not started ({container.reason or 'kubelet has said nothing of it'})"
        return ""


def read_mount_pod(manifest: Mapping[str, Any]) -> MountPodView:
    """Return what a mount pod tells."""
    metadata, spec, status = (mapping(manifest.get(key)) for key in ("metadata", "spec", "status"))
    target = text(mapping(metadata.get("annotations")).get(_TARGET_ANNOTATION))
    of_pod = _OF_POD.search(target)
    conditions = {text(each.get("type")): each for each in mappings(status.get("conditions"))}
    return MountPodView(
        namespace=told(text(metadata.get("namespace"))),
        name=told(text(metadata.get("name"))),
        node=text(spec.get("nodeName")),
        pod_uid=of_pod[1] if of_pod else "",
        volume=of_pod[2] if of_pod else "",
        phase=told(text(status.get("phase"))),
        pending=pending(mapping(conditions.get("PodScheduled"))),
        container=container_view(_CONTAINER, status.get("containerStatuses")),
        created_ms=moment_ms(metadata.get("creationTimestamp")),
        ends_ms=moment_ms(metadata.get("deletionTimestamp")),
    )
