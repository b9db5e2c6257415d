"""A running controller, alone or with a node on one socket, and what a caller asks of it."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csi.proto import csi_pb2
from tests.csi.plugin import MULTI_WRITER, Plugin
from tests.host.mount_node import eventually

MIB = 1 << 20
POOL_CLASS = """
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {{name: {name}}}
spec:
  deliveries: [csi]
  sources: ["dir://{pool}"]
  namespaces: {{}}
  filesystem: directory
  provisions: true
  uid: 0
  capabilities: [CHOWN, DAC_OVERRIDE, FOWNER, FSETID]
  abilities: {{descriptor: true, takeover: true, readOnly: enforced}}
  options:
    attributeTimeout: {{type: duration, max: 1h, default: 0s}}
  resources: {{limits: {{memory: 256Mi}}}}
"""


@dataclass
class Controlled(Plugin):
    """A plugin with a pool. `role` is `controller` or `all`."""

    role: str = "controller"

    def __post_init__(self) -> None:
        Plugin.__post_init__(self)
        self.pool.mkdir(exist_ok=True)
        self.offer("pooled", self.pool)

    @property
    def pool(self) -> Path:
        """The pool, which is there for the test's own process as well."""
        return self.node.work / "pool"

    @property
    def pool_name(self) -> str:
        """The pool, as the controller is told of it."""
        return str(self.pool)

    def offer(self, name: str, pool: Path) -> None:
        """Add a class that provisions from a pool."""
        (self.node.work / "facts" / f"{name}.yaml").write_text(POOL_CLASS.format(name=name, pool=pool))

    def start(self, entry: str = "csi") -> "Controlled":
        """Start it, and wait until it is ready."""
        node_flags = (
            *("--node-id", "n1", "--launcher", "process", "--state-dir", str(self.state)),
            *("--target-root", str(self.node.work / "targets")),
        )
        self.process = self.node.start(
            [
                *(*self.within, sys.executable, "-m", entry, self.role),
                *("--endpoint", f"unix://{self.socket}", "--facts", str(self.node.work / "facts")),
                *(node_flags if self.role == "all" else ()),
                *("--pool", self.pool_name, *self.flags),
            ],
            log=self.log,
            environment={"PYTHONFAULTHANDLER": "1", **self.environment},
        )
        eventually(self._is_ready, what=f"ready\n{self.log.read_text()}", timeout_s=30)
        return self

    # Requests ----------------------------------------------------------------------------------------

    def create_request(
        self, name: str, size: int = MIB, *, limit: int = 0, mode: Any = MULTI_WRITER, **parameters: Any
    ) -> csi_pb2.CreateVolumeRequest:
        """Return a request for a volume."""
        return csi_pb2.CreateVolumeRequest(
            name=name,
            capacity_range=csi_pb2.CapacityRange(required_bytes=size, limit_bytes=limit),
            volume_capabilities=[capability(mode)],
            parameters=parameters,
        )

    def create(self, name: str, size: int = MIB, **given: Any) -> csi_pb2.Volume:
        """Create a volume."""
        return self._volume(self.create_request(name, size, **given))

    def restore(self, name: str, snapshot: str, size: int = MIB, **given: Any) -> csi_pb2.Volume:
        """Create a volume from a snapshot."""
        request = self.create_request(name, size, **given)
        request.volume_content_source.snapshot.snapshot_id = snapshot
        return self._volume(request)

    def clone(self, name: str, volume: str, size: int = MIB, **given: Any) -> csi_pb2.Volume:
        """Create a volume from a volume."""
        request = self.create_request(name, size, **given)
        request.volume_content_source.volume.volume_id = volume
        return self._volume(request)

    def _volume(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.Volume:
        answer: csi_pb2.CreateVolumeResponse = self.ask("CreateVolume", request)
        return answer.volume

    def delete(self, volume: str) -> None:
        """Delete a volume."""
        self.ask("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id=volume))

    def expand(self, volume: str, size: int, limit: int = 0) -> csi_pb2.ControllerExpandVolumeResponse:
        """Expand a volume."""
        capacity = csi_pb2.CapacityRange(required_bytes=size, limit_bytes=limit)
        request = csi_pb2.ControllerExpandVolumeRequest(volume_id=volume, capacity_range=capacity)
        answer: csi_pb2.ControllerExpandVolumeResponse = self.ask("ControllerExpandVolume", request)
        return answer

    def cut(self, name: str, volume: str) -> csi_pb2.Snapshot:
        """Create a snapshot."""
        request = csi_pb2.CreateSnapshotRequest(name=name, source_volume_id=volume)
        answer: csi_pb2.CreateSnapshotResponse = self.ask("CreateSnapshot", request)
        return answer.snapshot

    def delete_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot."""
        self.ask("DeleteSnapshot", csi_pb2.DeleteSnapshotRequest(snapshot_id=snapshot))

    def volumes(self, **page: Any) -> csi_pb2.ListVolumesResponse:
        """List volumes."""
        answer: csi_pb2.ListVolumesResponse = self.ask("ListVolumes", csi_pb2.ListVolumesRequest(**page))
        return answer

    def snapshots(self, **page: Any) -> csi_pb2.ListSnapshotsResponse:
        """List snapshots."""
        answer: csi_pb2.ListSnapshotsResponse = self.ask(
            "ListSnapshots", csi_pb2.ListSnapshotsRequest(**page)
        )
        return answer

    def ask(self, method: str, request: Any) -> Any:
        """Call an RPC of the controller service. Raises Refused."""
        return self.call("Controller", method, request)

    def publish_provisioned(self, volume: csi_pb2.Volume, target: str = "t") -> None:
        """Publish what was created, as its publishers are told."""
        self.call("Node", "NodePublishVolume", self.provisioned_request(volume, target))

    def provisioned_request(self, volume: csi_pb2.Volume, target: str) -> csi_pb2.NodePublishVolumeRequest:
        """Return a request to show what was created."""
        return csi_pb2.NodePublishVolumeRequest(
            volume_id=volume.volume_id,
            target_path=str(self.target(target)),
            volume_capability=capability(MULTI_WRITER),
            volume_context=volume.volume_context,
        )

    # Looking -----------------------------------------------------------------------------------------

    def data(self, volume: str) -> Path:
        """Return where a volume's files lie."""
        return self.pool / "volumes" / volume / "data"

    def in_pool(self) -> list[str]:
        """Return everything in the pool but what is there for ever; what is on its way out is waited for."""
        eventually(lambda: not self.on_the_way(), what="nothing unfinished", timeout_s=20)
        kinds = [self.pool / kind for kind in ("volumes", "snapshots")]
        return sorted(f"{kind.name}/{name}" for kind in kinds if kind.exists() for name in os.listdir(kind))

    def on_the_way(self) -> list[str]:
        """Return what is unfinished."""
        place = self.pool / ".unfinished"
        return sorted(set(os.listdir(place)) - {"locks"}) if place.exists() else []


def capability(mode: Any = MULTI_WRITER) -> csi_pb2.VolumeCapability:
    """Return a capability to mount."""
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(),
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode),
    )
