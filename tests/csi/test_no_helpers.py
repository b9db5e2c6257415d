"""Mounting and unmounting are system calls of ours: no helper program is asked, which a distribution may have confined or left out."""

import contextlib
import os
import signal

import pytest

from tests.csi.plugin import Plugin, Refused
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]
_HELPERS = ("fusermount", "fusermount3", "mount", "umount", "mount.fuse", "mount.fuse3")


def test_S4_32_no_helper_is_run_whatever_happens_to_a_volume(node: MountNode) -> None:
    """Not to publish, not to heal, not to unpublish what is alive, dead or in use: each would say so in a file."""
    programs, told = node.work / "programs", node.work / "told"
    programs.mkdir()
    for name in _HELPERS:
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{told}\nexit 1\n')
        (programs / name).chmod(0o755)
    plugin = Plugin(node, environment={"PATH": f"{programs}:{os.environ['PATH']}"})
    try:
        plugin.start()
        plugin.publish()
        file = os.open(plugin.seen() / "file", os.O_WRONLY | os.O_CREAT)
        plugin.unpublish()
        with contextlib.suppress(OSError):  # its mount is gone
            os.close(file)
        plugin.publish()
        for pid in (plugin.keeper(), *plugin.daemons()):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: _heals(plugin), what="healed by a publish")
        plugin.kill()
        for pid in plugin.daemons():
            os.kill(pid, signal.SIGKILL)
        plugin.start()
        plugin.unpublish()
        assert plugin.leftovers() == []
        assert not told.exists(), told.read_text()
    finally:
        plugin.end()


def _heals(plugin: Plugin) -> bool:
    try:
        plugin.publish()
    except Refused:  # its keeper is not back yet
        return False
    return (plugin.seen() / "file").exists()
