"""One Kubernetes manifest → the fact it states. Reads only the fields that decisions need."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sidemount.model.decide import NATIVE_SIDECARS_SINCE
from sidemount.model.driver_class import DriverClass
from sidemount.model.driver_class_manifest import parse_driver_class
from sidemount.model.errors import InvalidRequest
from sidemount.model.facts import VIRTUAL_NODE_LABELS, ClaimFacts, NamespaceFacts, VolumeFacts
from sidemount.model.limit_manifests import parse_limit_range, parse_quota
from sidemount.model.names import API_VERSION
from sidemount.model.namespace_limits import LimitRangeFacts, QuotaFacts

INLINE_LEVEL_LABEL = "security.kubernetes.io/csi-ephemeral-volume-profile"
_INLINE_MODE = "Ephemeral"
_NAME_LABEL = "kubernetes.io/metadata.name"
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\D.*)?", re.DOTALL)
_MAX_NAME = 253
_NAMESPACED = frozenset({"PersistentVolumeClaim", "LimitRange", "ResourceQuota"})
_OS_LABEL = "kubernetes.io/os"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiDriverFacts:
    """One CSIDriver object. `inline_level` is its csi-ephemeral-volume-profile label, "" if it has none.

    `offers_inline`: a pod may declare its volumes inline.
    """

    name: str
    inline_level: str = ""
    offers_inline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One Node that takes Linux pods. `version` is its kubelet's (major, minor); labels are kept of an old one alone."""

    name: str
    version: tuple[int, int]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_old(self) -> bool:
        """Whether it knows no native sidecars."""
        return self.version < NATIVE_SIDECARS_SINCE


@dataclass(frozen=True, slots=True)
class StorageClassFacts:
    """One StorageClass: who makes its volumes. Its parameters reach us through PersistentVolumes."""

    name: str
    provisioner: str = ""


Fact = (
    DriverClass
    | NamespaceFacts
    | VolumeFacts
    | ClaimFacts
    | CsiDriverFacts
    | NodeFacts
    | StorageClassFacts
    | LimitRangeFacts
    | QuotaFacts
)

ObjectId = tuple[str, str, str]
"""(kind, namespace or "", name): what makes two manifests the same object."""


def expand_lists(manifest: Any) -> Iterator[Any]:
    """Yield the manifest, or the items of a `List` or `…List`; items of a typed list get its kind.

    Raises: InvalidRequest if it is no mapping or its items are no list.
    """
    if not isinstance(manifest, dict):
        raise InvalidRequest(f"a manifest is a mapping with apiVersion and kind, not {_kind_of(manifest)}")
    kind = manifest.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List"):
        yield manifest
        return
    items = manifest.get("items")
    if items is None:
        return
    if not isinstance(items, list):
        raise InvalidRequest(f"{kind}: items: must be a list, not {_kind_of(items)}")
    implied = (
        {}
        if kind == "List"
        else {"apiVersion": manifest.get("apiVersion"), "kind": kind.removesuffix("List")}
    )
    for item in items:
        if isinstance(item, dict):
            yield from expand_lists({**implied, **item})
        else:
            yield item


def identify(manifest: Any) -> ObjectId:
    """Return the identity of an object, without judging the rest of it.

    Raises: InvalidRequest if kind or metadata.name is missing or no text.
    """
    if not isinstance(manifest, dict):
        raise InvalidRequest(f"a manifest is a mapping with apiVersion and kind, not {_kind_of(manifest)}")
    kind = _text(manifest, "kind", required=True)
    metadata = _mapping(manifest, "metadata")
    name = _text(metadata, "name", "metadata.name", required=True)
    if len(name) > _MAX_NAME:
        raise InvalidRequest(f"metadata.name: longer than {_MAX_NAME} characters")
    namespace = _text(metadata, "namespace", "metadata.namespace")
    return kind, (namespace or "default") if kind in _NAMESPACED else "", name


def is_known(manifest: Mapping[str, Any]) -> bool:
    """Tell whether a manifest states a fact. Another group's object of the same kind does not, unless only we have that kind."""
    kind = str(manifest.get("kind"))
    parser = _PARSERS.get(kind)
    if parser is None:
        return False
    return kind == "FuseDriverClass" or _group(manifest) == parser[0].rpartition("/")[0]


def parse_fact(manifest: Mapping[str, Any]) -> Fact | None:
    """Return the fact that a known manifest states, None if it states none (a volume that is not CSI).

    Raises: InvalidRequest (or Faults) naming field, value and reason.
    """
    api_version, parse = _PARSERS[manifest["kind"]]
    if manifest.get("apiVersion") != api_version:
        raise InvalidRequest(
            f"apiVersion: {str(manifest.get('apiVersion'))[:80]!r} is not served; write {api_version}"
        )
    return parse(manifest)


def _group(manifest: Mapping[str, Any]) -> str:
    return str(manifest.get("apiVersion") or "").rpartition("/")[0]


def _namespace(manifest: Mapping[str, Any]) -> NamespaceFacts:
    name = identify(manifest)[2]
    labels = _text_map(_mapping(manifest, "metadata"), "labels", "metadata.labels")
    # The API server sets this label on every namespace, and selectors rely on it.
    return NamespaceFacts(name=name, labels={**labels, _NAME_LABEL: name})


