"""PodShape: everything of a pod that a decision depends on, and nothing else; hashable, so that decisions can be kept.

Pods of one workload differ in names that are drawn for each (their token volume, their own name). Volumes that no request
concerns therefore keep only their place, and mounts of them only their path. A plan is made from a shape alone: two pods of
one shape get the same patch, and what is proved for one holds for the other.
"""

from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from sidemount.model.names import (
    DOMAIN,
    INJECT_ANNOTATION,
    INJECTED_LABEL,
    MOUNTS_VOLUME,
    NO_TOKEN_VOLUME,
    RESERVED_PREFIX,
    RUN_VOLUME,
    STATUS_ANNOTATION,
    cache_volume,
    secret_volume,
    source_volume,
)
from webhook.pod import Container, Metadata, Mount, Pod, PodSecurityContext, PodSpec

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_LOCAL_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
DEFAULT_LOGS_CONTAINER = "kubectl.kubernetes.io/default-logs-container"
MIRROR = "kubernetes.io/config.mirror"
CONFIG_SOURCE = "kubernetes.io/config.source"

_OURS = DOMAIN + "/"
_DOMAINS = frozenset({DOMAIN, f"volume.{DOMAIN}", f"volumes.{DOMAIN}"})
_FOREIGN = frozenset(
    {SAFE_TO_EVICT, SAFE_LOCAL_VOLUMES, DEFAULT_CONTAINER, DEFAULT_LOGS_CONTAINER, MIRROR, CONFIG_SOURCE}
)
_RESERVED = len(MOUNTS_VOLUME)
_PREFIX = len(RESERVED_PREFIX)
_CLAIM = "persistentVolumeClaim"
_NULL = b"null"
_FEW = 16

Pairs = tuple[tuple[str, str], ...]


class VolumeShape(Struct, frozen=True, gc=False):
    """A volume that a request may concern, with every field but its name as it was sent."""

    name: str
    fields: tuple[tuple[str, bytes], ...]

    @property
    def kinds(self) -> list[str]:
        """The fields that say what it is: those that are not null."""
        return [key for key, raw in self.fields if raw != _NULL]


class ContainerShape(Struct, frozen=True, gc=False):
    """A container. A mount that concerns nobody is its path."""

    name: str
    mounts: tuple[Mount | str, ...]
    devices: tuple[str, ...]
    resources: bytes
    run_as_user: int | None
    restart_policy: str


class PodShape(Struct, frozen=True, gc=False):
    """A pod, as far as it matters. A volume that concerns nobody is its "" in `volumes`.

    `carries_ours`: some container or volume has a name that is reserved for ours.
    `opt_out_label`: the label of the opt-out annotation's name, which some workloads can set more easily; None if absent.
    """

    namespace: str
    ours: Pairs
    status: str | None
    foreign: Pairs
    has_metadata: bool
    has_annotations: bool
    has_labels: bool
    injected_label: str | None
    opt_out_label: str | None
    volumes: tuple[VolumeShape | str, ...]
    containers: tuple[ContainerShape, ...]
    init_containers: tuple[ContainerShape, ...]
    pull_secrets: tuple[str, ...]
    node_selector: Pairs
    security: PodSecurityContext
    resources: bytes
    os_name: str
    runtime_class: str
    host_users: bool
    shared_processes: bool
    grace_s: int | None
    has_deadline: bool
    priority_class: str
    overhead: bytes
    carries_ours: bool


_decode_text = msgspec.json.Decoder(str).decode
_NO_SPEC = PodSpec()
_NO_METADATA = Metadata()


def own_annotations(pod: Pod) -> Pairs:
    """Return the annotations of our domain but the status, as written, in the pod's order."""
    metadata = pod.metadata
    if metadata is None or not metadata.annotations:
        return ()
    return tuple([pair for pair in metadata.annotations.items() if _OURS in pair[0] and is_request(pair[0])])


def claim_volumes(pod: Pod) -> frozenset[str]:
    """Return the names of the volumes that are PersistentVolumeClaims."""
    if pod.spec is None:
        return frozenset()
    return frozenset(
        [
            _volume_name(volume)
            for volume in pod.spec.volumes
            if _CLAIM in volume and bytes(volume[_CLAIM]) != _NULL
        ]
    )


