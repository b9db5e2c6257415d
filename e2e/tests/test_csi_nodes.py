"""Volumes by CSI on more than one node: written from both at once, one limit for both; a node that is drained and comes back."""

from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.more_nodes import join, leave
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster
from e2e.cluster.running_node import RunningNode
from e2e.cluster.waiting import wait_for
from e2e.tests.conftest import in_namespace, named_after
from e2e.tests.csi_rest import nothing_left
from e2e.tests.csi_world import GONE_S, WITHIN_S, CsiPath, World, claim, user_pod
from e2e.tests.pods import is_ready
from e2e.tests.witness_pod import RECOVERED_S

pytestmark = pytest.mark.slow  # a node that joins, with all images

_DRAIN_S = 240.0
_APPENDS = (
    "trap 'exit 0' TERM; while true; do echo $HOSTNAME >>/data/lines; sync /data/lines; sleep 0.05; done"
)
_HOSTNAME = "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def second(own_cluster: RunningCluster | None, csi: CsiPath) -> Iterator[RunningNode]:
    """A second node whose kubelet knows the driver, for these tests alone unless the cluster had one. Both have the pool."""
    assert own_cluster is not None
    (first, *more) = own_cluster.nodes
    node = more[0] if more else join(own_cluster, Progress())
    csi.roll_out()
    assert wait_for(csi.is_registered, WITHIN_S), csi.told()
    assert csi.in_pool(node) == csi.in_pool(first)
    yield node
    if not more:
        leave(own_cluster, node)


@pytest.fixture
def both(
    cluster: RunningCluster,
    csi: CsiPath,
    second: RunningNode,
    namespaces_go: None,
    request: pytest.FixtureRequest,
) -> Iterator[World]:
    """A namespace for pods of both nodes; afterwards there is nothing left on either, nor in the store."""
    with nothing_left(csi, cluster, second):
        for made in in_namespace(csi.api, named_after(request.node), {}):
            yield World(csi, made)


def _on(node: RunningNode, manifest: Json) -> Json:
    return {**manifest, "spec": {**manifest["spec"], "nodeSelector": {_HOSTNAME: node.name}}}


def test_pods_of_two_nodes_share_a_volume_and_its_limit(
    cluster: RunningCluster, second: RunningNode, both: World
) -> None:
    """S4-03, S4-37: different users, the same bytes at once, and EDQUOT for what both have written together."""
    both.make(claim("shared", "8Mi"))
    both.make(_on(cluster, user_pod("here", {"data": "shared"}, uid=1000)))
    both.make(_on(second, user_pod("there", {"data": "shared"}, uid=1001)))
    both.runs("here", "there")
    write = "dd if=/dev/urandom of=/data/{0} bs=1k count={1} conv=fsync && md5sum </data/{0}"
    for writer, reader in (("here", "there"), ("there", "here")):
        written = both.sh(writer, write.format(writer, 3 << 10)).splitlines()[-1].split()[0]
        assert both.sh(reader, f"md5sum </data/{writer}").split()[0] == written
        both.sh(writer, f"echo more >>/data/{writer} && sync /data/{writer}")
        assert both.sh(reader, f"tail -c 5 /data/{writer}") == "more\n"
    assert "Disk quota exceeded" in both.sh("there", write.format("beyond", 3 << 10))
    for name in ("here", "there"):
        (line,) = both.sh(name, "df -kP /data").splitlines()[1:]
        assert line.split()[1] == "8192"
    both.sh("here", "rm /data/here /data/beyond")
    assert both.sh("there", "ls /data").split() == ["there"]
    assert "3072+0 records out" in both.sh("there", write.format("again", 3 << 10))
    both.gone("here", "there")
    both.unclaim("shared")


def test_a_drained_node_is_left_with_nothing_and_serves_again(
    cluster: RunningCluster, second: RunningNode, both: World, csi: CsiPath
) -> None:
    """The application goes first, its mount pod with it; `--force`, as docs/csi.md says. Uncordoned, it runs with what it has written."""
    both.make(claim("data", "64Mi"))
    made = _on(second, user_pod("app", {"data": "data"}, _APPENDS))
    template = {"metadata": {"labels": {"app": "app"}}, "spec": {**made["spec"]}}
    selector = {"matchLabels": {"app": "app"}}
    both.make(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "app"},
            "spec": {"serviceName": "app", "selector": selector, "template": template},
        }
    )
    both.runs("app-0")
    assert wait_for(lambda: len(both.sh("app-0", "cat /data/lines").split()) > 20, RECOVERED_S)
    uid = both.ready("app-0")["metadata"]["uid"]
    assert [each["spec"]["nodeName"] for each in csi.mount_pods()] == [second.name]
    flags = ("--force", "--delete-emptydir-data", "--ignore-daemonsets", f"--timeout={_DRAIN_S:g}s")
    try:
        csi.api.run("drain", second.name, *flags, timeout_s=_DRAIN_S + 30)
        assert wait_for(lambda: not csi.mount_pods(), GONE_S), csi.told()
        mounts = second.on_node("cat", "/proc/self/mountinfo")
        assert "fuse.sidemount" not in mounts
        assert uid not in mounts
        lines = (cluster.places.node / "srv/pool/volumes" / both.bound("data") / "data/lines").read_text()
        assert len(lines.split()) > 20
    finally:
        csi.api.run("uncordon", second.name)
    both.until("app-0", lambda found: is_ready(found) and found["metadata"]["uid"] != uid, "another, ready")
    assert both.sh("app-0", "cat /data/lines").startswith(lines)
    csi.api.run(
        "delete", "statefulset", "app", f"--namespace={both.name}", "--cascade=foreground", timeout_s=GONE_S
    )
    both.unclaim("data")
