"""An immutable set of facts, indexed for look-ups that never block."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import TypeVar

from sidemount.host.facts_manifests import CsiDriverFacts, Fact, NodeFacts, StorageClassFacts
from sidemount.model.driver_class import DriverClass
from sidemount.model.facts import (
    ClaimFacts,
    ClusterFacts,
    NamespaceFacts,
    OldNode,
    SourceFault,
    VolumeFacts,
)
from sidemount.model.namespace_limits import LimitRangeFacts, QuotaBounds, QuotaFacts

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsSnapshot:
    """Implements the `Facts` Protocol. Never changes: a reader keeps one for the whole of its decision."""

    classes: Mapping[str, DriverClass] = field(default_factory=dict)
    namespaces: Mapping[str, NamespaceFacts] = field(default_factory=dict)
    volumes: Mapping[str, VolumeFacts] = field(default_factory=dict)
    handles: Mapping[tuple[str, str], tuple[VolumeFacts, ...]] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], ClaimFacts] = field(default_factory=dict)
    storage_classes: Mapping[str, StorageClassFacts] = field(default_factory=dict)
    ranges: Mapping[str, tuple[LimitRangeFacts, ...]] = field(default_factory=dict)
    quota_facts: Mapping[str, tuple[QuotaFacts, ...]] = field(default_factory=dict)
    cluster_facts: ClusterFacts = field(default_factory=ClusterFacts)
    source_faults: tuple[SourceFault, ...] = ()
    number: int = 0

    def driver_class(self, name: str) -> DriverClass | None:
        """Return the class of that name."""
        return self.classes.get(name)

    def driver_classes(self) -> Mapping[str, DriverClass]:
        """Return every class by name, sorted."""
        return self.classes

    def namespace(self, name: str) -> NamespaceFacts | None:
        """Return the namespace of that name."""
        return self.namespaces.get(name)

    def volume(self, name: str) -> VolumeFacts | None:
        """Return the CSI PersistentVolume of that name."""
        return self.volumes.get(name)

    def volumes_by_handle(self, driver: str, handle: str) -> tuple[VolumeFacts, ...]:
        """Return every PersistentVolume of that driver and handle, sorted by name."""
        return self.handles.get((driver, handle), ())

    def volumes_of(self, driver: str) -> tuple[VolumeFacts, ...]:
        """Return every PersistentVolume of a driver."""
        return tuple(volume for volume in self.volumes.values() if volume.driver == driver)

    def claim(self, namespace: str, name: str) -> ClaimFacts | None:
        """Return the claim of that namespace and name."""
        return self.claims.get((namespace, name))

    def provisioner(self, storage_class: str) -> str:
        """Return the driver that makes the volumes of a StorageClass, "" if that is not known."""
        found = self.storage_classes.get(storage_class)
        return found.provisioner if found is not None else ""

    def limit_ranges(self, namespace: str) -> tuple[LimitRangeFacts, ...]:
        """Return every LimitRange of a namespace, sorted by name."""
        return self.ranges.get(namespace, ())

    def quotas(self, namespace: str) -> tuple[QuotaBounds, ...]:
        """Return what every ResourceQuota of a namespace allows, sorted by name."""
        return tuple([quota.bounds for quota in self.quota_facts.get(namespace, ())])

    def has_room(self, namespace: str, quota: str, resource: str, amount: str) -> bool:
        """Tell whether a quota leaves so much more of a resource now. One that is not known does."""
        return all(
            known.name != quota or known.has_room(resource, Decimal(amount))
            for known in self.quota_facts.get(namespace, ())
        )

    def cluster(self) -> ClusterFacts:
        """Return what is known of the cluster."""
        return self.cluster_facts

    def faults(self) -> tuple[SourceFault, ...]:
        """Return everything in the source that could not be used."""
        return self.source_faults

    def generation(self) -> int:
        """Return a number that changes whenever any answer may have changed."""
        return self.number


def index_facts(facts: Iterable[Fact], faults: tuple[SourceFault, ...], number: int) -> FactsSnapshot:
    """Return the snapshot of facts whose identities are all different."""
    classes: dict[str, DriverClass] = {}
    namespaces: dict[str, NamespaceFacts] = {}
    volumes: dict[str, VolumeFacts] = {}
    claims: dict[tuple[str, str], ClaimFacts] = {}
    storage_classes: dict[str, StorageClassFacts] = {}
    drivers: list[CsiDriverFacts] = []
    nodes: list[NodeFacts] = []
    ranges: list[LimitRangeFacts] = []
    quotas: list[QuotaFacts] = []
    for fact in facts:
        match fact:
            case DriverClass():
                classes[fact.name] = fact
            case NamespaceFacts():
                namespaces[fact.name] = fact
            case VolumeFacts():
                volumes[fact.name] = fact
            case ClaimFacts():
                claims[fact.namespace, fact.name] = fact
            case StorageClassFacts():
                storage_classes[fact.name] = fact
            case CsiDriverFacts():
                drivers.append(fact)
            case NodeFacts():
                nodes.append(fact)
            case LimitRangeFacts():
                ranges.append(fact)
            case QuotaFacts():
                quotas.append(fact)
    return FactsSnapshot(
        classes=MappingProxyType(dict(sorted(classes.items()))),
        namespaces=MappingProxyType(namespaces),
        volumes=MappingProxyType(volumes),
        handles=MappingProxyType(_grouped((volumes[name] for name in sorted(volumes)), _handle)),
        claims=MappingProxyType(claims),
        storage_classes=MappingProxyType(storage_classes),
        ranges=MappingProxyType(_grouped(sorted(ranges, key=_name), _namespace)),
        quota_facts=MappingProxyType(_grouped(sorted(quotas, key=_name), _namespace)),
        cluster_facts=cluster_of(drivers, nodes),
        source_faults=faults,
        number=number,
    )


def _grouped(facts: Iterable[_T], key_of: Callable[[_T], _K]) -> dict[_K, tuple[_T, ...]]:
    found: dict[_K, list[_T]] = {}
    for fact in facts:
        found.setdefault(key_of(fact), []).append(fact)
    return {key: tuple(group) for key, group in found.items()}


def _handle(volume: VolumeFacts) -> tuple[str, str]:
    return volume.driver, volume.handle


def _namespace(limit: LimitRangeFacts | QuotaFacts) -> str:
    return limit.namespace


def _name(limit: LimitRangeFacts | QuotaFacts) -> str:
    return limit.name


def cluster_of(drivers: Iterable[object], nodes: Iterable[object]) -> ClusterFacts:
    """Return what CSIDrivers and Nodes tell of a cluster; anything else among them is passed over."""
    known = [driver for driver in drivers if isinstance(driver, CsiDriverFacts)]
    taking = [node for node in nodes if isinstance(node, NodeFacts)]
    old = sorted((node for node in taking if node.is_old), key=_node_name)
    # The oldest node decides: a pod may land on any, and no kubelet is newer than its API server.
    return ClusterFacts(
        server_version=min((node.version for node in taking), default=(0, 0)),
        old_nodes=tuple(OldNode(name=node.name, version=node.version, labels=node.labels) for node in old),
        csi_drivers=frozenset(driver.name for driver in known),
        csi_inline_drivers=frozenset(driver.name for driver in known if driver.offers_inline),
        csi_inline_levels=MappingProxyType(
            {driver.name: driver.inline_level for driver in known if driver.inline_level}
        ),
    )


def _node_name(node: NodeFacts) -> str:
    return node.name
