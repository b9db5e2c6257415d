"""A pool whose filesystem is not mounted is no empty pool: nothing is said of it, made in its place, or taken for deleted."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csi.pool_identity import PoolIdentity
from csi.proto import csi_pb2
from sidemount.host.facts_snapshot import FactsSnapshot
from sidemount.model.errors import HostFailure, NotReady
from sidemount.model.facts import VolumeFacts
from sidemount.model.names import CSI_DRIVER
from sidemount.model.pool_layout import MARKER
from sidemount.model.provisioned import holds_volumes
from tests.csi.controlled import MIB, Controlled, capability
from tests.csi.plugin import Refused
from tests.host.mount_node import MountNode, eventually


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Return a directory for a pool."""
    (tmp_path / "pool").mkdir()
    return tmp_path / "pool"


def _names(pool: str) -> bool:
    return True


def test_a_new_pool_gets_an_id_that_every_controller_finds(pool: Path) -> None:
    PoolIdentity(str(pool)).check()
    text = (pool / MARKER).read_text()
    assert [path.name for path in pool.iterdir()] == [MARKER]
    other = PoolIdentity(str(pool), is_named=_names)
    other.check()
    other.check()
    assert (pool / MARKER).read_text() == text


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pool_that_was_there_is_not_made_anew(pool: Path, tmp_path: Path, restarts: bool) -> None:
    """Neither by the process that has seen it, nor by a later one that has the state directory."""
    state = str(tmp_path / "state")
    identity = PoolIdentity(str(pool), state)
    identity.check()
    text = (pool / MARKER).read_text()
    (pool / MARKER).unlink()
    if restarts:
        identity = PoolIdentity(str(pool), state)
    with pytest.raises(NotReady, match="is not there") as told:
        identity.check()
    assert state in str(told.value.hint)
    (pool / MARKER).write_text("ab12\n")
    with pytest.raises(NotReady, match="another pool"):
        identity.check()
    (pool / MARKER).write_text(text)
    identity.check()


def test_an_empty_directory_that_persistent_volumes_name_is_no_new_pool(pool: Path) -> None:
    with pytest.raises(NotReady, match="PersistentVolumes name it"):
        PoolIdentity(str(pool), is_named=_names).check()
    assert not any(pool.iterdir())
    (pool / "lost+found").mkdir()
    (pool / "volumes").mkdir()
    with pytest.raises(NotReady):
        PoolIdentity(str(pool), is_named=_names).check()
    # By hand, for a pool that is meant to be new.
    (pool / MARKER).write_text("new-1\n")
    PoolIdentity(str(pool), is_named=_names).check()


def test_a_pool_from_before_there_were_ids_gets_one(pool: Path) -> None:
    (pool / "volumes" / "v").mkdir(parents=True)
    PoolIdentity(str(pool), is_named=_names).check()
    assert (pool / MARKER).exists()


