"""Facts: what is known of the cluster, read beforehand. A Protocol and the values it gives; effects are elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sidemount.model.driver_class import DriverClass
from sidemount.model.namespace_limits import LimitRangeFacts, QuotaBounds

VIRTUAL_NODE_LABELS = frozenset({"type=virtual-kubelet"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """One namespace."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFacts:
    """One CSI PersistentVolume. `access_modes` in Kubernetes' spelling (ReadWriteMany …).

    `has_secret`: it names credentials for its mounts, which the kubelet reads, in whatever namespace they are.
    """

    name: str
    driver: str
    handle: str
    access_modes: frozenset[str] = frozenset()
    attributes: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False
    mount_options: tuple[str, ...] = ()
    claim: tuple[str, str] | None = None  # (namespace, name)
    has_secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """One PersistentVolumeClaim. `volume` is "" while it is unbound; only then is `storage_class` told, "" if it has none."""

    namespace: str
    name: str
    volume: str = ""
    storage_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldNode:
    """A node that takes Linux pods and knows no native sidecars. `version` is its kubelet's (major, minor)."""

    name: str
    version: tuple[int, int]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Abilities of the cluster. `server_version` is that of the oldest node that takes Linux pods, (0, 0) when unknown.

    `old_nodes`: the nodes that a sidecar must not land on, sorted by name. `csi_inline_drivers`: those of the drivers whose volumes
    a pod may declare inline (volumeLifecycleModes has Ephemeral).
    """

    server_version: tuple[int, int] = (0, 0)
    old_nodes: tuple[OldNode, ...] = ()
    csi_drivers: frozenset[str] = frozenset()
    csi_inline_drivers: frozenset[str] = frozenset()
    csi_inline_levels: Mapping[str, str] = field(
        default_factory=dict
    )  # driver → its csi-ephemeral-volume-profile label
    virtual_node_labels: frozenset[str] = VIRTUAL_NODE_LABELS


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFault:
    """Something in the facts' source that could not be used; the rest is served."""

    where: str
    message: str


class Facts(Protocol):
    """What a decision may know. Every method is a look-up in memory; none blocks."""

    def driver_class(self, name: str) -> DriverClass | None: ...
    def driver_classes(self) -> Mapping[str, DriverClass]: ...
    def namespace(self, name: str) -> NamespaceFacts | None: ...
    def volume(self, name: str) -> VolumeFacts | None: ...
    def volumes_by_handle(self, driver: str, handle: str) -> tuple[VolumeFacts, ...]: ...
    def volumes_of(self, driver: str) -> tuple[VolumeFacts, ...]:
        """Return every PersistentVolume of a driver, in no order. Not for every request: it looks at all."""
        ...

    def claim(self, namespace: str, name: str) -> ClaimFacts | None: ...
    def provisioner(self, storage_class: str) -> str:
        """Return the driver that makes the volumes of a StorageClass, "" if that is not known."""
        ...

    def limit_ranges(self, namespace: str) -> tuple[LimitRangeFacts, ...]: ...
    def quotas(self, namespace: str) -> tuple[QuotaBounds, ...]: ...
    def has_room(self, namespace: str, quota: str, resource: str, amount: str) -> bool:
        """Tell whether a quota leaves so much more of a resource now: a decimal. One that is not known does."""
        ...

    def cluster(self) -> ClusterFacts: ...
    def faults(self) -> tuple[SourceFault, ...]: ...
    def generation(self) -> int:
        """Return a number that changes whenever any answer may have changed."""
        ...
