"""A state directory that is lost while daemons and mounts live: whatever was there is found, ended, and in nobody's way."""

import shutil
import sys
from collections.abc import Callable

import pytest

from tests.csi.plugin import Plugin
from tests.host.mount_node import MountNode

pytestmark = [pytest.mark.root, pytest.mark.fuse]


def _emptied(plugin: Plugin) -> None:
    shutil.rmtree(plugin.state)


def _emptied_of_what_it_holds(plugin: Plugin) -> None:
    for path in plugin.seen_state.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _elsewhere(plugin: Plugin) -> None:
    plugin.state.rename(plugin.state.with_name("lost"))


def _unmounted_too(plugin: Plugin) -> None:
    _emptied(plugin)
    plugin.node.run("umount", "-l", plugin.target("t"))


@pytest.mark.parametrize("lose", [_emptied, _elsewhere, _unmounted_too])
def test_a_target_is_usable_by_another_volume_and_shows_no_other(
    plugin: Plugin, lose: Callable[[Plugin], None]
) -> None:
    """S0-20, S3-15: the old daemon lives and would come to the new keeper in the place of the right one."""
    (plugin.store() / "whose").write_text("the old one's")
    (plugin.store("other") / "whose").write_text("the new one's")
    plugin.publish()
    old = set(plugin.daemons())
    assert old
    plugin.kill()
    lose(plugin)
    plugin.start()
    plugin.publish("t", "other")
    assert (plugin.seen() / "whose").read_text() == "the new one's"
    assert not old & set(plugin.daemons())
    assert len(plugin.mount_ids()) == 1
    plugin.unpublish("t", "other")
    assert plugin.leftovers() == []


def test_an_unpublish_ends_what_no_record_names(plugin: Plugin) -> None:
    """S0-21."""
    plugin.publish()
    (plugin.seen() / "file").write_text("written")
    plugin.kill()
    _emptied(plugin)
    plugin.start()
    plugin.unpublish()
    assert (plugin.store() / "file").read_text() == "written"
    assert plugin.leftovers() == []


def test_what_is_lost_while_the_plugin_runs_keeps_nothing_from_being_published_and_unpublished(
    plugin: Plugin,
) -> None:
    plugin.publish()
    _emptied_of_what_it_holds(plugin)
    (plugin.seen() / "file").write_text("written")
    plugin.publish("other", "other")
    (plugin.seen("other") / "file").write_text("written")
    plugin.unpublish()
    plugin.unpublish("other", "other")
    assert (plugin.store() / "file").read_text() == "written"
    assert plugin.leftovers() == []


def test_the_daemon_of_a_like_target_of_another_node_is_left_alone(node: MountNode, plugin: Plugin) -> None:
    """Two nodes on one machine, each with its own view of the same paths."""
    targets = node.work / "targets"
    other_node = MountNode(node.work)
    try:
        plugin.publish()
        serving = set(plugin.daemons())
        other_node.run("mount", "-t", "tmpfs", "none", targets)
        other_node.run("mount", "-t", "tmpfs", "none", node.work / "socket")
        (node.work / "state").mkdir(exist_ok=True)
        other_node.run("mount", "-t", "tmpfs", "-o", "mode=711", "none", node.work / "state")
        found = other_node.run(
            sys.executable,
            "-c",
            "import sys; from csi.daemon_places import DaemonPlaces; "
            f"print(DaemonPlaces('{node.work}/state').strangers(sys.argv[1]))",
            next(iter((plugin.state / "run").iterdir())).name,
        )
        assert found.stdout.strip() == "[]"
        assert serving
        (plugin.seen() / "file").write_text("served")
    finally:
        other_node.close()
    plugin.unpublish()
    assert plugin.leftovers() == []
