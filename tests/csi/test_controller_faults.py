"""The controller killed, full, or without an answer from its pool: what was promised holds, and nothing is left behind."""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from csi.proto import csi_pb2
from csi.volume_pool import DirectoryPool
from csi.volume_state import Kind
from tests.csi.controlled import MIB, Controlled
from tests.csi.plugin import Refused
from tests.csi.silent_mount import MOUNTS_AND_NEVER_ANSWERS
from tests.host.mount_node import MountNode, eventually

pytestmark = pytest.mark.root
POOLED: dict[str, Any] = {"class": "pooled"}
_STRIDE = 16  # of the points that one run dies at


@pytest.fixture
def dying(node: MountNode) -> Iterator[Controlled]:
    """Return a controller that is not started yet."""
    controller = Controlled(node)
    controller.environment = {"DIES_AT": "0", "POINTS_TO": str(node.work / "points")}
    try:
        yield controller
    finally:
        controller.end()


def _story(controller: Controlled) -> None:
    """Call what makes and removes, waiting for what goes on behind each call."""
    controller.create("v", 8 * MIB)
    data = controller.data("v")
    for number in range(3):
        (data / f"file-{number}").write_text(f"content {number}")
    controller.cut("s", "v")
    controller.restore("restored", "s", 8 * MIB)
    controller.clone("clone", "v", 8 * MIB)
    controller.expand("clone", 16 * MIB)
    for volume in ("clone", "restored", "v"):
        controller.delete(volume)
    controller.delete_snapshot("s")
    assert controller.in_pool() == []


def _count(dying: Controlled) -> int:
    dying.start("tests.csi.dying_plugin")
    _story(dying)
    assert dying.stop() == 0
    return len(Path(dying.environment["POINTS_TO"]).read_text().splitlines())


@pytest.mark.parametrize(
    "first", [1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, _STRIDE + 1))]
)
def test_a_kill_at_any_point_of_making_and_removing(dying: Controlled, first: int) -> None:
    """S4-21, S4-01, S3-15: the same calls again come to the same, whatever was half done."""
    points = _count(dying)
    assert points > 100, points
    for number in range(first, points + 1, _STRIDE):
        dying.environment["DIES_AT"] = str(number)
        dying.start("tests.csi.dying_plugin")
        ended = "whole"  # at the very last points all was answered
        try:
            _story(dying)
        except (Refused, AssertionError) as error:
            ended = str(error)
        what = f"killed at {number} of {points}; its story ended: {ended}"
        eventually(lambda: dying.process.poll() is not None, what=what, timeout_s=30)
        assert dying.process.returncode == -signal.SIGKILL
        dying.environment["DIES_AT"] = "0"
        dying.start("tests.csi.dying_plugin")
        _story(dying)
        dying.stop()


