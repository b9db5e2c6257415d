"""Pod on the wire: the part that is read, typed. Everything else is skipped without being built.

A field here is part of what a decision may depend on; `shape` keeps what it does depend on.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from sidemount.model.errors import InvalidRequest

NO_RAW = Raw(b"")


class Mount(Struct, frozen=True, gc=False, rename="camel"):
    """A volumeMount."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
    mount_propagation: str = ""
    recursive_read_only: str = ""


class Device(Struct, frozen=True, gc=False, rename="camel"):
    """A volumeDevice: a volume as a block device."""

    name: str = ""


class ContainerSecurity(Struct, frozen=True, gc=False, rename="camel"):
    """A container's securityContext."""

    run_as_user: int | None = None


class Container(Struct, frozen=True, gc=False, rename="camel"):
    """A container or init container."""

    name: str = ""
    volume_mounts: tuple[Mount, ...] = ()
    volume_devices: tuple[Device, ...] = ()
    resources: Raw = NO_RAW
    restart_policy: str = ""
    security_context: ContainerSecurity | None = None


class SeLinux(Struct, frozen=True, gc=False):
    """seLinuxOptions."""

    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class Profile(Struct, frozen=True, gc=False):
    """A seccompProfile or appArmorProfile."""

    type: str = ""


class PodSecurityContext(Struct, frozen=True, gc=False, rename="camel"):
    """A pod's securityContext: what containers inherit unless they say otherwise."""

    run_as_user: int | None = None
    fs_group: int | None = None
    fs_group_change_policy: str = ""
    se_linux_options: SeLinux | None = None
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None


class LocalReference(Struct, frozen=True, gc=False):
    """The name of an object in the pod's namespace."""

    name: str = ""


class OperatingSystem(Struct, frozen=True, gc=False):
    """spec.os."""

    name: str = ""


class PodSpec(Struct, frozen=True, gc=False, rename="camel"):
    """The part of a pod's spec that is read. A volume is its fields as they were sent."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[dict[str, Raw], ...] = ()
    image_pull_secrets: tuple[LocalReference, ...] = ()
    node_selector: dict[str, str] = {}
    security_context: PodSecurityContext = PodSecurityContext()
    resources: Raw = NO_RAW
    os: OperatingSystem = OperatingSystem()
    runtime_class_name: str = ""
    host_users: bool | None = None
    share_process_namespace: bool | None = None
    host_pid: bool | None = msgspec.field(default=None, name="hostPID")
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    priority_class_name: str = ""
    overhead: Raw = NO_RAW


class Metadata(Struct, frozen=True, gc=False):
    """The part of metadata that is read. `annotations` and `labels` are None when there are none at all."""

    namespace: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Pod(Struct, frozen=True, gc=False):
    """A pod. `spec` and `metadata` are None when they are absent or null."""

    metadata: Metadata | None = None
    spec: PodSpec | None = None


_decoder = msgspec.json.Decoder(Pod)
_encode = msgspec.json.Encoder().encode


def decode_pod(raw: bytes) -> Pod:
    """Decode a pod in which any field may be null, as Kubernetes does. Raises InvalidRequest naming the field."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        # Null stands for absent wherever Kubernetes decodes it; only the slow way pays for taking it out.
        return _decode_with_nulls(raw)


def decode_object(raw: bytes) -> dict[str, Any]:
    """Decode an object as plain JSON values. Raises InvalidRequest."""
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the object cannot be read: {error}") from error
    if not isinstance(decoded, dict):
        raise InvalidRequest("the object is not a JSON object")
    return decoded


def _decode_with_nulls(raw: bytes) -> Pod:
    try:
        return _decoder.decode(_encode(_cleaned(decode_object(raw))))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"the pod cannot be read: {error}",
            hint="the API server would refuse it too: correct the field's type",
        ) from error


def _cleaned(pod: dict[str, Any]) -> Any:
    """Return the pod without null members; fields of volumes as they are, because they may be written back.

    A container that is null stays so, and is refused: nothing can be added to it, as to an empty one.
    """
    cleaned = _without_nulls(pod)
    spec = pod.get("spec")
    volumes = spec.get("volumes") if isinstance(spec, dict) else None
    for section in ("containers", "initContainers"):
        containers = spec.get(section) if isinstance(spec, dict) else None
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            if container is None:
                cleaned["spec"][section][index] = None
    if isinstance(volumes, list):
        cleaned["spec"]["volumes"] = [{} if volume is None else volume for volume in volumes]
    return cleaned


def _without_nulls(value: Any) -> Any:
    """Return the value without null members; a null item of a list stays in its place as an empty object."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [{} if item is None else _without_nulls(item) for item in value]
    return value
