"""Pods with a user namespace of their own (hostUsers: false): what their runtime would do to our mounts, which this kernel refuses."""

import errno
import os
from pathlib import Path

import pytest

from sidemount.host.mount_points import clone_for
from sidemount.model.errors import HostFailure
from tests.csi.plugin import Plugin

pytestmark = [pytest.mark.root, pytest.mark.fuse]
_UID = 100_000


def _mapped(path: Path) -> str:
    """Bind a directory as a runtime does for such a pod; return what came of it."""
    try:
        os.close(clone_for(str(path), _UID))
    except HostFailure as error:
        return errno.errorcode[error.errno]
    return "mapped"


def test_the_kernel_maps_no_ids_of_our_mounts(plugin: Plugin) -> None:
    """Why such a pod is refused (UserNamespace): its containers would never start. The directory itself could be mapped."""
    plugin.publish()
    node, target = plugin.node, plugin.target("t")
    (node.work / "memory").mkdir()
    node.run("mount", "-t", "tmpfs", "memory", node.work / "memory")
    assert node.call(lambda: _mapped(node.work / "memory")) == "mapped"
    assert node.call(lambda: _mapped(target)) == "EINVAL"
    (plugin.seen() / "file").write_text("nothing else has come of it")
    plugin.unpublish()
    assert plugin.leftovers() == []