def test_a_kill_among_many_calls_loses_and_doubles_nothing(dying: Controlled) -> None:
    """Everything that was answered is there after each start; the rest is asked for again, and is there once."""
    dying.start()
    answered: list[str] = []
    is_over = threading.Event()

    def ask(worker: int) -> None:
        for number in range(40):
            name = f"v-{worker}-{number}"
            if _insistently(partial(dying.create, name), is_over):
                answered.append(name)

    workers = [threading.Thread(target=ask, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(3):
            eventually(partial(_has_more, answered, len(answered) + 8), what="answers", timeout_s=60)
            dying.kill()
            there = os.listdir(dying.pool / "volumes")
            assert set(answered) <= set(there)
            dying.start()
        for worker in workers:
            worker.join(60)
    finally:
        is_over.set()
        for worker in workers:
            worker.join(60)
    listed = [entry.volume.volume_id for entry in dying.volumes().entries]
    assert listed == sorted(f"v-{worker}-{number}" for worker in range(4) for number in range(40))
    for name in listed:
        dying.delete(name)
    assert dying.in_pool() == []


def _has_more(found: list[str], than: int) -> bool:
    return len(found) > than


def _insistently(call: Callable[[], object], is_over: threading.Event) -> bool:
    while not is_over.is_set():
        try:
            call()
        except Refused as refused:
            if refused.code not in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.ABORTED):
                raise
            time.sleep(0.02)
        else:
            return True
    return False


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_copy_that_was_interrupted_ends_by_itself(dying: Controlled, how: str) -> None:
    """Nobody has to ask again; and it is there once, whole."""
    dying.flags = ("--operation-wait-seconds", "0.001")
    dying.start()
    _patiently(lambda: dying.create("v", 0))
    for number in range(400):
        (dying.data("v") / f"file-{number}").write_bytes(os.urandom(20_000))
    with pytest.raises(Refused, match="ask again"):
        dying.cut("s", "v")
    begun = dying.pool / ".unfinished" / "snapshot-s" / "intent.json"
    done = dying.pool / "snapshots" / "s"
    eventually(lambda: begun.exists() or done.exists(), what="begun", timeout_s=30)
    if how == "kill":
        dying.kill()
    else:
        assert dying.stop() == 0
    dying.start()
    eventually(lambda: len(dying.snapshots().entries) == 1, what="cut", timeout_s=60)
    assert dying.on_the_way() == []
    data = dying.pool / "snapshots" / "s" / "data"
    for number in range(400):
        assert (data / f"file-{number}").read_bytes() == (dying.data("v") / f"file-{number}").read_bytes()
    _patiently(lambda: dying.delete_snapshot("s"))
    _patiently(lambda: dying.delete("v"))
    assert dying.in_pool() == []


def _patiently(call: Callable[[], object]) -> None:
    """Call until it is done."""
    is_over = threading.Event()
    timer = threading.Timer(60, is_over.set)
    timer.start()
    try:
        assert _insistently(call, is_over)
    finally:
        timer.cancel()


def test_a_full_pool(dying: Controlled) -> None:
    """RESOURCE_EXHAUSTED, nothing left behind, and all is well when there is room again."""
    dying.node.run("mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=2000", "full", dying.pool)
    dying.start()
    seen = Path(f"/proc/{dying.node.pid}/root{dying.pool}")
    dying.create("v", 0)
    (seen / "volumes" / "v" / "data" / "file").write_bytes(os.urandom(5 * MIB))
    for call in (lambda: dying.cut("s", "v"), lambda: dying.clone("c", "v", 0)):
        with pytest.raises(Refused, match="is full") as refused:
            call()
        assert refused.value.code.name == "RESOURCE_EXHAUSTED"
        eventually(lambda: set(os.listdir(seen / ".unfinished")) == {"locks"}, what="nothing left")
    assert os.listdir(seen / "volumes") == ["v"]
    assert os.listdir(seen / "snapshots") == []
    (seen / "volumes" / "v" / "data" / "file").write_bytes(b"small")
    assert dying.cut("s", "v").size_bytes == 5
    dying.restore("r", "s", 0)
    taken = _take_all_inodes(seen)
    with pytest.raises(Refused) as refused:
        dying.create("w", MIB)
    assert refused.value.code.name == "RESOURCE_EXHAUSTED"
    dying.delete("v")  # which needs no room
    for path in taken:
        path.unlink()
    dying.create("w", MIB)
    for volume in ("w", "r"):
        dying.delete(volume)
    dying.delete_snapshot("s")
    eventually(lambda: set(os.listdir(seen / ".unfinished")) == {"locks"}, what="nothing left", timeout_s=40)
    assert os.listdir(seen / "volumes") == []


def _take_all_inodes(directory: Path) -> list[Path]:
    taken: list[Path] = []
    while True:
        path = directory / f"inode-{len(taken)}"
        try:
            path.touch()
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - which of its errors ends the loop
            return taken
        taken.append(path)


@pytest.mark.fuse
def test_a_pool_that_hangs_holds_nobody_up(dying: Controlled) -> None:
    """UNAVAILABLE within the bound, for what is in it alone; and the process can be ended."""
    hung = dying.node.work / "hung"
    hung.mkdir()
    server = dying.node.start([sys.executable, "-c", MOUNTS_AND_NEVER_ANSWERS, hung])
    eventually(lambda: dying.node.mounts_beneath(hung), what="mounted", timeout_s=30)
    dying.flags = ("--pool", str(hung), "--pool-timeout-seconds", "0.5")
    dying.offer("hanging", hung)
    try:
        dying.start()
        began = time.monotonic()
        calls: list[Callable[[], object]] = [
            lambda: dying.create("new", **{**POOLED, "class": "hanging"}),
            dying.volumes,
            lambda: dying.expand("gone", MIB),
            lambda: dying.ask("GetCapacity", csi_pb2.GetCapacityRequest(parameters={"class": "hanging"})),
        ]
        for call in calls:
            with pytest.raises(Refused, match="does not answer") as refused:
                call()
            assert refused.value.code.name == "UNAVAILABLE"
        assert dying.create("new", **POOLED).volume_id == "new"
        answer = dying.ask("GetCapacity", csi_pb2.GetCapacityRequest(parameters={"class": "pooled"}))
        assert answer.available_capacity > 0
        assert time.monotonic() - began < 30
        assert dying.stop() == 0
    finally:
        server.kill()


def test_two_controllers_on_one_pool(dying: Controlled) -> None:
    """A leader that goes and one that comes: both answer the same, and nothing is done twice."""
    dying.start()
    errors: list[str] = []
    store = DirectoryPool(str(dying.pool))  # in this process: as another controller would

    def work(offset: int) -> None:
        for number in range(30):
            name = f"v{(number + offset) % 10}"
            try:
                if (number + offset) % 3:
                    dying.create(name)
                else:
                    store.remove(Kind.VOLUME, name)
                    for left in store.unfinished():
                        store.settle(left)
            except Refused as refused:
                if refused.code is not StatusCode.ABORTED:
                    errors.append(str(refused))
            except Exception as error:
                if type(error).__name__ != "OperationPending":
                    errors.append(repr(error))

    workers = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert errors == []
    for entry in dying.volumes().entries:
        assert (dying.data(entry.volume.volume_id)).is_dir()
        assert (dying.pool / "volumes" / entry.volume.volume_id / "budget").is_file()
        dying.delete(entry.volume.volume_id)
    assert dying.in_pool() == []
