"""The identity service: who we are, what we can do, whether we can do it now."""

import os
from collections.abc import Callable
from importlib import metadata

from google.protobuf.wrappers_pb2 import BoolValue

from csi.boundary import Method
from csi.faults import WrongState
from csi.proto import csi_pb2
from sidemount.model.names import CSI_DRIVER

SERVICE = "csi.v1.Identity"
_DEVICE = "/dev/fuse"


class IdentityService:
    """Answers GetPluginInfo, GetPluginCapabilities and Probe."""

    def __init__(self, is_ready: Callable[[], bool], device: str = _DEVICE) -> None:
        """`is_ready` tells whether starting is over. `device` is what nothing can be mounted without, "" if not needed."""
        self._is_ready = is_ready
        self._device = device

    def methods(self) -> dict[str, Method]:
        """Return the RPCs."""
        return {
            "GetPluginInfo": Method(csi_pb2.GetPluginInfoRequest, self._info),
            "GetPluginCapabilities": Method(csi_pb2.GetPluginCapabilitiesRequest, self._capabilities),
            "Probe": Method(csi_pb2.ProbeRequest, self._probe),
        }

    async def _info(self, request: csi_pb2.GetPluginInfoRequest) -> csi_pb2.GetPluginInfoResponse:
        return csi_pb2.GetPluginInfoResponse(name=CSI_DRIVER, vendor_version=vendor_version())

    async def _capabilities(
        self, request: csi_pb2.GetPluginCapabilitiesRequest
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        """Return what all services together can do: every instance of a version says the same, whichever it serves."""
        kind = csi_pb2.PluginCapability
        return csi_pb2.GetPluginCapabilitiesResponse(
            capabilities=[
                kind(service=kind.Service(type=kind.Service.CONTROLLER_SERVICE)),
                kind(volume_expansion=kind.VolumeExpansion(type=kind.VolumeExpansion.ONLINE)),
            ]
        )

    async def _probe(self, request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        if self._device and not os.access(self._device, os.R_OK | os.W_OK):
            raise WrongState(
                f"{self._device} cannot be used", hint="the node needs the fuse module: modprobe fuse"
            )
        return csi_pb2.ProbeResponse(ready=BoolValue(value=self._is_ready()))


def vendor_version() -> str:
    """Return the version of this installation; never empty, which CSI would not allow."""
    try:
        return metadata.version("sidemount")
    except metadata.PackageNotFoundError:
        return "unpackaged"
