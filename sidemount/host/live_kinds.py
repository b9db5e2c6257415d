"""The kinds of objects that are followed on a cluster: where they are, and what is kept of each."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from sidemount.host.facts_manifests import Fact, identify, parse_fact
from sidemount.model.facts import ClaimFacts, VolumeFacts
from sidemount.model.names import API_VERSION, CSI_DRIVER
from sidemount.model.namespace_limits import LimitRangeFacts, QuotaFacts

Key = str | tuple[str, str]
"""An object's name, or its namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKind:
    """One kind. Without an optional one decisions are made as if there were none of it. `selector` picks some by their labels."""

    name: str
    api_version: str
    plural: str
    is_namespaced: bool = False
    is_optional: bool = False
    selector: str = ""

    @property
    def collection(self) -> str:
        """The path of all its objects that are followed, in every namespace."""
        picked = f"?labelSelector={quote(self.selector, safe='')}" if self.selector else ""
        return f"{self._root}/{self.plural}{picked}"

    def within(self, namespace: str) -> str:
        """Return the path of all its objects in one namespace."""
        return f"{self._root}/namespaces/{quote(namespace, safe='')}/{self.plural}"

    def path(self, key: Key) -> str:
        """Return the path of one object."""
        namespace, name = ("", key) if isinstance(key, str) else key
        within = f"/namespaces/{quote(namespace, safe='')}" if self.is_namespaced else ""
        return f"{self._root}{within}/{self.plural}/{quote(name, safe='')}"

    def key(self, namespace: str, name: str) -> Key:
        """Return the key of an object."""
        return (sys.intern(namespace), name) if self.is_namespaced else name

    @property
    def _root(self) -> str:
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"


FUSE_DRIVER_CLASS = LiveKind(name="FuseDriverClass", api_version=API_VERSION, plural="fusedriverclasses")
NAMESPACE = LiveKind(name="Namespace", api_version="v1", plural="namespaces")
PERSISTENT_VOLUME = LiveKind(name="PersistentVolume", api_version="v1", plural="persistentvolumes")
CLAIM = LiveKind(
    name="PersistentVolumeClaim", api_version="v1", plural="persistentvolumeclaims", is_namespaced=True
)
STORAGE_CLASS = LiveKind(
    name="StorageClass", api_version="storage.k8s.io/v1", plural="storageclasses", is_optional=True
)
CSI_DRIVER_KIND = LiveKind(
    name="CSIDriver", api_version="storage.k8s.io/v1", plural="csidrivers", is_optional=True
)
NODE = LiveKind(name="Node", api_version="v1", plural="nodes", is_optional=True)
LIMIT_RANGE = LiveKind(
    name="LimitRange", api_version="v1", plural="limitranges", is_namespaced=True, is_optional=True
)
RESOURCE_QUOTA = LiveKind(
    name="ResourceQuota", api_version="v1", plural="resourcequotas", is_namespaced=True, is_optional=True
)

KINDS = (
    FUSE_DRIVER_CLASS,
    NAMESPACE,
    PERSISTENT_VOLUME,
    CLAIM,
    STORAGE_CLASS,
    CSI_DRIVER_KIND,
    NODE,
    LIMIT_RANGE,
    RESOURCE_QUOTA,
)


def group_of(fact: object) -> Key | None:
    """Return what a fact is also looked up by, None if by nothing: a volume of ours by its handle, a limit by its namespace."""
    match fact:
        case VolumeFacts() if fact.driver == CSI_DRIVER:
            return fact.driver, fact.handle
        case LimitRangeFacts() | QuotaFacts():
            return fact.namespace
    return None


def key_of(kind: LiveKind, manifest: Mapping[str, Any]) -> Key:
    """Return an object's key. Raises InvalidRequest."""
    _, namespace, name = identify({**manifest, "kind": kind.name})
    return kind.key(namespace, name)


def version_of(manifest: Mapping[str, Any]) -> str:
    """Return an object's or a list's resourceVersion, "" if it has none."""
    metadata = manifest.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) else ""


def read_fact(kind: LiveKind, manifest: Mapping[str, Any]) -> Fact | None:
    """Return the fact that an object states, no larger than it must be, None if it states none. Raises VolumeError.

    Items of a list carry no kind and apiVersion of their own.
    """
    fact = parse_fact({"apiVersion": kind.api_version, **manifest, "kind": kind.name})
    match fact:
        case VolumeFacts():
            return _small_volume(fact)
        case ClaimFacts() | LimitRangeFacts() | QuotaFacts():
            return replace(fact, namespace=sys.intern(fact.namespace))
        case _:
            return fact


def _small_volume(volume: VolumeFacts) -> VolumeFacts:
    """Drop what is not read of another driver's volume, and share what most volumes have in common."""
    is_ours = volume.driver == CSI_DRIVER
    modes = volume.access_modes
    if len(_modes) < _MODES_MAX:
        modes = _modes.setdefault(modes, modes)
    return replace(
        volume,
        driver=sys.intern(volume.driver),
        handle=volume.handle if is_ours else "",
        access_modes=modes,
        attributes=volume.attributes if is_ours and volume.attributes else _NONE,
        mount_options=volume.mount_options if is_ours else (),
    )


_NONE: Mapping[str, str] = {}
_MODES_MAX = 64
_modes: dict[frozenset[str], frozenset[str]] = {}
