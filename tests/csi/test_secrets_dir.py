"""Credentials of the node for callers that send none, with both launchers: S0-22, S4-08, and what a direct caller never sends."""

import json
from collections.abc import Iterator

import pytest
from grpc import StatusCode

from csi.records import decode_record
from tests.csi.kubelet_secret import write_secret
from tests.csi.plugin import Plugin, Refused
from tests.csi.secret_world import POD, PROCESS, SecretWorld, secret_world
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]


@pytest.fixture(params=[PROCESS, POD])
def world(node: MountNode, request: pytest.FixtureRequest) -> Iterator[SecretWorld]:
    """Return a node whose plugin runs."""
    with secret_world(node, request.param) as world:
        world.plugin.start()
        yield world


def test_a_call_without_secrets_is_given_the_node_s_and_changes_of_them_without_a_new_mount(
    world: SecretWorld,
) -> None:
    """Like a direct caller: no secrets in any call. Rotated by kubelet's swap, seen by the look and by a repeated publish."""
    plugin, secret = world.plugin, world.directory / "secretive"
    write_secret(secret, {"token": "first", "other": "unwanted"})
    plugin.publish(**{"class": "secretive"})
    (file,) = world.given()
    status = file.stat()
    assert (file.name, status.st_mode & 0o777, status.st_uid) == ("token", 0o400, 65532)
    assert world.texts() == ["first"]
    before, serving = plugin.mount_ids(), set(plugin.daemons())
    write_secret(secret, {"token": "second"})
    eventually(lambda: world.texts() == ["second"], what="the look sees it", timeout_s=30)
    write_secret(secret, {"token": "third"})
    plugin.publish(**{"class": "secretive"})
    assert world.texts() == ["third"]
    assert plugin.mount_ids() == before
    assert serving <= set(plugin.daemons())

    plugin.kill()
    write_secret(secret, {"token": "fourth"})
    plugin.start()
    eventually(lambda: world.texts() == ["fourth"], what="seen by the next plugin", timeout_s=30)
    # What is taken away is told of, once, and the daemon keeps what it has.
    write_secret(secret, {"other": "unwanted"})
    eventually(lambda: plugin.events("credentials_unread"), what="told", timeout_s=30)
    plugin.publish(**{"class": "secretive"})
    assert len(plugin.events("credentials_unread")) == 1
    assert "secretive/token does not exist" in plugin.events("credentials_unread")[0]["fault"]
    assert world.texts() == ["fourth"]
    assert plugin.mount_ids() == before

    plugin.unpublish()
    world.nothing_is_left()


def test_secrets_of_a_call_win_and_stay(world: SecretWorld) -> None:
    """Also over those of the node that the daemon had before; files that change later are for the others only."""
    plugin, secret = world.plugin, world.directory / "secretive"
    write_secret(secret, {"token": "of-the-node"})
    request = plugin.publish_request("a", **{"class": "secretive"})
    request.secrets["token"] = "of-the-call"
    plugin.call("Node", "NodePublishVolume", request)
    assert world.texts() == ["of-the-call"]
    plugin.publish("b", **{"class": "secretive"})
    assert sorted(world.texts()) == ["of-the-call", "of-the-node"]
    later = plugin.publish_request("c", **{"class": "secretive"})
    plugin.call("Node", "NodePublishVolume", later)
    later.secrets["token"] = "of-a-later-call"
    plugin.call("Node", "NodePublishVolume", later)
    write_secret(secret, {"token": "rotated"})
    eventually(
        lambda: sorted(world.texts()) == ["of-a-later-call", "of-the-call", "rotated"],
        what="given to who has them of the node",
        timeout_s=30,
    )
    plugin.publish("a", **{"class": "secretive"})
    plugin.publish("c", **{"class": "secretive"})
    assert sorted(world.texts()) == ["of-a-later-call", "of-the-call", "rotated"]
    for target in "abc":
        plugin.unpublish(target)
    world.nothing_is_left()


def test_what_is_missing_is_told_and_nothing_is_left(world: SecretWorld) -> None:
    plugin = world.plugin
    assert 'has no directory "secretive"' in _refused(plugin, "secretive")
    (world.directory / "secretive").mkdir()
    assert "/secretive/token does not exist" in _refused(plugin, "secretive")
    (world.directory / "secretive" / "token").symlink_to("/etc/passwd")
    assert "/secretive/token leads out of it" in _refused(plugin, "secretive")
    # Who need not have any goes without; one that was begun has to be whole.
    plugin.publish(**{"class": "optional"})
    assert world.given() == []
    plugin.unpublish()
    (world.directory / "optional").mkdir()
    assert "/optional/token does not exist" in _refused(plugin, "optional")
    # What is wrong in itself is told first, whatever lies there.
    with pytest.raises(Refused) as refused:
        plugin.publish(**{"class": "secretive", "bogus": "1"})
    assert refused.value.code is StatusCode.INVALID_ARGUMENT
    world.nothing_is_left()


def test_a_record_of_an_earlier_release_is_of_no_files(world: SecretWorld) -> None:
    plugin = world.plugin
    write_secret(world.directory / "secretive", {"token": "first"})
    plugin.publish(**{"class": "secretive"})
    (path,) = plugin.seen_state.glob("targets/*.json")
    raw = json.loads(path.read_text())
    assert raw.pop("fileKeys") == ["token"]
    assert decode_record(json.dumps(raw)).file_keys == ()
    plugin.unpublish()


def _refused(plugin: Plugin, driver_class: str) -> str:
    with pytest.raises(Refused) as refused:
        plugin.publish(**{"class": driver_class})
    assert refused.value.code is StatusCode.FAILED_PRECONDITION
    assert "--secrets-dir" in refused.value.message
    assert "vol" in refused.value.message
    return refused.value.message
