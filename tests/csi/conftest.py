"""A plugin on a node of its own, for each test that wants one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.servers.fixtures import azure_server, gcs_server, seaweedfs_server, versity_server
from tests.csi.plugin import Plugin
from tests.host.mount_node import MountNode, scratch_directory

__all__ = ["azure_server", "gcs_server", "seaweedfs_server", "versity_server"]


@pytest.fixture
def node() -> Iterator[MountNode]:
    """Return a mount namespace, and check that it leaves nothing mounted in the machine's own."""
    with scratch_directory() as work:
        node = MountNode(work)
        try:
            yield node
        finally:
            node.close()
    assert str(work) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def plugin(node: MountNode) -> Iterator[Plugin]:
    """Return a plugin that runs."""
    plugin = Plugin(node)
    try:
        yield plugin.start()
    finally:
        plugin.end()


@pytest.fixture(scope="module")
def shared() -> Iterator[Plugin]:
    """Return a plugin that all tests of a module use, one after the other, each leaving nothing."""
    with scratch_directory() as work:
        node = MountNode(work)
        plugin = Plugin(node)
        try:
            yield plugin.start()
        finally:
            plugin.end()
            node.close()
