"""A node that has run out of something: what is published stays, and an unpublish needs nothing that is scarce."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc import StatusCode

from tests.csi.plugin import Plugin, Refused
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]


@pytest.fixture
def cramped(node: MountNode) -> Iterator[Plugin]:
    """Return a plugin that runs, with a state directory of 2 MiB, and few descriptors unless it asks for more."""
    plugin = Plugin(node, within=("prlimit", "--nofile=40:4096", "--"))
    plugin.state.mkdir()
    node.run("mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "state", plugin.state)
    try:
        yield plugin.start()
    finally:
        plugin.end()


def test_with_a_full_state_directory_volumes_are_unpublished_and_none_is_half_published(
    cramped: Plugin,
) -> None:
    """S0-21: a full disk of the node keeps no pod from ending."""
    for target in ("t1", "t2"):
        cramped.publish(target)
    filler = cramped.seen_state / "filler"
    _fill(filler)
    cramped.publish("t1")  # nothing is to be done
    with pytest.raises(Refused) as refused:
        cramped.publish("t3")
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert not cramped.target("t3").exists()
    (cramped.seen("t1") / "file").write_text("still served")
    cramped.unpublish("t1")
    _fill(filler)
    cramped.kill()
    cramped.start()
    cramped.unpublish("t2")
    filler.unlink()
    assert cramped.leftovers() == []


def test_more_volumes_than_a_shell_s_limit_of_descriptors_has_room_for(cramped: Plugin) -> None:
    """Each takes about eight of the keeper's."""
    for number in range(8):
        cramped.publish(f"t{number}")
    for number in range(8):
        cramped.unpublish(f"t{number}")
    assert cramped.leftovers() == []


@pytest.mark.slow  # the keeper's patience
def test_a_keeper_without_descriptors_lets_its_volumes_go_when_it_has_some_again(plugin: Plugin) -> None:
    plugin.publish()
    keeper = plugin.keeper()
    before = resource.prlimit(keeper, resource.RLIMIT_NOFILE)
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        with pytest.raises(Refused):
            plugin.unpublish()
    finally:
        resource.prlimit(keeper, resource.RLIMIT_NOFILE, before)
    plugin.unpublish()
    assert plugin.leftovers() == []
    plugin.publish()
    plugin.unpublish()
    eventually(lambda: plugin.leftovers() == [], what="nothing left")
    assert plugin.keeper() == keeper


def _fill(filler: Path) -> None:
    try:
        with open(filler, "ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
    except OSError:
        pass
