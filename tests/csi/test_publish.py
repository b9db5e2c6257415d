"""Publish and unpublish over the socket, with the process launcher."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc import StatusCode

from csi.proto import csi_pb2
from tests.csi.plugin import Plugin, Refused

pytestmark = [pytest.mark.root, pytest.mark.fuse]


@pytest.fixture
def plugin(shared: Plugin) -> Iterator[Plugin]:
    """Return the module's plugin with an empty store and no target."""
    yield shared
    for place in ("store", "targets"):
        for path in (shared.node.work / place).iterdir():
            shutil.rmtree(path)


def test_a_published_volume_is_live_and_an_unpublished_one_leaves_nothing(plugin: Plugin) -> None:
    """S0-07, S0-20, S4-28."""
    (plugin.store() / "hello").write_text("there")
    plugin.publish()
    assert (plugin.seen() / "hello").read_text() == "there"
    (plugin.seen() / "new").write_text("written")
    before = plugin.first_daemon(), plugin.mount_ids()
    plugin.publish()
    assert (plugin.first_daemon(), plugin.mount_ids()) == before
    plugin.unpublish()
    plugin.unpublish()
    assert (plugin.store() / "new").read_text() == "written"
    assert plugin.leftovers() == []


@pytest.mark.parametrize("mode", [1, 4, 5, 7], ids=lambda number: f"mode {number}")
def test_a_second_target_of_a_volume(plugin: Plugin, mode: int) -> None:
    """S2-20 and the table of second publishes: exclusive modes have one target of a node, the others any number."""
    plugin.publish("a", mode=mode)
    if mode == 1:
        with pytest.raises(Refused) as refused:
            plugin.publish("b", mode=mode)
        assert refused.value.code is StatusCode.FAILED_PRECONDITION
        assert "vol" in refused.value.message
    else:
        plugin.publish("b", mode=mode)
        (plugin.seen("a") / "file").write_text("from a")
        assert (plugin.seen("b") / "file").read_text() == "from a"
        plugin.unpublish("b")
        (plugin.seen("a") / "file").write_text("still")
    plugin.unpublish("a")
    assert plugin.leftovers() == []


def test_a_direct_caller_needs_nothing_of_kubernetes(plugin: Plugin) -> None:
    """S0-04, S0-06, S2-19: an id of 110 characters, a long target made beforehand as 0750, no flags, no secrets, no pod info, staging skipped."""
    volume = f"substrate-{'a' * 36}-{'v' * 63}"
    assert len(volume) == 110
    target = plugin.target("actors") / ("u" * 60) / "volumes" / "name"
    target.mkdir(parents=True, mode=0o750)
    capability = csi_pb2.VolumeCapability(mount={}, access_mode={"mode": 1})
    context = {"class": "directory", "source": f"dir://{plugin.store()}"}
    staging = str(plugin.node.work / "staging" / volume)
    with pytest.raises(Refused) as refused:
        plugin.call(
            "Node",
            "NodeStageVolume",
            csi_pb2.NodeStageVolumeRequest(
                volume_id=volume,
                staging_target_path=staging,
                volume_capability=capability,
                volume_context=context,
            ),
        )
    assert refused.value.code is StatusCode.UNIMPLEMENTED
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id=volume, target_path=str(target), volume_capability=capability, volume_context=context
    )
    plugin.call("Node", "NodePublishVolume", request)
    (plugin.store() / "x").write_text("y")
    assert Path(f"/proc/{plugin.node.pid}/root{target}/x").read_text() == "y"
    gone = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume, target_path=str(target))
    plugin.call("Node", "NodeUnpublishVolume", gone)
    assert not target.exists()
    assert target.parent.exists()
    assert not plugin.node.fuse_mounts()
    assert plugin.daemons() == []


@pytest.mark.parametrize("how", ["readonly", "mode", "flag", "context"])
def test_read_only_is_read_only_for_root(plugin: Plugin, how: str) -> None:
    """S2-18, S2-27."""
    (plugin.store() / "file").write_text("data")
    request = plugin.publish_request(mode=3 if how == "mode" else 5, readonly=how == "readonly")
    if how == "flag":
        request.volume_capability.mount.mount_flags.append("ro")
    if how == "context":
        request.volume_context["readOnly"] = "true"
    plugin.call("Node", "NodePublishVolume", request)
    with pytest.raises(OSError, match="Read-only file system"):
        (plugin.seen() / "new").write_text("")
    assert (plugin.seen() / "file").read_text() == "data"
    (mount,) = plugin.node.fuse_mounts()
    assert {"ro", "nosuid", "nodev"} <= set(mount.options)
    plugin.unpublish()
    assert plugin.leftovers() == []


@pytest.mark.parametrize(
    ("sub_path", "told"),
    [("missing", "does not exist"), ("link", "crosses a symbolic link"), ("file", "is not a directory")],
)
def test_a_sub_path_that_is_no_directory_fails_the_publish_and_leaves_nothing(
    plugin: Plugin, sub_path: str, told: str
) -> None:
    """S2-23, S2-25, S0-20: refused at once with the reason, nothing made in the store, nothing left on the node."""
    store = plugin.store()
    (store / "real").mkdir()
    (store / "link").symlink_to("real")
    (store / "file").write_text("")
    before = sorted(os.listdir(store))
    with pytest.raises(Refused, match=told) as refused:
        plugin.publish(subPath=sub_path)
    assert refused.value.code is StatusCode.FAILED_PRECONDITION
    assert plugin.leftovers() == []
    assert sorted(os.listdir(store)) == before
    plugin.publish(subPath="real")
    (plugin.seen() / "inside").write_text("")
    assert (store / "real" / "inside").exists()
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_what_a_failed_publish_found_stays_as_it_was(plugin: Plugin) -> None:
    target = plugin.target("t")
    target.mkdir(mode=0o700)
    with pytest.raises(Refused):
        plugin.publish(subPath="missing")
    assert target.is_dir()
    assert target.stat().st_mode & 0o777 == 0o700
    (target / "theirs").write_text("kept")
    with pytest.raises(Refused, match="is not empty") as refused:
        plugin.publish()
    assert refused.value.code is StatusCode.FAILED_PRECONDITION
    assert (target / "theirs").read_text() == "kept"


def test_the_node_s_answers_about_itself(plugin: Plugin) -> None:
    info = plugin.call("Node", "NodeGetInfo", csi_pb2.NodeGetInfoRequest())
    assert (info.node_id, info.max_volumes_per_node, info.HasField("accessible_topology")) == ("n1", 0, False)
    answer = plugin.call("Node", "NodeGetCapabilities", csi_pb2.NodeGetCapabilitiesRequest())
    assert [capability.rpc.type for capability in answer.capabilities] == [2, 4, 5]
    about = plugin.call("Identity", "GetPluginInfo", csi_pb2.GetPluginInfoRequest())
    assert about.name == "csi.sidemount.io"
    assert about.vendor_version
