"""VolumeRequest: what a workload asks for, once parsed. Parsing is in `requests`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sidemount.model.mountspec import OptionValue


class Delivery(Enum):
    """How a volume reaches the pod."""

    SIDECAR = "sidecar"
    CSI = "csi"


class AccessMode(Enum):
    """Access modes an existing volume may be referenced with, in requests' spelling."""

    READ_WRITE_MANY = "READ_WRITE_MANY"
    READ_ONLY_MANY = "READ_ONLY_MANY"


@dataclass(frozen=True, slots=True)
class SourceUri:
    """A URI that a driver class serves."""

    uri: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim of the pod's namespace. `implicit`: the pod uses it in spec.volumes, no annotation."""

    name: str
    implicit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """A volume that outlives the pod, by the handle its PersistentVolume holds."""

    driver: str
    handle: str
    access_mode: AccessMode


@dataclass(frozen=True, slots=True)
class Unsupplied:
    """Declared with `optional: true` and nothing supplied: contributes neither volume nor mounts."""


Origin = SourceUri | Claim | Existing | Unsupplied


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """Per-pod resources of one daemon, quantities as written; bounds are the class's."""

    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRequest:
    """One requested volume: valid in itself; not yet checked against any class.

    `options` keep the text or typed value as written, sorted by name; the class gives them their meaning.
    `containers` is None for "all". `provisioned` is the id of a volume that was provisioned in the source, a pool; only a volume
    context names one. `is_inline`: the context is that of a volume which the pod itself declares. `where` names the annotation entry, for messages: two spellings of one request are equal.
    """

    name: str
    origin: Origin
    where: str = field(compare=False)
    driver_class: str = ""
    sub_path: str = ""
    read_only: bool = False
    options: tuple[tuple[str, OptionValue], ...] = ()
    secret: str = ""
    mount_path: str = ""
    containers: tuple[str, ...] | None = None
    delivery: Delivery | None = None
    resources: ResourceRequest = field(default_factory=ResourceRequest)
    provisioned: str = ""
    is_inline: bool = field(default=False, compare=False)
