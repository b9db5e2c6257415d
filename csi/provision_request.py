"""Requests of the controller service → values: what can be told from a message alone. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from csi.faults import BeyondRange
from csi.proto import csi_pb2
from csi.publish_request import parse_capability, parse_map, parse_secrets
from csi.volume_ids import check_name, id_of_name
from csi.volume_state import Content, Kind
from sidemount.model.errors import InvalidRequest, shown

CAPACITY_MAX_BYTES = 1 << 60
PARAMETERS_MAX_BYTES = 4096
ID_MAX_BYTES = 128
# What the CO adds by itself says nothing of the volume (S4-10).
_CO_PREFIXES = ("csi.storage.k8s.io/", "storage.kubernetes.io/")


@dataclass(frozen=True, slots=True)
class CapacityRange:
    """What a size must lie in; 0 is unset."""

    required_bytes: int = 0
    limit_bytes: int = 0

    @property
    def wanted_bytes(self) -> int:
        """Return the size to make (S4-13); 0 if none was asked for."""
        return self.required_bytes or self.limit_bytes

    def holds(self, size_bytes: int) -> bool:
        """Tell whether a volume of that size, 0 for an unlimited one, is what was asked for."""
        if size_bytes == 0:
            return self.wanted_bytes == 0
        return self.required_bytes <= size_bytes and (self.limit_bytes == 0 or size_bytes <= self.limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """A CreateVolume that is valid in itself. `flags`: each capability's mount flags, one after the other."""

    id: str
    name: str
    capacity: CapacityRange
    parameters: Mapping[str, str]
    flags: tuple[str, ...]
    content: Content | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """A CreateSnapshot that is valid in itself."""

    id: str
    name: str
    source_volume_id: str


def parse_create(request: csi_pb2.CreateVolumeRequest) -> CreateRequest:
    """Return the request. Raises InvalidRequest naming the field, BeyondRange."""
    check_name(request.name)
    flags = parse_capabilities(request.volume_capabilities)
    if request.mutable_parameters:
        raise InvalidRequest(
            "mutable_parameters: no parameter of a volume can be changed", hint="leave them out"
        )
    parse_secrets(request.secrets)
    return CreateRequest(
        id=id_of_name(request.name),
        name=request.name,
        capacity=parse_capacity(request.capacity_range),
        parameters=parse_parameters(request.parameters),
        flags=flags,
        content=_parse_content(request),
    )


def parse_snapshot(request: csi_pb2.CreateSnapshotRequest) -> SnapshotRequest:
    """Return the request. Raises InvalidRequest."""
    check_name(request.name)
    source = parse_id(request.source_volume_id, "source_volume_id")
    for key in parse_parameters(request.parameters):
        raise InvalidRequest(f"parameters: {shown(key)} is not known", hint="a snapshot has none")
    return SnapshotRequest(id=id_of_name(request.name), name=request.name, source_volume_id=source)


def parse_capabilities(capabilities: Iterable[csi_pb2.VolumeCapability]) -> tuple[str, ...]:
    """See that a volume can be everything that is asked for, and return all mount flags. Raises InvalidRequest."""
    found: list[str] = []
    given = list(capabilities)
    for capability in given:
        _, flags = parse_capability(capability, "volume_capabilities")
        found += [flag for flag in flags if flag not in found]
    if not given:
        raise InvalidRequest("volume_capabilities are missing")
    return tuple(found)


def parse_capacity(given: csi_pb2.CapacityRange) -> CapacityRange:
    """Return the range. Raises InvalidRequest for a negative size, BeyondRange for one that nothing can have."""
    for field, size in (("required_bytes", given.required_bytes), ("limit_bytes", given.limit_bytes)):
        if size < 0:
            raise InvalidRequest(f"capacity_range: {field} {size} is negative")
    if given.limit_bytes and given.required_bytes > given.limit_bytes:
        raise BeyondRange(
            f"capacity_range: required_bytes {given.required_bytes} is more than limit_bytes {given.limit_bytes}"
        )
    wanted = given.required_bytes or given.limit_bytes
    if wanted > CAPACITY_MAX_BYTES:
        raise BeyondRange(f"capacity_range: {wanted} is more than the {CAPACITY_MAX_BYTES} of any volume")
    return CapacityRange(given.required_bytes, given.limit_bytes)


def parse_parameters(given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that are not the CO's own. Raises InvalidRequest."""
    found = parse_map(given, "parameters", PARAMETERS_MAX_BYTES)
    return {key: value for key, value in found.items() if not key.startswith(_CO_PREFIXES)}


def parse_id(text: str, field: str) -> str:
    """Return an id, whoever's it is. Raises InvalidRequest."""
    if not text:
        raise InvalidRequest(f"{field} is missing")
    return text


def _parse_content(request: csi_pb2.CreateVolumeRequest) -> Content | None:
    if not request.HasField("volume_content_source"):
        return None
    source = request.volume_content_source
    match source.WhichOneof("type"):
        case "snapshot":
            id_, kind = parse_id(source.snapshot.snapshot_id, "snapshot_id"), Kind.SNAPSHOT
        case "volume":
            id_, kind = parse_id(source.volume.volume_id, "volume_id"), Kind.VOLUME
        case _:
            raise InvalidRequest(
                "volume_content_source: is of no kind that is known", hint="name a snapshot or a volume"
            )
    return Content(kind=kind, id=id_)
