"""Which reviews concern us, and what of a pod and its namespace decides how a volume may reach it."""

from collections.abc import Mapping
from typing import Any

from sidemount.model.decide import NATIVE_SIDECARS_SINCE, DeliveryFacts, PodSecurity
from sidemount.model.errors import PolicyDenied, Reason, shown
from sidemount.model.facts import ClusterFacts, NamespaceFacts, OldNode
from sidemount.model.names import (
    CSI_DRIVER,
    INJECTION_ENABLED,
    INJECTION_LABEL,
    SYSTEM_NAMESPACES,
)
from webhook.injection_settings import InjectionSettings
from webhook.review import GroupVersionKind, GroupVersionResource
from webhook.shape import CONFIG_SOURCE, MIRROR, PodShape

CREATE = "CREATE"
UPDATE = "UPDATE"
POD_SECURITY_LABEL = "pod-security.kubernetes.io/enforce"
_OS_LABELS = ("kubernetes.io/os", "beta.kubernetes.io/os")
_LEVELS = (PodSecurity.PRIVILEGED, PodSecurity.BASELINE, PodSecurity.RESTRICTED)
_API_SOURCE = "api"


def is_pod(kind: GroupVersionKind | None, resource: GroupVersionResource | None) -> bool:
    """Say whether a review is about pods themselves. `pods/eviction` and its like come with a kind of their own."""
    if kind is not None and kind.kind is not None:
        return kind.kind == "Pod" and not kind.group
    return resource is not None and resource.resource == "pods" and not resource.group


def namespace_of(requested: str | None, of_object: str) -> str:
    """Return the namespace of a review. Controllers leave it out of the object; only a bare manifest lacks it in the request."""
    return requested or of_object or "default"


def is_system_namespace(namespace: str, settings: InjectionSettings) -> bool:
    """Say whether we stay out of a namespace whatever it carries."""
    return namespace in SYSTEM_NAMESPACES or namespace == settings.own_namespace


def is_mirror(annotations: Mapping[str, Any]) -> bool:
    """Say whether a pod stands for a static one: the kubelet's own file decides what it is, and it takes no change."""
    return MIRROR in annotations or annotations.get(CONFIG_SOURCE, _API_SOURCE) != _API_SOURCE


def is_enabled(namespace: NamespaceFacts | None) -> bool:
    """Say whether an admin has opened a namespace to injection."""
    return namespace is not None and namespace.labels.get(INJECTION_LABEL) == INJECTION_ENABLED


def enabled_namespace(name: str, namespace: NamespaceFacts | None) -> NamespaceFacts:
    """Return the namespace of a pod that asks. Raises PolicyDenied when it is not open to injection."""
    if namespace is not None and is_enabled(namespace):
        return namespace
    if namespace is None:
        why = f"namespace {shown(name)} is not known to the webhook, so it does not count as labelled"
    else:
        value = namespace.labels.get(INJECTION_LABEL)
        why = f"namespace {shown(name)} " + (
            f"does not carry the label {INJECTION_LABEL}"
            if value is None
            else f"has the label {INJECTION_LABEL} set to {shown(value)}"
        )
    raise PolicyDenied(
        f"{why}: its pods may not ask for volumes",
        reason=Reason.NAMESPACE_NOT_ENABLED,
        hint=f"have an admin run: kubectl label namespace {name} {INJECTION_LABEL}={INJECTION_ENABLED}",
    )


def delivery_facts(
    shape: PodShape, namespace: NamespaceFacts, cluster: ClusterFacts, settings: InjectionSettings
) -> DeliveryFacts:
    """Return everything that a delivery depends on."""
    level = _pod_security(namespace)
    selector = dict(shape.node_selector)
    old_node = _oldest_for(selector, cluster)
    version = cluster.server_version
    if cluster.old_nodes:
        version = old_node.version if old_node is not None else NATIVE_SIDECARS_SINCE
    return DeliveryFacts(
        pod_security=level,
        host_users=shape.host_users,
        runtime_class=shape.runtime_class,
        sandboxed=shape.runtime_class in settings.sandboxed_runtime_classes,
        windows=shape.os_name == "windows" or any(selector.get(label) == "windows" for label in _OS_LABELS),
        virtual_node=any(f"{key}={value}" in cluster.virtual_node_labels for key, value in selector.items()),
        server_version=version,
        old_node=old_node.name if old_node is not None else "",
        csi_driver_present=CSI_DRIVER in cluster.csi_drivers,
        inline_csi_offered=CSI_DRIVER in cluster.csi_inline_drivers,
        inline_csi_allowed=_allows_inline(level, cluster),
    )


def _oldest_for(selector: Mapping[str, str], cluster: ClusterFacts) -> OldNode | None:
    """Return the oldest of the old nodes that a pod's nodeSelector does not keep it off, None if there is none."""
    found = [
        node
        for node in cluster.old_nodes
        if all(node.labels.get(key) == value for key, value in selector.items())
    ]
    return min(found, key=_version_of, default=None)


def _version_of(node: OldNode) -> tuple[int, int]:
    return node.version


def _pod_security(namespace: NamespaceFacts) -> PodSecurity:
    """Return the level that a namespace enforces. Like the API server, take an unknown one as restricted."""
    value = namespace.labels.get(POD_SECURITY_LABEL, PodSecurity.PRIVILEGED.value)
    return next((level for level in _LEVELS if level.value == value), PodSecurity.RESTRICTED)


def _allows_inline(level: PodSecurity, cluster: ClusterFacts) -> bool:
    """Kubernetes itself allows inline CSI volumes at every level; a label on the CSIDriver may say which it is safe for.

    Source: https://docs.openshift.com/container-platform/latest/storage/container_storage_interface/ephemeral-storage-csi-inline.html
    """
    profile = cluster.csi_inline_levels.get(CSI_DRIVER)
    if profile is None:
        return True
    safe_for = next((known for known in _LEVELS if known.value == profile), PodSecurity.PRIVILEGED)
    return _LEVELS.index(level) <= _LEVELS.index(safe_for)
