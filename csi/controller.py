"""The controller service's RPCs: messages in, messages out.

Source: https://github.com/container-storage-interface/spec/blob/v1.12.0/spec.md#controller-service-rpc
"""

from collections.abc import Callable, Iterable, Mapping

from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import Int64Value

from csi.boundary import Method
from csi.controller_listing import after_token, check_page, page_length, token_of
from csi.controller_pools import Pools
from csi.faults import NotFound
from csi.proto import csi_pb2
from csi.provision_plan import check_flags, check_place_flags, choose_places, options_of
from csi.provision_request import (
    parse_capabilities,
    parse_capacity,
    parse_create,
    parse_id,
    parse_parameters,
    parse_snapshot,
)
from csi.publish_request import parse_capability, parse_secrets
from csi.volume_state import Content, Kind, SnapshotState, VolumeState
from sidemount.model.errors import InvalidRequest, Unsupported, VolumeError, shown
from sidemount.model.facts import Facts

SERVICE = "csi.v1.Controller"
_CAPABILITIES = (
    "CREATE_DELETE_VOLUME",
    "LIST_VOLUMES",
    "GET_CAPACITY",
    "CREATE_DELETE_SNAPSHOT",
    "LIST_SNAPSHOTS",
    "CLONE_VOLUME",
    "EXPAND_VOLUME",
    "GET_VOLUME",
    "SINGLE_NODE_MULTI_WRITER",
    "GET_SNAPSHOT",
)
_READ_AHEAD = 500  # entries that are read for a page beyond what it is known to need
_SECOND_NS = 1_000_000_000
_SIZE_MAX = (1 << 63) - 1
_OF_COPIES = frozenset({"CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS", "CLONE_VOLUME", "GET_SNAPSHOT"})


