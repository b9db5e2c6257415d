"""A caller that is no Kubernetes, replayed: what it sends and what it never sends, over one connection for its whole life."""

import contextlib
import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi.proto import csi_pb2
from tests.csi.controlled import MIB, Controlled
from tests.csi.plugin import MULTI_WRITER, SINGLE_WRITER
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]

_READER = csi_pb2.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY
_TARGET_BYTES = 137
_UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


class Caller:
    """Multiplexes short-lived actors. It makes targets and staging directories itself, sends no flags, secrets, filesystem or pod."""

    def __init__(self, plugin: Controlled, channel: grpc.Channel) -> None:
        self.plugin = plugin
        self._channel = channel
        self._actors = plugin.node.work / "targets" / "actors"
        self._staging = plugin.node.work / "staging"

    def call(self, service: str, method: str, request: Any) -> Any:
        """Call over the one connection, without a deadline of its own; wait for a plugin that is away. Raises RpcError."""
        answer = getattr(csi_pb2, f"{method}Response")
        call = self._channel.unary_unary(
            f"/csi.v1.{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=60, wait_for_ready=True)

    def target(self, actor: str, volume: str) -> Path:
        """Return where an actor has a volume: a path of 137 bytes."""
        parent = self._actors / actor / "volumes"
        return parent / volume.ljust(_TARGET_BYTES - len(str(parent)) - 1, "x")

    def create(self, name: str, size: int, snapshot: str = "") -> csi_pb2.Volume:
        """Create a volume: its required size, one capability, the StorageClass's parameters."""
        request = csi_pb2.CreateVolumeRequest(
            name=name,
            capacity_range=csi_pb2.CapacityRange(required_bytes=size),
            volume_capabilities=[_capability(SINGLE_WRITER)],
            parameters={"class": "pooled", "source": f"dir://{self.plugin.pool}"},
        )
        if snapshot:
            request.volume_content_source.snapshot.snapshot_id = snapshot
        answer: csi_pb2.CreateVolumeResponse = self.call("Controller", "CreateVolume", request)
        return answer.volume

    def resume(
        self, actor: str, volume: csi_pb2.Volume, name: str = "workspace", mode: int = SINGLE_WRITER
    ) -> Path:
        """Attach, stage, publish, as for every resume; return where the volume is seen."""
        capability, target = _capability(mode), self.target(actor, name)
        with _tolerating(_UNIMPLEMENTED):
            attach = csi_pb2.ControllerPublishVolumeRequest(
                volume_id=volume.volume_id, node_id="n1", volume_capability=capability
            )
            self.call("Controller", "ControllerPublishVolume", attach)
        target.mkdir(mode=0o750, parents=True, exist_ok=True)
        assert len(os.fsencode(target)) == _TARGET_BYTES
        staging = self._staging_of(volume, target)
        staging.mkdir(mode=0o750, parents=True, exist_ok=True)
        stage = csi_pb2.NodeStageVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(staging),
            volume_capability=capability,
            volume_context=volume.volume_context,
        )
        with pytest.raises(grpc.RpcError) as refused:
            self.call("Node", "NodeStageVolume", stage)
        assert refused.value.code() is _UNIMPLEMENTED  # it warns, and leaves the staging path out
        publish = csi_pb2.NodePublishVolumeRequest(
            volume_id=volume.volume_id,
            target_path=str(target),
            volume_capability=capability,
            volume_context=volume.volume_context,
            readonly=mode == _READER,
        )
        self.call("Node", "NodePublishVolume", publish)
        return Path(f"/proc/{self.plugin.node.pid}/root{target}")

    def pause(self, actor: str, volume: csi_pb2.Volume, name: str = "workspace") -> None:
        """Unpublish, unstage, detach. Any error but those it tolerates would crash the actor."""
        target = self.target(actor, name)
        unpublish = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume.volume_id, target_path=str(target))
        with _tolerating(grpc.StatusCode.NOT_FOUND):
            self.call("Node", "NodeUnpublishVolume", unpublish)
        staging = self._staging_of(volume, target)
        with _tolerating(_UNIMPLEMENTED):
            unstage = csi_pb2.NodeUnstageVolumeRequest(
                volume_id=volume.volume_id, staging_target_path=str(staging)
            )
            self.call("Node", "NodeUnstageVolume", unstage)
        with contextlib.suppress(FileNotFoundError):
            staging.rmdir()
        with _tolerating(_UNIMPLEMENTED):
            detach = csi_pb2.ControllerUnpublishVolumeRequest(volume_id=volume.volume_id, node_id="n1")
            self.call("Controller", "ControllerUnpublishVolume", detach)
        assert not target.exists()
        assert target.parent.is_dir()

    def _staging_of(self, volume: csi_pb2.Volume, target: Path) -> Path:
        """Return the staging path of one target: the id is a part of it, so it has to be a directory's name."""
        assert "/" not in volume.volume_id
        return self._staging / volume.volume_id / hashlib.sha256(os.fsencode(target)).hexdigest()[:16]


@pytest.fixture
def caller(node: MountNode) -> Iterator[Caller]:
    """Return a caller with a connection that is made once."""
    plugin = Controlled(node, role="all")
    reconnecting = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)]
    with grpc.insecure_channel(f"unix:{plugin.socket}", options=reconnecting) as channel:
        try:
            plugin.start()
            yield Caller(plugin, channel)
        finally:
            plugin.end()


