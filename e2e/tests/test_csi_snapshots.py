"""Snapshots, restores and clones on the real cluster: the overlay csi-snapshots with Kubernetes' own snapshotter and snapshot-controller."""

from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import (
    GONE_S,
    CsiPath,
    World,
    claim,
    from_claim,
    from_snapshot,
    is_cut,
    snapshot,
    user_pod,
)
from sidemount.model.names import CSI_DRIVER

pytestmark = pytest.mark.usefixtures("snapshots")

_BLOCK = 64 * 1024
_BOUND = "boundVolumeSnapshotContentName"
_FILL = "dd if=/dev/urandom of=/data/{} bs=64k count={} conv=fsync"
_SUMS = "cd /data && md5sum $(find . -type f ! -path './pair/*' | sort)"
# The second number follows the first: at every moment they are equal, or the first is one ahead.
_PAIR = """
mkdir -p /data/pair; i=10000000
while true; do
  i=$((i+1))
  for name in first second; do printf %s $i 1<>/data/pair/$name || echo fault; done
done
"""


def test_a_volume_is_cut_while_mounted_and_written_restored_and_cloned(world: World) -> None:
    """S4-01, S4-16, S4-25, S4-40, S4-42: restores and clones depend on nothing that they came from, and nothing is left."""
    world.make(claim("source", "16Mi"), user_pod("app", {"data": "source"}, _PAIR))
    world.runs("app")
    world.sh("app", f"mkdir /data/d; {_FILL.format('a', 16)}; {_FILL.format('d/b', 8)}; ln /data/a /data/c")
    before = world.sh("app", _SUMS)
    assert len(before.splitlines()) == 3
    world.make(snapshot("cut", "source"), snapshot("short-lived", "source"))
    for name in ("cut", "short-lived"):
        found = world.until_object("volumesnapshot", name, is_cut, "ready to use")
        assert found["status"]["restoreSize"] == str(24 * _BLOCK + 2 * 8)
    world.sh("app", f"{_FILL.format('a', 16)}; {_FILL.format('later', 4)}; rm /data/d/b")
    now = world.sh("app", _SUMS)
    world.make(
        # Each has its own size: below the source's, and above.
        claim("restored", "4Mi", dataSource=from_snapshot("cut")),
        claim("cloned", "32Mi", dataSource=from_claim("source")),
        claim("brief", "16Mi", dataSource=from_snapshot("short-lived")),
        *(user_pod(each, {"data": each}, uid=1001) for each in ("restored", "cloned", "brief")),
    )
    world.runs("restored", "cloned", "brief")
    assert [world.sh(each, _SUMS) for each in ("restored", "brief", "cloned")] == [before, before, now]
    assert [_size_kib(world, each) for each in ("app", "restored", "cloned")] == [16384, 4096, 32768]
    assert world.sh("restored", "stat -c '%h %g' /data/a").strip() == "2 2000"
    for each in ("restored", "cloned", "brief"):
        first, second = map(int, world.sh(each, "cd /data/pair; cat first; echo; cat second").split())
        assert first - second in (0, 1)
        assert second > 10000000
    assert "fault" not in world.logs("app", "app")
    _are_independent(world, before, now)


def _are_independent(world: World, before: str, now: str) -> None:
    """Change one, then take away snapshot, source and the other snapshot, while what came from them is mounted."""
    world.uncut("short-lived")
    world.sh("restored", "rm -r /data/*; echo of the restored >/data/a")
    assert world.sh("brief", _SUMS) == before
    world.gone("app")
    world.unclaim("source")
    # What is cut is still there, without what it was cut from.
    world.make(claim("again", "4Mi", dataSource=from_snapshot("cut")), user_pod("again", {"data": "again"}))
    world.runs("again")
    assert world.sh("again", _SUMS) == before
    world.uncut("cut")
    assert [world.sh(each, _SUMS) for each in ("again", "brief", "cloned")] == [before, before, now]
    assert world.sh("restored", "cat /data/*").strip() == "of the restored"
    pods = ("restored", "cloned", "brief", "again")
    world.gone(*pods)
    world.unclaim(*pods)
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()


@pytest.mark.slow
def test_a_snapshot_that_is_retained_is_brought_back_by_its_handle(world: World, retained: str) -> None:
    """S4-01, S4-24: a VolumeSnapshotContent that somebody writes, deleted with what it stands for."""
    world.make(claim("source"), user_pod("app", {"data": "source"}))
    world.runs("app")
    world.sh("app", "echo kept >/data/f; sync")
    world.make(snapshot("cut", "source", retained))
    name = world.until_object("volumesnapshot", "cut", is_cut, "ready to use")["status"][_BOUND]
    content = world.api.get("volumesnapshotcontent", name)
    assert content is not None
    handle = content["status"]["snapshotHandle"]
    for kind, each in (("volumesnapshot", "cut"), ("volumesnapshotcontent", name)):
        world.api.run("delete", kind, each, f"--namespace={world.name}", timeout_s=GONE_S)
    assert f"snapshots/{handle}" in world.path.in_pool()
    world.api.create(_content(world.name, "back", handle, f"{world.name}-back"))
    world.make(
        {
            **snapshot("back", "source"),
            "spec": {"source": {"volumeSnapshotContentName": f"{world.name}-back"}},
        }
    )
    world.until_object("volumesnapshot", "back", is_cut, "ready to use")
    world.make(claim("again", dataSource=from_snapshot("back")), user_pod("again", {"data": "again"}))
    world.runs("again")
    assert world.sh("again", "cat /data/f").strip() == "kept"
    world.uncut("back")
    world.gone("app", "again")
    world.unclaim("source", "again")
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()


@pytest.fixture
def retained(snapshots: CsiPath) -> Iterator[str]:
    """A class whose snapshots stay when nobody names them any more."""
    found = snapshots.api.get("volumesnapshotclass", "sidemount")
    assert found is not None
    name = "e2e-retained"
    snapshots.api.create({**found, "metadata": {"name": name}, "deletionPolicy": "Retain"})
    yield name
    snapshots.api.delete("volumesnapshotclass", name)


def _content(namespace: str, for_snapshot: str, handle: str, name: str) -> Json:
    """Return what brings a snapshot of the pool into a cluster."""
    spec = {
        "deletionPolicy": "Delete",
        "driver": CSI_DRIVER,
        "source": {"snapshotHandle": handle},
        "volumeSnapshotRef": {"name": for_snapshot, "namespace": namespace},
    }
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name},
        "spec": spec,
    }


def _size_kib(world: World, name: str) -> int:
    return int(world.sh(name, "df -kP /data").splitlines()[-1].split()[1])
