"""A pod as the node needs it: parsed, defaulted, checked. Values only."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a container is to its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Propagation(Enum):
    """mountPropagation."""

    NONE = "None"
    HOST_TO_CONTAINER = "HostToContainer"
    BIDIRECTIONAL = "Bidirectional"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRef:
    """A field of the pod: "metadata.name", "metadata.labels['x']", "status.podIP"."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRef:
    """A container's request or limit ("limits.memory"); "" means the container that asks."""

    container: str
    resource: str
    divisor_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRef:
    """One key of a Secret or ConfigMap; an empty key means all of them (envFrom)."""

    kind: str
    name: str
    key: str
    optional: bool
    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """One entry of env, or of envFrom (then it has no name)."""

    name: str
    value: str = ""
    source: FieldRef | ResourceRef | KeyRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """One entry of volumeMounts."""

    volume: str
    mount_path: str
    sub_path: str
    sub_path_expr: str
    read_only: bool
    propagation: Propagation


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An exec probe."""

    command: tuple[str, ...]
    initial_delay_s: int
    period_s: int
    timeout_s: int
    success_threshold: int
    failure_threshold: int
    grace_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStop:
    """Either a command or, if that is empty, a sleep."""

    command: tuple[str, ...]
    sleep_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """securityContext of one container, the pod's merged in."""

    privileged: bool
    run_as_user: int | None
    run_as_group: int | None
    run_as_non_root: bool
    read_only_root: bool
    no_new_privileges: bool
    cap_add: tuple[str, ...]
    cap_drop: tuple[str, ...]
    seccomp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Limits and requests; None is unset. Requests default to limits."""

    memory_limit_bytes: int | None
    memory_request_bytes: int | None
    cpu_limit_milli: int | None
    cpu_request_milli: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of any kind."""

    name: str
    kind: Kind
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    working_dir: str
    env: tuple[EnvVar, ...]
    mounts: tuple[VolumeMount, ...]
    security: Security
    resources: Resources
    startup: Probe | None
    liveness: Probe | None
    readiness: Probe | None
    pre_stop: PreStop | None
    termination_path: str
    message_from_log: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyDir:
    """An emptyDir on disk or, with memory, a tmpfs of its own."""

    memory: bool
    size_limit_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A path of the node, checked against its type ("" checks nothing)."""

    path: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A persistentVolumeClaim: a directory given to podlet, mounted as a hostPath volume would be."""

    claim: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file: a key of an object (its source is None) or a field of the pod."""

    key: str
    path: str
    mode: int | None
    source: FieldRef | ResourceRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectProjection:
    """A Secret or ConfigMap; no items means every key under its own name."""

    kind: str
    name: str
    items: tuple[Item, ...]
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProjection:
    """downwardAPI files."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProjection:
    """A service-account token, faked: podlet has no API server that would accept it."""

    path: str


Projection = ObjectProjection | FieldProjection | TokenProjection


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """Files that kubelet writes: secret, configMap, downwardAPI and projected volumes.

    `plugin` is the name in kubelet's directories; all but ConfigMaps live on a tmpfs.
    """

    plugin: str
    sources: tuple[Projection, ...]
    default_mode: int


VolumeSource = EmptyDir | HostPath | Claim | Projected


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One entry of spec.volumes."""

    name: str
    source: VolumeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Everything the node reads of a pod. `containers` holds init containers first, in order."""

    namespace: str
    name: str
    uid: str
    labels: dict[str, str]
    annotations: dict[str, str]
    service_account: str
    containers: tuple[Container, ...]
    volumes: tuple[Volume, ...]
    restart_policy: str
    grace_s: int
    active_deadline_s: int | None
    hostname: str
    host_network: bool
    share_process_namespace: bool
    fs_group: int | None
    supplemental_groups: tuple[int, ...]
    resources: Resources

    @property
    def mounted_volumes(self) -> tuple[Volume, ...]:
        """Return the volumes that some container mounts: a kubelet passes over all others."""
        used = {mount.volume for container in self.containers for mount in container.mounts}
        return tuple(volume for volume in self.volumes if volume.name in used)

    @property
    def inits(self) -> tuple[Container, ...]:
        """Return the init containers and native sidecars, in order."""
        return tuple(c for c in self.containers if c.kind is not Kind.APP)

    @property
    def apps(self) -> tuple[Container, ...]:
        """Return the app containers."""
        return tuple(c for c in self.containers if c.kind is Kind.APP)