class ControllerService:
    """Answers the RPCs of csi.v1.Controller."""

    def __init__(self, pools: Pools, facts: Callable[[], Facts]) -> None:
        self._pools = pools
        self._facts = facts

    def methods(self) -> dict[str, Method]:
        """Return the RPCs. What is not advertised is there to say so."""
        return {
            "CreateVolume": Method(csi_pb2.CreateVolumeRequest, self._create),
            "DeleteVolume": Method(csi_pb2.DeleteVolumeRequest, self._delete),
            "ValidateVolumeCapabilities": Method(csi_pb2.ValidateVolumeCapabilitiesRequest, self._validate),
            "ListVolumes": Method(csi_pb2.ListVolumesRequest, self._list),
            "GetCapacity": Method(csi_pb2.GetCapacityRequest, self._capacity),
            "ControllerGetCapabilities": Method(csi_pb2.ControllerGetCapabilitiesRequest, self._capabilities),
            "CreateSnapshot": Method(csi_pb2.CreateSnapshotRequest, self._cut),
            "DeleteSnapshot": Method(csi_pb2.DeleteSnapshotRequest, self._delete_snapshot),
            "ListSnapshots": Method(csi_pb2.ListSnapshotsRequest, self._list_snapshots),
            "GetSnapshot": Method(csi_pb2.GetSnapshotRequest, self._get_snapshot),
            "ControllerExpandVolume": Method(csi_pb2.ControllerExpandVolumeRequest, self._expand),
            "ControllerGetVolume": Method(csi_pb2.ControllerGetVolumeRequest, self._get),
            "ControllerPublishVolume": Method(csi_pb2.ControllerPublishVolumeRequest, _no_publish),
            "ControllerUnpublishVolume": Method(csi_pb2.ControllerUnpublishVolumeRequest, _no_unpublish),
            "ControllerModifyVolume": Method(csi_pb2.ControllerModifyVolumeRequest, _no_modify),
        }

    async def _capabilities(
        self, request: csi_pb2.ControllerGetCapabilitiesRequest
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        of_rpc = csi_pb2.ControllerServiceCapability.RPC
        return csi_pb2.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi_pb2.ControllerServiceCapability(rpc=of_rpc(type=of_rpc.Type.Value(name)))
                for name in _CAPABILITIES
                if self._pools.has_copies or name not in _OF_COPIES
            ]
        )

    # Volumes -----------------------------------------------------------------------------------------

    async def _create(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        return csi_pb2.CreateVolumeResponse(
            volume=_volume(await self._pools.create(parse_create(request), parse_secrets(request.secrets)))
        )

    async def _delete(self, request: csi_pb2.DeleteVolumeRequest) -> csi_pb2.DeleteVolumeResponse:
        id_ = parse_id(request.volume_id, "volume_id")
        await self._pools.delete(Kind.VOLUME, id_, parse_secrets(request.secrets))
        return csi_pb2.DeleteVolumeResponse()

    async def _expand(
        self, request: csi_pb2.ControllerExpandVolumeRequest
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        id_ = parse_id(request.volume_id, "volume_id")
        capacity = parse_capacity(request.capacity_range)
        if not capacity.wanted_bytes:
            raise InvalidRequest("capacity_range is missing")
        if request.HasField("volume_capability"):
            parse_capability(request.volume_capability, "volume_capability")
        found = await self._pools.expand(id_, capacity, parse_secrets(request.secrets))
        return csi_pb2.ControllerExpandVolumeResponse(
            capacity_bytes=found.capacity_bytes, node_expansion_required=False
        )

    async def _get(self, request: csi_pb2.ControllerGetVolumeRequest) -> csi_pb2.ControllerGetVolumeResponse:
        found = await self._pools.volume(parse_id(request.volume_id, "volume_id"))
        return csi_pb2.ControllerGetVolumeResponse(
            volume=_volume(found), status=csi_pb2.ControllerGetVolumeResponse.VolumeStatus()
        )

    async def _validate(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        id_ = parse_id(request.volume_id, "volume_id")
        if not request.volume_capabilities:
            raise InvalidRequest("volume_capabilities are missing")
        secrets = parse_secrets(request.secrets)
        found = await self._pools.volume(id_, secrets)  # S2-35: only what is known to be there is confirmed
        try:
            self._check_valid(request, found)
        except VolumeError as error:
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=str(error))
        return csi_pb2.ValidateVolumeCapabilitiesResponse(
            confirmed=csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
                volume_context=request.volume_context,
                volume_capabilities=request.volume_capabilities,
                parameters=request.parameters,
            )
        )

    def _check_valid(self, request: csi_pb2.ValidateVolumeCapabilitiesRequest, found: VolumeState) -> None:
        flags = parse_capabilities(request.volume_capabilities)
        driver_class = self._facts().driver_class(found.context["class"])
        if driver_class is None:
            raise InvalidRequest(f"the volume's class {shown(found.context['class'])} is gone")
        check_flags(flags, driver_class, "mount_flags")
        _check_equal("volume_context", parse_parameters(request.volume_context), found.context)
        _check_equal("parameters", parse_parameters(request.parameters), found.parameters)
        if request.mutable_parameters:
            raise InvalidRequest("mutable_parameters: no parameter of a volume can be changed")

    async def _list(self, request: csi_pb2.ListVolumesRequest) -> csi_pb2.ListVolumesResponse:
        check_page(request.max_entries)
        places = after_token(await self._pools.ids(Kind.VOLUME), request.starting_token)
        entries, read = [], []
        for place, state in await self._page(Kind.VOLUME, places, request.max_entries):
            assert isinstance(state, VolumeState)
            status = csi_pb2.ListVolumesResponse.VolumeStatus()
            entries.append(csi_pb2.ListVolumesResponse.Entry(volume=_volume(state), status=status))
            read.append(place)
        count = page_length([entry.ByteSize() for entry in entries], request.max_entries)
        token = token_of(read[count - 1]) if count < len(entries) else ""
        return csi_pb2.ListVolumesResponse(entries=entries[:count], next_token=token)

    async def _capacity(self, request: csi_pb2.GetCapacityRequest) -> csi_pb2.GetCapacityResponse:
        parameters = parse_parameters(request.parameters)
        try:
            flags = parse_capabilities(request.volume_capabilities) if request.volume_capabilities else ()
            where = "parameters"
            places = choose_places(parameters, self._facts(), self._pools.names, where)
            for place in places:
                options_of(parameters, place, where)
                check_place_flags(flags, place, "mount_flags")
        except InvalidRequest:
            raise
        except VolumeError:
            places = ()  # nothing can be provisioned so
        pools = {place.pool for place in places}
        sizes = [await self._pools.available_bytes(pool) for pool in sorted(pools)]
        return csi_pb2.GetCapacityResponse(
            available_capacity=min(sum(sizes), _SIZE_MAX),
            maximum_volume_size=Int64Value(value=max(sizes, default=0)),
        )

    # Snapshots ---------------------------------------------------------------------------------------

    async def _cut(self, request: csi_pb2.CreateSnapshotRequest) -> csi_pb2.CreateSnapshotResponse:
        return csi_pb2.CreateSnapshotResponse(
            snapshot=_snapshot(await self._pools.cut(parse_snapshot(request), parse_secrets(request.secrets)))
        )

    async def _delete_snapshot(
        self, request: csi_pb2.DeleteSnapshotRequest
    ) -> csi_pb2.DeleteSnapshotResponse:
        await self._pools.delete(Kind.SNAPSHOT, parse_id(request.snapshot_id, "snapshot_id"))
        return csi_pb2.DeleteSnapshotResponse()

    async def _get_snapshot(self, request: csi_pb2.GetSnapshotRequest) -> csi_pb2.GetSnapshotResponse:
        found = await self._pools.snapshot(parse_id(request.snapshot_id, "snapshot_id"))
        return csi_pb2.GetSnapshotResponse(snapshot=_snapshot(found))

    async def _list_snapshots(self, request: csi_pb2.ListSnapshotsRequest) -> csi_pb2.ListSnapshotsResponse:
        check_page(request.max_entries)
        source = request.source_volume_id
        if request.snapshot_id:
            after_token((), request.starting_token)
            found = await self._one_snapshot(request.snapshot_id)
        else:
            places = after_token(await self._pools.ids(Kind.SNAPSHOT), request.starting_token)
            # Of which volume a snapshot is stands in its record alone, so all are read for that.
            found = [
                s for _, s in await self._page(Kind.SNAPSHOT, places, 0 if source else request.max_entries)
            ]
        entries = [
            csi_pb2.ListSnapshotsResponse.Entry(snapshot=_snapshot(state))
            for state in found
            if isinstance(state, SnapshotState) and source in ("", state.source_volume_id)
        ]
        count = page_length([entry.ByteSize() for entry in entries], request.max_entries)
        token = token_of(entries[count - 1].snapshot.snapshot_id) if count < len(entries) else ""
        return csi_pb2.ListSnapshotsResponse(entries=entries[:count], next_token=token)

    async def _one_snapshot(self, id_: str) -> "list[VolumeState | SnapshotState]":
        try:
            return [await self._pools.snapshot(id_)]
        except NotFound:
            return []

    async def _page(
        self, kind: Kind, places: Iterable[tuple[str, str]], max_entries: int
    ) -> "list[tuple[str, VolumeState | SnapshotState]]":
        """Return what is there, in order, each with what it was listed as: at least one more than `max_entries` if there are so many."""
        rest = list(places)
        found: list[tuple[str, VolumeState | SnapshotState]] = []
        while rest and (not max_entries or len(found) <= max_entries):
            length = max_entries + _READ_AHEAD if max_entries else len(rest)
            found += await self._pools.read(kind, rest[:length])
            rest = rest[length:]
        return found


def _volume(state: VolumeState) -> csi_pb2.Volume:
    return csi_pb2.Volume(
        capacity_bytes=state.capacity_bytes,
        volume_id=state.id,
        volume_context=state.context,
        content_source=_content(state.content),
    )


def _content(content: Content | None) -> csi_pb2.VolumeContentSource | None:
    if content is None:
        return None
    source = csi_pb2.VolumeContentSource
    if content.kind is Kind.SNAPSHOT:
        return source(snapshot=source.SnapshotSource(snapshot_id=content.id))
    return source(volume=source.VolumeSource(volume_id=content.id))


def _snapshot(state: SnapshotState) -> csi_pb2.Snapshot:
    seconds, nanos = divmod(state.created_ns, _SECOND_NS)
    return csi_pb2.Snapshot(
        size_bytes=state.size_bytes,
        snapshot_id=state.id,
        source_volume_id=state.source_volume_id,
        creation_time=Timestamp(seconds=seconds, nanos=nanos),
        ready_to_use=True,
    )


def _check_equal(field: str, given: Mapping[str, str], held: Mapping[str, str]) -> None:
    if given and dict(given) != dict(held):
        raise InvalidRequest(f"{field} is not the volume's")


async def _no_publish(
    request: csi_pb2.ControllerPublishVolumeRequest,
) -> csi_pb2.ControllerPublishVolumeResponse:
    raise Unsupported("ControllerPublishVolume is not offered: nothing is attached to a node")


async def _no_unpublish(
    request: csi_pb2.ControllerUnpublishVolumeRequest,
) -> csi_pb2.ControllerUnpublishVolumeResponse:
    raise Unsupported("ControllerUnpublishVolume is not offered: nothing is attached to a node")


async def _no_modify(
    request: csi_pb2.ControllerModifyVolumeRequest,
) -> csi_pb2.ControllerModifyVolumeResponse:
    raise Unsupported(
        "ControllerModifyVolume is not offered: make another volume, and clone this one into it"
    )