@contextlib.contextmanager
def _tolerating(code: grpc.StatusCode) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        if error.code() is not code:
            raise


def _capability(mode: int) -> csi_pb2.VolumeCapability:
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(),
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode),  # type: ignore[arg-type]  # a number of the enum's
    )


@pytest.mark.parametrize("length", [51, 110])
def test_S0_04_S0_05_S0_06_an_actor_is_paused_and_resumed(caller: Caller, length: int) -> None:
    """S0-07, S0-21, S2-19: over one connection, which survives the plugin's death; nothing names the actor afterwards (S2-42)."""
    plugin, actor = caller.plugin, str(uuid.UUID(int=7))
    info = caller.call("Identity", "GetPluginInfo", csi_pb2.GetPluginInfoRequest())
    assert info.name == "csi.sidemount.io"
    name = f"substrate-{actor}-".ljust(length, "v")
    volume = caller.create(name, 64 * MIB)
    assert caller.create(name, 64 * MIB) == volume
    for number in range(3):
        seen = caller.resume(actor, volume)
        assert [path.name for path in sorted(seen.iterdir())] == [f"file-{n}" for n in range(number)]
        (seen / f"file-{number}").write_bytes(os.urandom(100_000))
        plugin.kill()
        plugin.start()
        assert caller.resume(actor, volume) == seen, "a resume that failed elsewhere is simply done again"
        assert len(plugin.node.fuse_mounts()) == 1
        caller.pause(actor, volume)
        caller.pause(actor, volume)
        assert not plugin.node.fuse_mounts()
        assert plugin.daemons() == []
        table = Path(f"/proc/{plugin.node.pid}/mountinfo").read_text()
        assert actor not in table
        assert not [path for path in plugin.seen_state.rglob("*") if path.is_file() and _names(path, actor)]
    caller.call("Controller", "DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id=volume.volume_id))
    eventually(lambda: plugin.in_pool() == [], what="its files are gone")


def test_a_snapshot_is_taken_read_and_resumed_from(caller: Caller) -> None:
    """S4-40: readiness by ListSnapshots alone; a reply without the source would be a loss of data that nobody sees."""
    actor, other = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
    volume = caller.create(f"substrate-{actor}-workspace", 64 * MIB)
    seen = caller.resume(actor, volume)
    (seen / "file").write_text("at the cut")
    request = csi_pb2.CreateSnapshotRequest(name=f"substrate-{actor}-cut", source_volume_id=volume.volume_id)
    snapshot = caller.call("Controller", "CreateSnapshot", request).snapshot
    (seen / "file").write_text("later")
    listed = caller.call(
        "Controller", "ListSnapshots", csi_pb2.ListSnapshotsRequest(snapshot_id=snapshot.snapshot_id)
    )
    assert [entry.snapshot.ready_to_use for entry in listed.entries] == [True]
    restored = caller.create(f"substrate-{other}-workspace", 64 * MIB, snapshot.snapshot_id)
    assert restored.content_source.snapshot.snapshot_id == snapshot.snapshot_id
    assert (caller.resume(other, restored) / "file").read_text() == "at the cut"
    caller.pause(other, restored)
    caller.pause(actor, volume)
    for _ in range(2):
        caller.call(
            "Controller",
            "DeleteSnapshot",
            csi_pb2.DeleteSnapshotRequest(snapshot_id=snapshot.snapshot_id),
        )
        for gone in (restored, volume):
            caller.call("Controller", "DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id=gone.volume_id))
    eventually(lambda: caller.plugin.in_pool() == [], what="nothing is left")


def test_S2_18_S2_20_actors_share_a_volume_each_by_itself(caller: Caller) -> None:
    """Each target is staged by itself; readers get EROFS, and nobody notices that another one leaves."""
    volume = caller.create("shared", 64 * MIB)
    writer, reader, third = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
    written = caller.resume(writer, volume, mode=MULTI_WRITER)
    read = caller.resume(reader, volume, mode=_READER)
    also = caller.resume(third, volume, mode=MULTI_WRITER)
    (written / "file").write_text("seen by all")
    assert (read / "file").read_text() == (also / "file").read_text() == "seen by all"
    with pytest.raises(OSError, match="Read-only") as refused:
        (read / "more").touch()
    assert refused.value.errno == errno.EROFS
    with (also / "open").open("w") as file:
        file.write("before")
        file.flush()
        caller.pause(writer, volume)
        file.write(" and after")
    assert (read / "open").read_text() == "before and after"
    for actor in (reader, third):
        caller.pause(actor, volume)
    assert caller.plugin.daemons() == []


def test_a_retry_with_another_id_at_the_same_target_is_refused(caller: Caller) -> None:
    """Another such caller never unpublishes and invents an id for each try: nothing is stacked."""
    actor = str(uuid.UUID(int=4))
    volume = caller.create("one", 64 * MIB)
    seen = caller.resume(actor, volume)
    (seen / "file").write_text("there")
    invented = csi_pb2.Volume(
        volume_id=str(uuid.UUID(int=5)),
        volume_context={"class": "directory", "source": f"dir://{caller.plugin.store()}"},
    )
    with pytest.raises(grpc.RpcError) as refused:
        caller.resume(actor, invented)
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert (seen / "file").read_text() == "there"
    assert len(caller.plugin.node.fuse_mounts()) == 1
    caller.pause(actor, volume)


def _names(path: Path, text: str) -> bool:
    return text.encode() in path.read_bytes()
