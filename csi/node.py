"""The node service's RPCs: messages in, messages out.

Source: https://github.com/container-storage-interface/spec/blob/v1.12.0/spec.md#node-service-rpc
"""

import errno
from collections.abc import Callable

from csi.boundary import Method
from csi.event_news import VolumeNews
from csi.faults import NotFound
from csi.keeper_link import Answer, VolumeStatus
from csi.node_credentials import NodeCredentials
from csi.proto import csi_pb2
from csi.publications import Publications
from csi.publish_plan import PublishPlan
from csi.publish_request import parse_path, parse_publish, parse_volume_id
from sidemount.model.errors import InvalidRequest, Unsupported, VolumeError
from sidemount.model.facts import Facts

SERVICE = "csi.v1.Node"
_DEAD = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
_CAPABILITIES = ("GET_VOLUME_STATS", "VOLUME_CONDITION", "SINGLE_NODE_MULTI_WRITER")


class NodeService:
    """Answers the RPCs of csi.v1.Node."""

    def __init__(
        self,
        node_id: str,
        publications: Publications,
        facts: Callable[[], Facts],
        run_root: str,
        credentials: NodeCredentials,
        news: VolumeNews,
    ) -> None:
        """`run_root` has a directory for each target's daemon."""
        self._node_id = node_id
        self._publications = publications
        self._facts = facts
        self._run_root = run_root
        self._credentials = credentials
        self._news = news

    def methods(self) -> dict[str, Method]:
        """Return the RPCs. What is not advertised is there to say so."""
        return {
            "NodePublishVolume": Method(csi_pb2.NodePublishVolumeRequest, self._publish),
            "NodeUnpublishVolume": Method(csi_pb2.NodeUnpublishVolumeRequest, self._unpublish),
            "NodeGetVolumeStats": Method(csi_pb2.NodeGetVolumeStatsRequest, self._stats),
            "NodeGetCapabilities": Method(csi_pb2.NodeGetCapabilitiesRequest, self._capabilities),
            "NodeGetInfo": Method(csi_pb2.NodeGetInfoRequest, self._info),
            "NodeStageVolume": Method(csi_pb2.NodeStageVolumeRequest, self._stage),
            "NodeUnstageVolume": Method(csi_pb2.NodeUnstageVolumeRequest, self._unstage),
            "NodeExpandVolume": Method(csi_pb2.NodeExpandVolumeRequest, self._expand),
        }

    async def _publish(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        try:
            await self._published(request)
        except VolumeError as error:
            self._news.publish_failed(request.volume_id, request.target_path, request.volume_context, error)
            raise
        return csi_pb2.NodePublishVolumeResponse()

    async def _published(self, request: csi_pb2.NodePublishVolumeRequest) -> None:
        asked = parse_publish(request)

        async def plan(path: str) -> PublishPlan:
            return await self._credentials.plan(asked, path, self._facts(), self._run_root)

        await self._publications.publish(
            asked.volume_id,
            asked.target,
            asked.arguments,
            plan,
            exclusive=asked.mode.is_exclusive,
            secrets=asked.secrets,
            file_secrets=self._credentials.current,
        )

    async def _unpublish(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        volume_id = parse_volume_id(request.volume_id)
        target = parse_path(request.target_path, "target_path")
        await self._publications.unpublish(volume_id, target)
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def _stats(self, request: csi_pb2.NodeGetVolumeStatsRequest) -> csi_pb2.NodeGetVolumeStatsResponse:
        if not request.volume_id or not request.volume_path:
            missing = "volume_path" if request.volume_id else "volume_id"
            raise InvalidRequest(f"{missing} is missing")
        try:
            volume_id = parse_volume_id(request.volume_id)
            path = parse_path(request.volume_path, "volume_path")
        except InvalidRequest as error:
            # A path that none of ours can have is asked for like any other that is not published.
            raise NotFound(f"no such publication: {error.message}") from error
        return statistics_answer(*await self._publications.statistics(volume_id, path))

    async def _capabilities(
        self, request: csi_pb2.NodeGetCapabilitiesRequest
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        of_rpc = csi_pb2.NodeServiceCapability.RPC
        return csi_pb2.NodeGetCapabilitiesResponse(
            capabilities=[
                csi_pb2.NodeServiceCapability(rpc=of_rpc(type=of_rpc.Type.Value(name)))
                for name in _CAPABILITIES
            ]
        )

    async def _info(self, request: csi_pb2.NodeGetInfoRequest) -> csi_pb2.NodeGetInfoResponse:
        return csi_pb2.NodeGetInfoResponse(node_id=self._node_id)

    async def _stage(self, request: csi_pb2.NodeStageVolumeRequest) -> csi_pb2.NodeStageVolumeResponse:
        raise _not_advertised("NodeStageVolume", "publish without staging")

    async def _unstage(self, request: csi_pb2.NodeUnstageVolumeRequest) -> csi_pb2.NodeUnstageVolumeResponse:
        raise _not_advertised("NodeUnstageVolume", "nothing is ever staged")

    async def _expand(self, request: csi_pb2.NodeExpandVolumeRequest) -> csi_pb2.NodeExpandVolumeResponse:
        raise _not_advertised("NodeExpandVolume", "a mounted volume sees its new size by itself")


def statistics_answer(status: VolumeStatus, answer: Answer | None) -> csi_pb2.NodeGetVolumeStatsResponse:
    """Return what CSI says of a volume: a dead or hung one is an answer, not an error."""
    if answer is None:
        return _abnormal(
            f"the volume is not served ({status.phase}): {status.fault or 'its daemon is awaited'}"
        )
    if answer.late:
        return _abnormal("the volume does not answer: its daemon hangs")
    if answer.found is None:
        what = "its daemon is gone" if answer.errno in _DEAD else answer.fault
        return _abnormal(f"the volume does not answer: {what}")
    found = answer.found
    usage = [
        csi_pb2.VolumeUsage(
            unit=csi_pb2.VolumeUsage.Unit.Value(unit),
            total=found[f"total_{unit.lower()}"],
            used=found[f"used_{unit.lower()}"],
            available=found[f"available_{unit.lower()}"],
        )
        for unit in ("BYTES", "INODES")
    ]
    is_abnormal = bool(status.abnormal)
    message = status.abnormal or "the volume is served"
    return csi_pb2.NodeGetVolumeStatsResponse(
        usage=usage, volume_condition=csi_pb2.VolumeCondition(abnormal=is_abnormal, message=message)
    )


def _abnormal(message: str) -> csi_pb2.NodeGetVolumeStatsResponse:
    return csi_pb2.NodeGetVolumeStatsResponse(
        volume_condition=csi_pb2.VolumeCondition(abnormal=True, message=message)
    )


def _not_advertised(name: str, instead: str) -> Unsupported:
    return Unsupported(f"{name} is not offered: {instead}")
