"""The public suite csi-sanity, a Go program with a client of its own, against a plugin that runs: no cluster.

Every spec of what is advertised runs. What the suite passes over by itself are services and capabilities that nobody advertises.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from e2e.cluster.go_tools import SANITY, go_programs
from e2e.cluster.places import BUILD
from e2e.cluster.progress import Progress
from tests.csi.bucket_plugin import InBucket
from tests.csi.controlled import Controlled
from tests.csi.fake_kubelet import FakeKubelet
from tests.csi.pod_api import PodApi
from tests.host.mount_node import MountNode, scratch_directory

pytestmark = [pytest.mark.fuse, pytest.mark.root]

_ENDED = re.compile(r"(\d+) Passed .* (\d+) Failed")
SPECS = 62
"""Of identity, node and controller service and the capabilities of ours."""
SPECS_IN_BUCKET = 40
"""Of the same, where there are neither snapshots nor clones."""
CANARY = "c4nary-of-the-suite"
"""A secret, to be searched for."""
SECRETS = (
    *("CreateVolumeSecret", "DeleteVolumeSecret", "ControllerValidateVolumeCapabilitiesSecret"),
    *("NodePublishVolumeSecret", "CreateSnapshotSecret", "DeleteSnapshotSecret"),
    *("ControllerExpandVolumeSecret", "ListSnapshotsSecret", "GetSnapshotSecret"),
)
"""Of every call that may have some, as the suite names them."""


@pytest.fixture(scope="module")
def csi_sanity() -> Path:
    """Return the program."""
    return go_programs(BUILD, Progress(), (SANITY,))["csi-sanity"]


@pytest.fixture
def plugin() -> Iterator[Controlled]:
    """Return a node and controller service that runs in a mount namespace of its own."""
    with scratch_directory() as work:
        node = MountNode(work)
        plugin = Controlled(node, role="all")
        try:
            yield plugin.start()
        finally:
            plugin.end()
            node.close()


@pytest.fixture
def in_bucket() -> Iterator[InBucket]:
    """Return the same, whose pool is a prefix of a store."""
    with scratch_directory() as work:
        node = MountNode(work)
        plugin = InBucket(node, role="all")
        try:
            plugin.start()
            yield plugin
        finally:
            plugin.end()
            node.close()


@pytest.fixture
def with_pods() -> Iterator[Controlled]:
    """Return the same, whose daemons are in pods of an API server and a kubelet of the tests' own."""
    with scratch_directory() as work:
        node, api = MountNode(work), PodApi()
        kubelet = FakeKubelet(node, api)
        pods = (
            *("--launcher", "pod", "--image", "registry.example/sidemount:1"),
            *("--kubeconfig", str(api.kubeconfig(work / "kubeconfig"))),
            *("--kubelet-dir", str(kubelet.directory)),
        )
        plugin = Controlled(node, pods, role="all")
        try:
            yield plugin.start()
            assert list(api.pods) == []
        finally:
            plugin.end()
            kubelet.end()
            api.end()
            node.close()


def test_the_public_suite_finds_nothing_in_any_order_and_twice_on_one_process(
    plugin: Controlled, csi_sanity: Path
) -> None:
    """Also S4-10…24, S4-35: as the suite has them."""
    for seed in (1, 2):
        _check(plugin, csi_sanity, seed)


@pytest.mark.parametrize(
    "seeds", [pytest.param((20,), id="short"), pytest.param((21, 22, 23, 24), marks=pytest.mark.slow)]
)
def test_the_public_suite_finds_nothing_where_daemons_are_in_pods(
    with_pods: Controlled, csi_sanity: Path, seeds: Sequence[int]
) -> None:
    """In several orders on one process, and on another one after a kill."""
    for seed in seeds:
        _check(with_pods, csi_sanity, seed)
    with_pods.kill()
    with_pods.start()
    _check(with_pods, csi_sanity, 25)


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"subPath": "team/a"}, id="sub-path"),
        pytest.param({"enforceCapacity": "true", "attributeTimeout": "5s"}, id="quota"),
        pytest.param({"enforceCapacity": "false", "directoryMode": "0770"}, id="thin"),
    ],
)
def test_the_public_suite_with_parameters(
    plugin: Controlled, csi_sanity: Path, parameters: Mapping[str, str]
) -> None:
    file = plugin.node.work / "parameters.yaml"
    file.write_text(json.dumps(parameters))
    for seed in range(3, 6):
        _check(plugin, csi_sanity, seed, "--csi.testvolumeparameters", str(file))


def test_the_public_suite_with_secrets_which_are_nowhere_afterwards(
    plugin: Controlled, csi_sanity: Path
) -> None:
    """S4-26."""
    file = plugin.node.work / "secrets.yaml"
    file.write_text(json.dumps({name: {"access-key": CANARY} for name in SECRETS}))
    for seed in range(6, 8):
        _check(plugin, csi_sanity, seed, "--csi.secrets", str(file))
    assert CANARY not in plugin.log.read_text()
    holding = plugin.node.run("grep", "-rl", CANARY, plugin.pool, plugin.state, check=False)
    assert holding.stdout == ""


def test_the_public_suite_with_a_pool_in_a_bucket(in_bucket: InBucket, csi_sanity: Path) -> None:
    """Without snapshots and clones, which such a controller does not advertise."""
    for seed in (31, 32):
        _check(in_bucket, csi_sanity, seed, specs=SPECS_IN_BUCKET)


@pytest.mark.slow
def test_the_public_suite_in_many_orders_with_restarts_between(plugin: Controlled, csi_sanity: Path) -> None:
    for seed in range(10, 18):
        _check(plugin, csi_sanity, seed)
        if seed % 2:
            plugin.kill()
            plugin.start()


def _check(plugin: Controlled, csi_sanity: Path, seed: int, *flags: str, specs: int = SPECS) -> None:
    """Run every spec, and see that nothing is left of them."""
    done = plugin.node.run(
        csi_sanity,
        *("--csi.endpoint", f"unix://{plugin.socket}", "--ginkgo.no-color"),
        *("--csi.mountdir", plugin.target("mount"), "--csi.stagingdir", plugin.target("staging")),
        *("--ginkgo.randomize-all", f"--ginkgo.seed={seed}", *flags),
        timeout_s=110,
        check=False,
    )
    counts = ended(done)
    assert counts is not None, done
    assert (int(counts[1]), int(counts[2])) == (specs, 0), done.stdout
    assert plugin.leftovers() == []
    assert plugin.in_pool() == []


def ended(done: "subprocess.CompletedProcess[str]") -> "re.Match[str] | None":
    """Return how many specs have passed and failed, None if the suite has not come to its end."""
    return _ENDED.search(done.stdout)
