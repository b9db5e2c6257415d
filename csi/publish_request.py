"""NodePublishVolumeRequest → PublishRequest: what can be told from the message alone. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from csi.access_modes import AccessMode
from csi.hidden_texts import HiddenTexts
from csi.proto import csi_pb2
from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.sub_path import unprintable_fault

ID_MAX_BYTES = 128
MAP_MAX_BYTES = 4096
FLAGS_MAX_BYTES = 4096
PATH_MAX_BYTES = 4095
COMPONENT_MAX_BYTES = 255
SECRETS_MAX_BYTES = 1 << 20
_FILESYSTEMS = ("", "fuse")
# What the CO adds by itself changes from call to call, and says nothing of what is to be mounted.
_CO_PREFIXES = ("csi.storage.k8s.io/", "storage.kubernetes.io/")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """A publish that is valid in itself. `target` is normal and absolute; `secrets` never go into a message or a record."""

    volume_id: str
    target: str
    mode: AccessMode
    read_only: bool
    flags: tuple[str, ...]
    context: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)

    @property
    def arguments(self) -> str:
        """Return a digest of everything that makes it the same publish or another one."""
        own = {key: value for key, value in self.context.items() if not key.startswith(_CO_PREFIXES)}
        parts = [self.volume_id, self.mode.name, self.read_only, sorted(self.flags), sorted(own.items())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def parse_publish(request: csi_pb2.NodePublishVolumeRequest) -> PublishRequest:
    """Return the request. Raises InvalidRequest naming the field, in the order that callers rely on."""
    volume_id = parse_volume_id(request.volume_id)
    target = parse_path(request.target_path, "target_path")
    if not request.HasField("volume_capability"):
        raise InvalidRequest("volume_capability is missing")
    mode, flags = parse_capability(request.volume_capability, "volume_capability")
    context = parse_map(request.volume_context, "volume_context", MAP_MAX_BYTES)
    parse_map(request.publish_context, "publish_context", MAP_MAX_BYTES)
    if request.staging_target_path:
        parse_path(request.staging_target_path, "staging_target_path")
    return PublishRequest(
        volume_id=volume_id,
        target=target,
        mode=mode,
        read_only=request.readonly or mode.is_read_only or "ro" in flags,
        flags=flags,
        context=context,
        secrets=parse_secrets(request.secrets),
    )


def parse_volume_id(text: str) -> str:
    """Return a volume id. Raises InvalidRequest."""
    if not text:
        raise InvalidRequest("volume_id is missing")
    fault = unprintable_fault(text)
    if fault:
        raise InvalidRequest(f"volume_id {shown(text)} {fault}")
    if len(text.encode()) > ID_MAX_BYTES:
        raise InvalidRequest(f"volume_id {shown(text)} is longer than {ID_MAX_BYTES} bytes")
    return text


def parse_path(text: str, field: str) -> str:
    """Return an absolute path without what means nothing in it. Raises InvalidRequest."""
    if not text:
        raise InvalidRequest(f"{field} is missing")
    fault = _path_fault(text)
    if fault:
        raise InvalidRequest(f"{field} {shown(text)} {fault}")
    return "/" + "/".join(part for part in text.split("/") if part not in ("", "."))


def _path_fault(text: str) -> str:
    if not text.startswith("/"):
        return "is not absolute"
    fault = unprintable_fault(text)
    if fault:
        return fault
    parts = text.split("/")
    if ".." in parts:
        return 'has the component ".."'
    if len(text.encode()) > PATH_MAX_BYTES or any(len(part.encode()) > COMPONENT_MAX_BYTES for part in parts):
        return "is longer than a path can be"
    return ""


def parse_capability(capability: csi_pb2.VolumeCapability, field: str) -> tuple[AccessMode, tuple[str, ...]]:
    """Return access mode and mount flags of a capability. Raises InvalidRequest for what no volume of ours can be."""
    match capability.WhichOneof("access_type"):
        case None:
            raise InvalidRequest(f"{field}: access_type is missing", hint="only mount is supported")
        case "block":
            raise InvalidRequest(
                f"{field}: block is not supported", hint="ask for mount (volumeMode Filesystem)"
            )
    number = capability.access_mode.mode
    try:
        mode = AccessMode(number)
    except ValueError:
        what = "is missing" if number == 0 else f"{number} is not known"
        raise InvalidRequest(f"{field}: access_mode {what}") from None
    mount = capability.mount
    if mount.fs_type not in _FILESYSTEMS:
        raise InvalidRequest(
            f"{field}: fs_type {shown(mount.fs_type)} is not what a FUSE volume has", hint="leave fs_type out"
        )
    if mount.volume_mount_group:
        raise InvalidRequest(f"{field}: volume_mount_group is not supported")
    flags = tuple(mount.mount_flags)
    if sum(len(flag.encode()) for flag in flags) > FLAGS_MAX_BYTES:
        raise InvalidRequest(f"{field}: mount_flags are longer than {FLAGS_MAX_BYTES} bytes")
    return mode, flags


def parse_secrets(given: Mapping[str, str]) -> HiddenTexts:
    """Return credentials. Raises InvalidRequest, which shows no key either: a credential may have come to be one."""
    return HiddenTexts(parse_map(given, "secrets", SECRETS_MAX_BYTES, shows_keys=False))


def parse_map(given: Mapping[str, str], field: str, most: int, *, shows_keys: bool = True) -> dict[str, str]:
    """Return the map. Raises InvalidRequest. A value never goes into the message: it may be a secret that went astray."""
    found = dict(given)
    if sum(len(key.encode()) + len(value.encode()) for key, value in found.items()) > most:
        raise InvalidRequest(f"{field} is longer than {most} bytes")
    for key in found:
        fault = "is empty" if not key else unprintable_fault(key)
        if fault:
            raise InvalidRequest(f"{field}: {f'key {shown(key)}' if shows_keys else 'a key'} {fault}")
    return found