def test_of_two_that_find_it_new_one_gives_the_id(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def late(source: str, target: str) -> None:
        (pool / MARKER).write_text("first\n")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    identity = PoolIdentity(str(pool))
    identity.check()
    assert identity._id == "first"
    assert [path.name for path in pool.iterdir()] == [MARKER]


@pytest.mark.parametrize("text", ["", "\n", "a b", "x" * 65, "../x"])
def test_a_marker_that_holds_no_id_is_not_replaced(pool: Path, text: str) -> None:
    (pool / MARKER).write_text(text)
    with pytest.raises(HostFailure, match="holds no id"):
        PoolIdentity(str(pool)).check()
    assert (pool / MARKER).read_text() == text


def test_a_state_that_cannot_be_written_stops_nothing(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    PoolIdentity(str(pool), str(tmp_path / "state")).check()
    PoolIdentity(str(pool), str(tmp_path / "state")).check()


@pytest.mark.parametrize(
    ("driver", "source", "holds"),
    [
        (CSI_DRIVER, "dir:///srv/pool", True),
        (CSI_DRIVER, "dir:///srv/pool/", True),
        (CSI_DRIVER, "dir:///srv/pool2", False),
        (CSI_DRIVER, "dir:///srv/pool/volumes/x", False),
        ("other.example", "dir:///srv/pool", False),
    ],
)
def test_which_volumes_are_of_a_pool(driver: str, source: str, holds: bool) -> None:
    volume = VolumeFacts(name="pv", driver=driver, handle="h", attributes={"source": source})
    assert holds_volumes(FactsSnapshot(volumes={"pv": volume}), "/srv/pool") is holds


# A controller ----------------------------------------------------------------------------------------


@pytest.fixture
def mounted(node: MountNode) -> Iterator[Controlled]:
    """Return a controller that remembers, whose pool is a filesystem of its own."""
    controller = Controlled(node, flags=("--state-dir", str(node.work / "state")))
    (node.work / "disk").mkdir()
    node.run("mount", "--bind", node.work / "disk", controller.pool)
    try:
        yield controller.start()
    finally:
        controller.end()


def _calls(controller: Controlled) -> dict[str, Callable[[], object]]:
    def validate() -> object:
        request = csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id="v", volume_capabilities=[capability()])
        return controller.ask("ValidateVolumeCapabilities", request)

    return {
        "CreateVolume": lambda: controller.create("w"),
        "CreateVolume again": lambda: controller.create("v"),
        "CreateVolume restored": lambda: controller.restore("w", "s"),
        "DeleteVolume": lambda: controller.delete("v"),
        "DeleteVolume of nothing": lambda: controller.delete("nothing"),
        "ListVolumes": controller.volumes,
        "GetCapacity": lambda: controller.ask("GetCapacity", csi_pb2.GetCapacityRequest()),
        "ValidateVolumeCapabilities": validate,
        "ControllerExpandVolume": lambda: controller.expand("v", 2 * MIB),
        "ControllerGetVolume": lambda: controller.ask(
            "ControllerGetVolume", csi_pb2.ControllerGetVolumeRequest(volume_id="v")
        ),
        "CreateSnapshot": lambda: controller.cut("s2", "v"),
        "DeleteSnapshot": lambda: controller.ask(
            "DeleteSnapshot", csi_pb2.DeleteSnapshotRequest(snapshot_id="s")
        ),
        "ListSnapshots": lambda: controller.ask("ListSnapshots", csi_pb2.ListSnapshotsRequest()),
        "GetSnapshot": lambda: controller.ask("GetSnapshot", csi_pb2.GetSnapshotRequest(snapshot_id="s")),
    }


@pytest.mark.root
@pytest.mark.fuse
@pytest.mark.parametrize("restarts", [False, True])
def test_every_call_is_refused_until_the_pool_is_mounted_again(mounted: Controlled, restarts: bool) -> None:
    """Nothing is made in the bare directory, and nothing that still exists is said to be gone."""
    node, disk = mounted.node, mounted.node.work / "disk"
    mounted.create("v")
    mounted.cut("s", "v")
    eventually(lambda: not node.run("umount", mounted.pool, check=False).returncode, what="unmounted")
    if restarts:
        mounted.stop()
        mounted.start()
    for name, call in _calls(mounted).items():
        with pytest.raises(Refused, match=r"pool .* is not there") as refused:
            call()
        assert refused.value.code.name == "UNAVAILABLE", name
    assert not any(mounted.pool.iterdir())

    node.run("mount", "-t", "tmpfs", "another", mounted.pool)
    node.run("sh", "-c", f"echo another > {mounted.pool}/{MARKER}")
    for name, call in _calls(mounted).items():
        with pytest.raises(Refused, match="another pool") as refused:
            call()
        assert refused.value.code.name == "UNAVAILABLE", name
    node.run("umount", mounted.pool)

    node.run("mount", "--bind", disk, mounted.pool)
    assert [entry.volume.volume_id for entry in mounted.volumes().entries] == ["v"]
    assert mounted.restore("w", "s").volume_id == "w"
    for volume in ("v", "w"):
        mounted.delete(volume)
    mounted.ask("DeleteSnapshot", csi_pb2.DeleteSnapshotRequest(snapshot_id="s"))
    assert [list((disk / place).iterdir()) for place in ("volumes", "snapshots")] == [[], []]
