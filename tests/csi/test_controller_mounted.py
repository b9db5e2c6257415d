"""A volume's whole life through both services: created, mounted, filled, grown, cut, restored, cloned, deleted."""

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from csi.proto import csi_pb2
from tests.csi.controlled import MIB, Controlled
from tests.csi.plugin import Refused
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]
KIB = 1 << 10
T = TypeVar("T")


@pytest.fixture
def plugin(node: MountNode) -> Iterator[Controlled]:
    """Return node and controller on one socket."""
    plugin = Controlled(node, role="all")
    try:
        yield plugin.start()
    finally:
        plugin.end()


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def _unpublish(plugin: Controlled, volume: str, target: str) -> None:
    request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume, target_path=str(plugin.target(target)))
    plugin.call("Node", "NodeUnpublishVolume", request)


def test_the_life_of_a_volume(plugin: Controlled) -> None:
    """S4-01, S4-14…18, S4-25, S4-38, S4-40, S4-42…45: what is promised at each step holds, and nothing is left of it."""
    volume = plugin.create("pvc-1", MIB)
    plugin.publish_provisioned(volume)
    seen = plugin.seen()
    assert os.statvfs(seen).f_blocks * os.statvfs(seen).f_frsize == MIB
    (seen / "before").write_bytes(os.urandom(768 * KIB))
    checksum = _md5(seen / "before")
    with pytest.raises(OSError, match="quota") as full:
        (seen / "too-much").write_bytes(b"x" * (512 * KIB))
    assert full.value.errno == errno.EDQUOT
    (seen / "too-much").unlink()

    assert plugin.expand("pvc-1", 4 * MIB).capacity_bytes == 4 * MIB
    assert os.statvfs(seen).f_blocks * os.statvfs(seen).f_frsize == 4 * MIB
    (seen / "grown").write_bytes(b"x" * (512 * KIB))
    usage = {each.unit: each for each in plugin.stats("t", "pvc-1").usage}
    assert usage[csi_pb2.VolumeUsage.BYTES].total == 4 * MIB

    snapshot = plugin.cut("snapshot-1", "pvc-1")
    assert snapshot.ready_to_use
    assert snapshot.size_bytes == (768 + 512) * KIB
    (seen / "after").write_text("later")
    with pytest.raises(Refused) as refused:
        plugin.restore("small", "snapshot-1", MIB)
    assert refused.value.code.name == "OUT_OF_RANGE"
    restored = plugin.restore("restored", "snapshot-1", 2 * MIB)
    assert restored.content_source.snapshot.snapshot_id == "snapshot-1"
    clone = plugin.clone("clone", "pvc-1", 8 * MIB)
    with pytest.raises(Refused) as refused:
        plugin.clone("small", "pvc-1", MIB)
    assert refused.value.code.name == "OUT_OF_RANGE"
    _unpublish(plugin, "pvc-1", "t")
    plugin.delete("pvc-1")  # S4-25: neither the snapshot nor the clone needs it
    assert plugin.snapshots().entries[0].snapshot.snapshot_id == "snapshot-1"
    plugin.delete_snapshot("snapshot-1")

    plugin.publish_provisioned(restored, "restored")
    plugin.publish_provisioned(clone, "clone")
    assert sorted(os.listdir(plugin.seen("restored"))) == ["before", "grown"]
    assert sorted(os.listdir(plugin.seen("clone"))) == ["after", "before", "grown"]
    for target, size in (("restored", 2 * MIB), ("clone", 8 * MIB)):
        assert _md5(plugin.seen(target) / "before") == checksum
        found = os.statvfs(plugin.seen(target))
        assert found.f_blocks * found.f_frsize == size
        assert (found.f_blocks - found.f_bfree) * found.f_frsize >= (768 + 512) * KIB
    with pytest.raises(OSError, match="quota"):
        (plugin.seen("restored") / "more").write_bytes(b"x" * MIB)
    for name in ("restored", "clone"):
        _unpublish(plugin, name, name)
        plugin.delete(name)
    assert plugin.leftovers() == []
    assert plugin.in_pool() == []


def test_a_volume_that_is_mounted_is_not_deleted(plugin: Controlled) -> None:
    """Whoever deletes too early loses nothing; a plugin that was restarted knows it too."""
    volume = plugin.create("v", MIB)
    plugin.publish_provisioned(volume)
    (plugin.seen() / "precious").write_text("kept")
    for _ in range(2):
        with pytest.raises(Refused, match="is mounted") as refused:
            plugin.delete("v")
        assert refused.value.code.name == "FAILED_PRECONDITION"
        plugin.kill()
        plugin.start()
    assert (plugin.data("v") / "precious").read_text() == "kept"
    _unpublish(plugin, "v", "t")
    plugin.delete("v")
    assert plugin.in_pool() == []


