"""A mount namespace for each test that wants one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from sidemount.model.mountspec import KeeperMount
from tests.host.keeper_pod import Pod, directory_spec, view
from tests.host.mount_node import MountNode, scratch_directory


@pytest.fixture
def node() -> Iterator[MountNode]:
    """Return a node, and check that it leaves nothing mounted in the machine's own namespace."""
    with scratch_directory() as work:
        node = MountNode(work)
        try:
            yield node
        finally:
            node.close()
    # Others mount and unmount on the same machine meanwhile: only what lies in this node's directory is its own.
    assert str(work) not in Path("/proc/self/mountinfo").read_text()


class MakePod(Protocol):
    """Makes pods on the test's node."""

    def __call__(self, *mounts: KeeperMount, flags: tuple[str, ...] = ()) -> Pod:
        """Return a pod that is not started."""
        ...


@pytest.fixture
def make_pod(node: MountNode) -> MakePod:
    """Return a way to make a pod; without mounts it has one `directory` volume, train."""

    def make(*mounts: KeeperMount, flags: tuple[str, ...] = ()) -> Pod:
        default = KeeperMount(spec=directory_spec(), views=(view("train"),))
        return Pod(node, list(mounts) or [default], keeper_flags=flags)

    return make