def shape_of(pod: Pod, namespace: str, ours: Pairs, wanted: frozenset[str]) -> PodShape:
    """Return what matters of a pod when `wanted` are the volumes that requests concern."""
    metadata = pod.metadata or _NO_METADATA
    spec = pod.spec or _NO_SPEC
    annotations = metadata.annotations
    # A mount may name a volume that is only about to be added: that is no user's to do.
    wanted = with_own_volumes(wanted)
    volumes = tuple([_volume(volume, wanted) for volume in spec.volumes]) if spec.volumes else ()
    containers = tuple([_container(container, wanted) for container in spec.containers])
    inits = tuple([_container(container, wanted) for container in spec.init_containers])
    return PodShape(
        namespace,
        ours,
        annotations.get(STATUS_ANNOTATION) if annotations else None,
        tuple([pair for pair in annotations.items() if pair[0] in _FOREIGN]) if annotations else (),
        pod.metadata is not None,
        annotations is not None,
        metadata.labels is not None,
        metadata.labels.get(INJECTED_LABEL) if metadata.labels else None,
        metadata.labels.get(INJECT_ANNOTATION) if metadata.labels else None,
        volumes,
        containers,
        inits,
        tuple([secret.name for secret in spec.image_pull_secrets]),
        tuple(spec.node_selector.items()),
        spec.security_context,
        bytes(spec.resources),
        spec.os.name,
        spec.runtime_class_name,
        spec.host_users is not False,
        spec.share_process_namespace is True or spec.host_pid is True,
        spec.termination_grace_period_seconds,
        spec.active_deadline_seconds is not None,
        spec.priority_class_name,
        bytes(spec.overhead),
        any(is_reserved(volume.name) for volume in volumes if isinstance(volume, VolumeShape))
        or reserved_container(pod) != "",
    )


def with_own_volumes(volumes: frozenset[str]) -> frozenset[str]:
    """Return these volume names and those of all volumes of ours that may be added for them."""
    return _extended(volumes) if len(volumes) > _FEW else _remembered(volumes)


def _extended(volumes: frozenset[str]) -> frozenset[str]:
    each = [f(name) for name in volumes for f in (source_volume, secret_volume, cache_volume)]
    return volumes | {MOUNTS_VOLUME, RUN_VOLUME, NO_TOKEN_VOLUME, *each}


_remembered = lru_cache(maxsize=1024)(_extended)


def is_request(key: str) -> bool:
    """Say whether an annotation is of our domain and a user's to set."""
    return key.partition("/")[0] in _DOMAINS and key != STATUS_ANNOTATION


def has_reserved_container(pod: Pod) -> bool:
    """Say whether a container has a name that is ours alone."""
    return reserved_container(pod) != ""


def reserved_container(pod: Pod) -> str:
    """Return the first container name that is ours alone, "" if there is none."""
    spec = pod.spec or _NO_SPEC
    for containers in (spec.init_containers, spec.containers):
        for container in containers:
            if (
                container.name[:_PREFIX] == RESERVED_PREFIX
            ):  # is_own_container, for every container of every pod
                return container.name
    return ""


def is_own_container(name: str) -> bool:
    """Say whether a container's name is ours alone. Unlike a volume, none of ours is called just `sidemount`."""
    return name.startswith(RESERVED_PREFIX)


def is_reserved(name: str) -> bool:
    """Say whether a volume's name is ours alone."""
    return name == MOUNTS_VOLUME or name.startswith(RESERVED_PREFIX)


def _volume_name(volume: dict[str, Raw]) -> str:
    raw = volume.get("name")
    try:
        return _decode_text(raw) if raw is not None else ""
    except msgspec.DecodeError:
        return ""


def _volume(volume: dict[str, Raw], wanted: frozenset[str]) -> VolumeShape | str:
    name = _volume_name(volume)
    if name not in wanted and name[:_RESERVED] != MOUNTS_VOLUME:
        return ""
    return VolumeShape(name, tuple([(key, bytes(raw)) for key, raw in volume.items() if key != "name"]))


def _container(container: Container, wanted: frozenset[str]) -> ContainerShape:
    security = container.security_context
    return ContainerShape(
        container.name,
        tuple(
            [
                mount if mount.name in wanted or mount.name[:_RESERVED] == MOUNTS_VOLUME else mount.mount_path
                for mount in container.volume_mounts
            ]
        ),
        tuple([device.name for device in container.volume_devices]) if container.volume_devices else (),
        bytes(container.resources),
        None if security is None else security.run_as_user,
        container.restart_policy,
    )
