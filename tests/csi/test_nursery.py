"""Daemons that are forked instead of executed: the same in everything that shows, and nobody's loss when the nursery is gone."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from csi.proto import csi_pb2
from tests.csi.plugin import Plugin, Refused
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]

_STATUS = (
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "SigBlk",
    "SigIgn",
)


def _nursery(plugin: Plugin) -> int:
    eventually(lambda: plugin.events("nursery_ready"), what="the nursery is ready", timeout_s=60)
    return int(plugin.events("nursery_ready")[-1]["pid"])


def _is_gone(place: Path) -> bool:
    return not place.exists()


def _seen_of(pid: int) -> dict[str, object]:
    """Return what anybody can see of a process that would tell how it was started."""
    place = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    stat = (place / "stat").read_text().rsplit(")", 1)[1].split()
    arguments = (place / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    groups = (place / "cgroup").read_text().replace("/daemons", "")
    return {
        **{name: status[name].strip() for name in _STATUS},
        "arguments": arguments,
        "environment": sorted(
            part
            for part in (place / "environ").read_bytes().split(b"\0")
            if part and not part.startswith((b"_=", b"PWD=", b"OLDPWD=", b"SHLVL="))
        ),
        "leads its session": stat[3] == str(pid),
        "directory": os.readlink(place / "cwd"),
        "output": [os.readlink(place / "fd" / number) for number in "012"],
        "groups": groups,
        "oom": (place / "oom_score_adj").read_text(),
    }


def test_a_forked_daemon_is_as_one_that_was_executed(plugin: Plugin) -> None:
    """S0-09, S0-11, S4-26: arguments, environment, rights, session, group, log; none of the nursery's descriptors."""
    nursery = _nursery(plugin)
    os.kill(nursery, signal.SIGSTOP)  # hangs; daemons have to be started without it
    os.kill(nursery, signal.SIGKILL)
    eventually(lambda: plugin.events("nursery_gone"), what="its end is seen")
    plugin.publish()
    executed = _seen_of(plugin.first_daemon())
    plugin.unpublish()
    eventually(lambda: len(plugin.events("nursery_ready")) == 2, what="another nursery", timeout_s=60)
    parent = _nursery(plugin)
    assert parent != nursery
    plugin.publish()
    daemon = plugin.first_daemon()
    assert Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1] == str(parent)
    assert _seen_of(daemon) == executed
    assert str(parent) != str(daemon)
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_its_death_is_nothing_to_those_it_has_started(plugin: Plugin) -> None:
    """S0-08: neither the nursery's end nor the plugin's; how a daemon ends is known before and after."""
    nursery = _nursery(plugin)
    plugin.publish()
    before = plugin.first_daemon(), plugin.mount_ids()
    os.kill(nursery, signal.SIGKILL)
    eventually(lambda: plugin.events("nursery_gone"), what="its end is seen")
    (plugin.seen() / "file").write_text("served")
    plugin.kill()
    (plugin.seen() / "file").write_text("still")
    plugin.start()
    plugin.publish()
    assert (plugin.first_daemon(), plugin.mount_ids()) == before
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_it_ends_with_the_plugin_however_that_ends(plugin: Plugin) -> None:
    for end in (plugin.kill, plugin.stop):
        place = Path(f"/proc/{_nursery(plugin)}")
        end()
        eventually(partial(_is_gone, place), what="the nursery has ended")
        plugin.log.unlink()
        plugin.start()


def test_a_daemon_that_fails_tells_why_and_with_what_code(plugin: Plugin) -> None:
    """S4-27."""
    _nursery(plugin)
    with pytest.raises(Refused, match="sub-path") as refused:
        plugin.publish(subPath="missing")
    assert "code 3" in refused.value.message
    assert refused.value.code.name == "FAILED_PRECONDITION"
    assert plugin.leftovers() == []


def test_a_nursery_that_hangs_is_replaced_within_the_publish(plugin: Plugin) -> None:
    """S0-21: no publish waits for it without end, and only one daemon comes of it."""
    nursery = _nursery(plugin)
    os.kill(nursery, signal.SIGSTOP)
    plugin.publish()
    assert plugin.events("nursery_hangs")
    (plugin.seen() / "file").write_text("served")
    assert (
        len({Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[3] for pid in plugin.daemons()})
        == 1
    )
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_an_order_of_a_plugin_that_is_gone_is_nobodys(node: MountNode, plugin: Plugin) -> None:
    """S3-15: killed between the order and the birth; no daemon runs that nobody could find."""
    nursery = _nursery(plugin)
    os.kill(nursery, signal.SIGSTOP)
    request = plugin.publish_request()
    with pytest.raises(Refused):
        plugin.call("Node", "NodePublishVolume", request, timeout_s=1)
    plugin.kill()
    os.kill(nursery, signal.SIGCONT)
    eventually(lambda: not Path(f"/proc/{nursery}").exists(), what="the nursery has ended")
    assert plugin.daemons() == []
    plugin.start()
    plugin.publish()
    gone = csi_pb2.NodeUnpublishVolumeRequest(volume_id="vol", target_path=str(plugin.target("t")))
    plugin.call("Node", "NodeUnpublishVolume", gone)
    assert plugin.leftovers() == []