def _volume(manifest: Mapping[str, Any]) -> VolumeFacts | None:
    spec = _mapping(manifest, "spec")
    if spec.get("csi") is None:
        return None
    csi = _mapping(spec, "csi", "spec.csi")
    claim = _mapping(spec, "claimRef", "spec.claimRef")
    read_only = csi.get("readOnly", False)
    if read_only is not None and not isinstance(read_only, bool):
        raise InvalidRequest(f"spec.csi.readOnly: must be true or false, not {_kind_of(read_only)}")
    return VolumeFacts(
        name=identify(manifest)[2],
        driver=_text(csi, "driver", "spec.csi.driver", required=True),
        handle=_text(csi, "volumeHandle", "spec.csi.volumeHandle", required=True),
        access_modes=frozenset(_texts(spec, "accessModes", "spec.accessModes")),
        attributes=_text_map(csi, "volumeAttributes", "spec.csi.volumeAttributes"),
        read_only=bool(read_only),
        mount_options=_texts(spec, "mountOptions", "spec.mountOptions"),
        claim=_claim_of(claim),
        has_secret=bool(_mapping(csi, "nodePublishSecretRef", "spec.csi.nodePublishSecretRef")),
    )


def _claim_of(claim: Mapping[str, Any]) -> tuple[str, str] | None:
    if not claim:
        return None
    return (
        _text(claim, "namespace", "spec.claimRef.namespace", required=True),
        _text(claim, "name", "spec.claimRef.name", required=True),
    )


def _claim(manifest: Mapping[str, Any]) -> ClaimFacts:
    _, namespace, name = identify(manifest)
    spec = _mapping(manifest, "spec")
    volume = _text(spec, "volumeName", "spec.volumeName")
    storage_class = "" if volume else _text(spec, "storageClassName", "spec.storageClassName")
    return ClaimFacts(namespace=namespace, name=name, volume=volume, storage_class=storage_class)


def _csi_driver(manifest: Mapping[str, Any]) -> CsiDriverFacts:
    labels = _text_map(_mapping(manifest, "metadata"), "labels", "metadata.labels")
    modes = _texts(_mapping(manifest, "spec"), "volumeLifecycleModes", "spec.volumeLifecycleModes")
    return CsiDriverFacts(
        name=identify(manifest)[2],
        inline_level=labels.get(INLINE_LEVEL_LABEL, ""),
        offers_inline=_INLINE_MODE in modes,
    )


def _node(manifest: Mapping[str, Any]) -> NodeFacts | None:
    """A node that no pod of ours can land on states nothing: it is cordoned, virtual or for Windows."""
    labels = _text_map(_mapping(manifest, "metadata"), "labels", "metadata.labels")
    is_virtual = any(f"{key}={value}" in VIRTUAL_NODE_LABELS for key, value in labels.items())
    if (
        is_virtual
        or labels.get(_OS_LABEL) == "windows"
        or _mapping(manifest, "spec").get("unschedulable") is True
    ):
        return None
    info = _mapping(_mapping(manifest, "status"), "nodeInfo", "status.nodeInfo")
    text = _text(info, "kubeletVersion", "status.nodeInfo.kubeletVersion")
    if not text:
        return None
    match = _VERSION.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"status.nodeInfo.kubeletVersion: {text[:80]!r} is not a version such as v1.31.2"
        )
    found = NodeFacts(name=identify(manifest)[2], version=(int(match[1]), int(match[2])))
    return replace(found, labels=labels) if found.is_old else found


def _storage_class(manifest: Mapping[str, Any]) -> StorageClassFacts:
    return StorageClassFacts(identify(manifest)[2], _text(manifest, "provisioner", "provisioner"))


def _limit_range(manifest: Mapping[str, Any]) -> LimitRangeFacts | None:
    _, namespace, name = identify(manifest)
    return parse_limit_range(manifest, namespace, name)


def _quota(manifest: Mapping[str, Any]) -> QuotaFacts | None:
    _, namespace, name = identify(manifest)
    return parse_quota(manifest, namespace, name)


_PARSERS: dict[str, tuple[str, Callable[[Mapping[str, Any]], Fact | None]]] = {
    "FuseDriverClass": (API_VERSION, parse_driver_class),
    "Namespace": ("v1", _namespace),
    "PersistentVolume": ("v1", _volume),
    "PersistentVolumeClaim": ("v1", _claim),
    "StorageClass": ("storage.k8s.io/v1", _storage_class),
    "CSIDriver": ("storage.k8s.io/v1", _csi_driver),
    "Node": ("v1", _node),
    "LimitRange": ("v1", _limit_range),
    "ResourceQuota": ("v1", _quota),
}


def _mapping(parent: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where or key}: must be a mapping, not {_kind_of(value)}")
    return value


def _text(parent: Mapping[str, Any], key: str, where: str = "", *, required: bool = False) -> str:
    value = parent.get(key)
    if value is None and not required:
        return ""
    if value is None or value == "":
        if required:
            raise InvalidRequest(f"{where or key}: is missing")
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{where or key}: must be text, not {_kind_of(value)}; quote it")
    return value


def _text_map(parent: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    parsed = {}
    for name, value in _mapping(parent, key, where).items():
        if not isinstance(value, str):
            raise InvalidRequest(f"{where}.{name[:80]}: must be text, not {_kind_of(value)}; quote it")
        parsed[name] = value
    return parsed


def _texts(parent: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = parent.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"{where}: must be a list, not {_kind_of(value)}")
    for index, entry in enumerate(value):
        if not isinstance(entry, str):
            raise InvalidRequest(f"{where}[{index}]: must be text, not {_kind_of(entry)}; quote it")
    return tuple(value)


def _kind_of(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true/false", type(None): "nothing"}
    return names.get(type(value), "a number")