def test_a_thin_volume_stays_thin(plugin: Controlled) -> None:
    """S4-11, S4-18."""
    volume = plugin.create("thin", 64 * KIB, enforceCapacity="false")
    assert volume.capacity_bytes == 64 * KIB
    plugin.publish_provisioned(volume)
    (plugin.seen() / "file").write_bytes(b"x" * MIB)
    assert plugin.expand("thin", 128 * KIB).capacity_bytes == 128 * KIB
    (plugin.seen() / "more").write_bytes(b"x" * MIB)
    snapshot = plugin.cut("s", "thin")
    assert snapshot.size_bytes == 2 * MIB
    _unpublish(plugin, "thin", "t")
    plugin.delete("thin")
    plugin.delete_snapshot("s")
    assert plugin.in_pool() == []


def test_a_volume_with_a_sub_path_is_used_by_any_user(plugin: Controlled) -> None:
    """S4-37: the directory is there, and whoever the pod runs as may write."""
    volume = plugin.create("v", MIB, subPath="team/a")
    assert volume.volume_context["subPath"] == "team/a"
    plugin.publish_provisioned(volume)
    for uid in (1000, 2000):
        plugin.node.run(
            *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
            *("sh", "-c", f"echo {uid} > {plugin.target('t')}/{uid}"),
        )
    assert sorted(os.listdir(plugin.data("v") / "team" / "a")) == ["1000", "2000"]
    _unpublish(plugin, "v", "t")
    plugin.delete("v")
    assert plugin.in_pool() == []


def test_a_snapshot_is_of_one_moment_while_two_mounts_write(plugin: Controlled) -> None:
    """Every file counts up after the one before it: a cut has no later one ahead of an earlier one."""
    volume = plugin.create("v", 64 * MIB)
    targets = ("one", "two")
    for target in targets:
        plugin.publish_provisioned(volume, target)
    is_over = threading.Event()
    errors: list[BaseException] = []
    rounds = dict.fromkeys(targets, 0)

    def write(target: str) -> None:
        seen = plugin.seen(target)
        try:
            files = [os.open(seen / f"{target}-{n}", os.O_RDWR | os.O_CREAT, 0o600) for n in range(5)]
            while not is_over.is_set():
                rounds[target] += 1
                for file in files:
                    os.pwrite(file, b"%020d" % rounds[target], 0)
            for file in files:
                os.close(file)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(target,)) for target in targets]
    for writer in writers:
        writer.start()
    try:
        for name in ("s1", "s2", "s3"):
            before = dict(rounds)
            eventually(partial(_have_gone_on, before, rounds, errors), what="both write", timeout_s=30)
            plugin.cut(name, "v")
    finally:
        is_over.set()
        for writer in writers:
            writer.join(30)
    assert errors == []
    for name in ("s1", "s2", "s3"):
        data = plugin.pool / "snapshots" / name / "data"
        for target in targets:
            counts = [int((data / f"{target}-{n}").read_text()) for n in range(5)]
            assert counts == sorted(counts, reverse=True)
            assert counts[0] - counts[-1] <= 1
            assert counts[0] > 0
        plugin.delete_snapshot(name)
    for target in targets:
        _unpublish(plugin, "v", target)
    plugin.delete("v")
    assert plugin.leftovers() == []
    assert plugin.in_pool() == []


def _have_gone_on(before: dict[str, int], rounds: dict[str, int], errors: list[BaseException]) -> bool:
    return bool(errors) or all(rounds[target] > before[target] + 5 for target in before)


def test_calls_are_answered_while_a_copy_takes_long(plugin: Controlled) -> None:
    """A caller that has waited long enough is told to ask again, and lands on the same copy."""
    plugin.flags = ("--operation-wait-seconds", "0.001")
    plugin.stop()
    plugin.start()
    volume = _patiently(lambda: plugin.create("v", 0))
    for number in range(300):
        (plugin.data("v") / f"file-{number}").write_bytes(os.urandom(20_000))
    with pytest.raises(Refused, match="ask again") as refused:
        plugin.cut("s", "v")
    assert refused.value.code.name == "ABORTED"
    assert plugin.call("Identity", "Probe", csi_pb2.ProbeRequest()).ready.value
    snapshot = _patiently(lambda: plugin.cut("s", "v"))
    assert _patiently(lambda: plugin.cut("s", "v")) == snapshot
    assert snapshot.size_bytes == 300 * 20_000
    _patiently(lambda: plugin.delete(volume.volume_id))
    _patiently(lambda: plugin.delete_snapshot("s"))
    assert plugin.in_pool() == []


def _patiently(call: Callable[[], T]) -> T:
    """Return what a call returns, asked again for as long as it is told to."""
    until = time.monotonic() + 60
    while True:
        try:
            return call()
        except Refused as refused:
            if refused.code.name != "ABORTED" or time.monotonic() > until:
                raise
            time.sleep(0.05)
