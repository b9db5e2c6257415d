"""The public suite csi-sanity, a Go program with a client of its own, against a plugin that runs: no cluster.

There is no controller service yet, so only the specs of the services that there are can run; of these every one does.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.go_tools import SANITY, go_programs
from e2e.cluster.places import BUILD
from e2e.cluster.progress import Progress
from tests.csi.plugin import Plugin
from tests.host.mount_node import MountNode, scratch_directory

# What the node service's own specs of these names need first is CreateVolume.
_NEED_A_CONTROLLER = "already mounted at a different target path|should remove target path|does not exist on the specified path"
_NOT_ADVERTISED = "NodeStageVolume|NodeUnstageVolume|NodeExpandVolume|Health"
_ENDED = re.compile(r"(\d+) Passed .* (\d+) Failed")


@pytest.fixture(scope="module")
def csi_sanity() -> Path:
    """Return the program."""
    return go_programs(BUILD, Progress(), (SANITY,))["csi-sanity"]


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    """Return a plugin that runs in a mount namespace of its own."""
    with scratch_directory() as work:
        node = MountNode(work)
        plugin = Plugin(node)
        try:
            yield plugin.start()
        finally:
            plugin.end()
            node.close()


@pytest.mark.fuse
@pytest.mark.root
def test_the_public_suite_finds_nothing_in_any_order_and_twice_on_one_process(
    plugin: Plugin, csi_sanity: Path
) -> None:
    for seed in (1, 2):
        done = plugin.node.run(
            csi_sanity,
            *("--csi.endpoint", f"unix://{plugin.socket}"),
            *("--csi.mountdir", plugin.target("mount"), "--csi.stagingdir", plugin.target("staging")),
            *("--ginkgo.focus", "Identity Service|Node Service", "--ginkgo.no-color"),
            *("--ginkgo.skip", f"{_NEED_A_CONTROLLER}|{_NOT_ADVERTISED}"),
            *("--ginkgo.randomize-all", f"--ginkgo.seed={seed}"),
            timeout_s=100,
            check=False,
        )
        ended = _ended(done)
        assert ended is not None, done
        assert (int(ended[1]), int(ended[2])) == (13, 0), done.stdout
    assert plugin.leftovers() == []


def _ended(done: "subprocess.CompletedProcess[str]") -> "re.Match[str] | None":
    return _ENDED.search(done.stdout)
