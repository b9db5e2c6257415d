"""A plugin that is started with another launcher than what is published was: it says so, and touches nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from csi.pod_launch import PodLaunch, encode_pod_launch
from tests.csi.plugin import Plugin

pytestmark = [pytest.mark.root, pytest.mark.fuse]


def _refuses(plugin: Plugin, launcher: str, other: str) -> None:
    """Start it, see that it ends by itself and says why."""
    plugin.log.write_text("")
    arguments = plugin.process.args
    assert isinstance(arguments, list)
    behind_nsenter = [str(part) for part in arguments[5:]]
    started = plugin.node.start(
        [launcher if part == "process" else part for part in behind_nsenter], log=plugin.log
    )
    assert started.wait(60) == 3
    (told,) = (line for line in plugin.log.read_text().splitlines() if line.startswith("sidemount csi: "))
    assert f"--launcher {launcher} cannot look after what --launcher {other} has published: 1 targets" in told
    assert str(plugin.target("t")) in told
    assert f"start it with --launcher {other} until" in told


def _everything(directory: Path) -> dict[str, Any]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_mount_pods_do_not_take_over_processes(plugin: Plugin) -> None:
    plugin.flags = ("--image", "sidemount")
    plugin.publish()
    plugin.stop()
    plugin.start()
    daemon, mounts = plugin.first_daemon(), plugin.mount_ids()
    (plugin.seen() / "file").write_text("there")
    plugin.stop()
    before = _everything(plugin.state / "targets")
    _refuses(plugin, "pod", "process")
    assert _everything(plugin.state / "targets") == before
    assert (plugin.seen() / "file").read_text() == "there", "it is served on"
    plugin.start()
    assert (plugin.first_daemon(), plugin.mount_ids()) == (daemon, mounts)
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_processes_do_not_take_over_mount_pods(plugin: Plugin) -> None:
    plugin.publish()
    plugin.stop()
    (path,) = (plugin.state / "targets").iterdir()
    record = json.loads(path.read_text())
    text = json.dumps({**record, "launch": {**record["launch"], "pod": encode_pod_launch(PodLaunch())}})
    path.write_text(text)
    mounts = plugin.mount_ids()
    _refuses(plugin, "process", "pod")
    assert path.read_text() == text
    assert plugin.mount_ids() == mounts
    path.write_text(json.dumps(record))
    plugin.start()
    plugin.unpublish()
    assert plugin.leftovers() == []
