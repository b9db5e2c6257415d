"""A source that does not answer any more, as NFS without its server: its own calls end in time, and nobody else notices."""

import contextlib
import copy
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from csi.cgroups import find_control_groups
from csi.daemon_places import INSTANCE_FILE
from tests.csi.plugin import Plugin, Refused
from tests.host.mount_node import MountNode, abort_connections, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]
# Whoever waits for a request that was read cannot be killed; for one that was not, he can.
_SERVER = """
import ctypes, os, struct, sys, time
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
assert ctypes.CDLL(None).mount(b"hanging", sys.argv[1].encode(), b"fuse", 0, options) == 0
unique = struct.unpack_from("<Q", os.read(device, 1 << 18), 8)[0]
answer = struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 0, 0, 4096, *[0] * 11)
os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
while sys.argv[2] == "reads":
    os.read(device, 1 << 18)
time.sleep(600)
"""
_TIMEOUT_S = 3.0


@pytest.fixture
def plugin(node: MountNode) -> Iterator[Plugin]:
    """Return a plugin that waits for no volume for long."""
    plugin = Plugin(node, flags=("--mount-timeout-seconds", str(_TIMEOUT_S)))
    try:
        yield plugin.start()
    finally:
        plugin.end()


def _hang(plugin: Plugin, how: str) -> Path:
    hung = plugin.node.work / "hung"
    hung.mkdir()
    plugin.node.start([sys.executable, "-c", _SERVER, hung, how])
    eventually(lambda: plugin.node.mounts_beneath(hung), what="mounted", timeout_s=30)
    return hung


@pytest.mark.parametrize("how", ["ignores", pytest.param("reads", marks=pytest.mark.slow)])
def test_a_publish_ends_in_time_and_neighbours_notice_nothing(plugin: Plugin, how: str) -> None:
    """S0-21, S3-08: also where the daemon cannot even be killed before the source answers."""
    hung = _hang(plugin, how)
    plugin.publish("neighbour", "neighbour")
    waiting = threading.Thread(target=_publish_in_vain, args=(plugin, hung))
    waiting.start()
    eventually(lambda: len(plugin.events("daemon_started")) == 2, what="the daemon waits", timeout_s=30)
    plugin.publish("another", "another")
    (plugin.seen("another") / "file").write_text("meanwhile")
    plugin.unpublish("another", "another")
    (plugin.seen("neighbour") / "file").write_text("meanwhile")
    waiting.join(60)
    assert not waiting.is_alive()
    assert plugin.events("call_failed")[-1]["code"] == "DEADLINE_EXCEEDED"
    assert float(plugin.events("call_failed")[-1]["elapsed_s"]) < 25, "with 3 s to be live"
    if how == "reads":
        with pytest.raises(Refused, match="was killed and does not end") as refused:
            plugin.publish("t", "vol", source=f"dir://{hung}")
        assert refused.value.code.name == "UNAVAILABLE", "no second one beside it"
    plugin.unpublish()  # as after any error that is not final
    assert not plugin.target("t").exists()
    assert len(plugin.node.fuse_mounts()) == 2, "the source's and the neighbour's"
    if how == "reads":
        assert {told["target"] for told in plugin.events("daemon_dying")} == {str(plugin.target("t"))}
    plugin.unpublish("neighbour", "neighbour")
    (mount,) = plugin.node.fuse_mounts()
    abort_connections({mount.minor})
    eventually(lambda: plugin.leftovers() == [f"mount {hung}"], what="nothing is left", timeout_s=30)
    eventually(lambda: not _groups(plugin), what="no control group is left", timeout_s=30)


@pytest.mark.slow
def test_what_is_published_is_unpublished_when_its_source_has_stopped_to_answer(plugin: Plugin) -> None:
    """S0-21. Its application waits, nobody else does: not the unpublish, not the neighbour."""
    beneath = copy.copy(plugin.node)
    beneath.work = plugin.node.work / "beneath"
    beneath.work.mkdir()
    server = Plugin(beneath).start()  # on the same node: its volume is the source
    try:
        server.publish()
        plugin.publish("t", "vol", source=f"dir://{server.target('t')}")
        plugin.publish("neighbour", "neighbour")
        (plugin.seen() / "file").write_text("there")
        os.kill(server.keeper(), signal.SIGSTOP)
        for pid in server.daemons():
            os.kill(pid, signal.SIGSTOP)
        application = plugin.node.start(["ls", "-l", plugin.target("t")])
        began = time.monotonic()
        plugin.unpublish()
        assert time.monotonic() - began < 50
        (plugin.seen("neighbour") / "file").write_text("meanwhile")
        plugin.unpublish("neighbour", "neighbour")
        assert not plugin.target("t").exists()
        assert application.wait(30), "it is told"
    finally:
        server.end()
        abort_connections({mount.minor for mount in plugin.node.fuse_mounts()})
    eventually(lambda: not plugin.daemons(), what="no daemon is left", timeout_s=30)
    eventually(lambda: not _groups(plugin), what="no control group is left", timeout_s=30)


def _publish_in_vain(plugin: Plugin, source: Path) -> None:
    with contextlib.suppress(Refused):
        plugin.publish("t", "vol", source=f"dir://{source}")


def _groups(plugin: Plugin) -> list[str]:
    groups = find_control_groups((plugin.state / INSTANCE_FILE).read_text())
    assert groups is not None
    return [entry.name for entry in os.scandir(groups.directory) if entry.is_dir()]
