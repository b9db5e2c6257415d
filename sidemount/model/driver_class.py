"""DriverClass: one entry of the admin's allowlist. Parsing from a manifest is in `driver_class_manifest`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sidemount.model.options import OptionRule
from sidemount.model.selector import LabelSelector
from sidemount.model.volume_request import Delivery

BUILT_IN_FILESYSTEMS = ("directory", "objects")
# With less, a built-in filesystem's own bounds cannot bite before the kernel kills its whole container.
DAEMON_MEMORY_MIN_BYTES = 88 << 20


class PullPolicy(Enum):
    """When a node pulls the client's image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ReadOnlyAbility(Enum):
    """Who refuses writes to a read-only volume: the client as well, or the mount alone."""

    ENFORCED = "enforced"
    MOUNT = "mount"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Which keys of a Secret the client reads.

    They are files. For a client that wants them otherwise, `files` (name → template) are made of them in memory for it alone, and
    `environment` (name → template) is given to its process alone.
    """

    secret_keys: tuple[str, ...] = ()
    required: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What the client can do, as the admin declares it.

    `descriptor`: serves a descriptor it is given, so needs no privilege. `takeover`: a new one continues the same
    connection (implies `descriptor`). `read_only`: "enforced" by the client too, or "mount" only.
    """

    descriptor: bool = True
    takeover: bool = False
    read_only: str = "mount"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Quantities by resource name, as written. `max_limits` bounds what a pod may ask by annotation."""

    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    max_limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverClass:
    """One FuseDriverClass, valid. Source: FuseDriverClass.spec.

    Exactly one of `filesystem` (built in) and `image`+`command` is set. `capabilities` are the Linux capabilities the daemon
    keeps (names without CAP_), on top of none. `provisions`: its sources are pools, of which only provisioned volumes are served. `uid` runs the daemon. `hung_after_s` is the silence that makes it hung.
    `warnings` are what is allowed but not wise, for `sidemount classes`.
    """

    name: str
    deliveries: tuple[Delivery, ...]
    sources: tuple[str, ...]
    namespaces: LabelSelector
    filesystem: str = ""
    image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    read_only_arguments: tuple[str, ...] = ()
    options: Mapping[str, OptionRule] = field(default_factory=dict)
    credentials: Credentials = field(default_factory=Credentials)
    abilities: Abilities = field(default_factory=Abilities)
    capabilities: tuple[str, ...] = ()
    uid: int = 65532
    hung_after_s: int = 30
    cache_size: str = ""
    selinux_type: str = "container_file_t"
    resources: Resources = field(default_factory=Resources)
    provisions: bool = False
    warnings: tuple[str, ...] = ()
