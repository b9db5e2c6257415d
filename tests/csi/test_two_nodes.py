"""Two plugins in two mount namespaces over one pool, as on two nodes: what one has written the other one sees, counts and cuts."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from csi.proto import csi_pb2
from sidemount.host import budget
from tests.csi.controlled import MIB, Controlled, capability
from tests.csi.plugin import MULTI_WRITER, SINGLE_WRITER
from tests.host.mount_node import ROOT, MountNode, eventually, scratch_directory

pytestmark = [pytest.mark.root, pytest.mark.fuse]
KIB = 1 << 10
ACTOR = "0f5e7a1c-3b6d-4c2e-9a8f-1d2c3b4a5e6f"
NAME = f"substrate-{ACTOR}-workspace"


class Node(Controlled):
    """A plugin whose pool may be another one's."""

    shared: Path | None = None

    @property
    def pool(self) -> Path:
        """The pool of both."""
        return self.shared or self.node.work / "pool"

    def hold(self, volume: csi_pb2.Volume, target: str = "t", mode: int = MULTI_WRITER) -> Path:
        """Publish, and return where it is seen."""
        request = self.provisioned_request(volume, target)
        request.volume_capability.CopyFrom(capability(mode))
        self.call("Node", "NodePublishVolume", request)
        return self.seen(target)


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """Return two that run."""
    with scratch_directory() as one, scratch_directory() as two:
        first, second = Node(MountNode(one), role="all"), Node.__new__(Node)
        second.shared = first.pool
        Node.__init__(second, MountNode(two), role="all")
        try:
            first.start()
            second.start()
            yield first, second
        finally:
            for plugin in (first, second):
                if hasattr(plugin, "process"):
                    plugin.end()
                plugin.node.close()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "how", ["kept", "restarted", "daemon killed", pytest.param("keeper killed", marks=pytest.mark.slow)]
)
def test_S0_15_S0_16_a_volume_is_hibernated_on_one_node_and_resumed_on_another(
    nodes: tuple[Node, Node], how: str
) -> None:
    """S0-27, too. What was written and closed is there when the unpublish returns, whatever has died; the first node has nothing of it."""
    first, second = nodes
    volume = first.create(NAME, 64 * MIB)
    digests: dict[str, str] = {}
    for number in range(4):
        here, there = (first, second) if number % 2 == 0 else (second, first)
        seen = here.hold(volume, mode=SINGLE_WRITER)
        for name, digest in digests.items():
            assert _digest(seen / name) == digest
        path = seen / f"file-{number}"
        path.write_bytes(os.urandom(MIB))
        digests[path.name] = _digest(path)
        held = (seen / "held").open("ab", buffering=0)
        held.write(b"%d" % number)
        if how == "restarted":
            here.kill()
            here.start()
        elif how == "daemon killed":
            os.kill(here.first_daemon(), 9)
        elif how == "keeper killed":
            os.kill(here.keeper(), 9)
        here.unpublish("t", volume.volume_id)
        assert here.leftovers() == []
        with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
            held.write(b"too late")
        held.close()
        assert there.leftovers() == []
    seen = second.hold(volume)
    assert (seen / "held").read_text() == "0123"
    second.unpublish("t", volume.volume_id)
    second.delete(volume.volume_id)
    assert first.in_pool() == []


def test_S4_03_each_node_sees_what_the_other_has_closed(nodes: tuple[Node, Node]) -> None:
    """S4-38: at once, contents, sizes, names and modes, though both have looked before; also what is not closed yet."""
    first, second = nodes
    volume = first.create("v", 64 * MIB)
    here, there = first.hold(volume), second.hold(volume)
    for number in range(40):
        content = os.urandom(1 + number * 997)
        (here / "file").write_bytes(content)
        assert (there / "file").read_bytes() == content
        assert (there / "file").stat().st_size == len(content)
        (here / f"name-{number}").mkdir()
        assert (there / f"name-{number}").is_dir()
        assert len(list(there.iterdir())) == 2
        (there / f"name-{number}").rename(there / "renamed")
        assert not (here / f"name-{number}").exists()
        (here / "renamed").rmdir()
        assert not (there / "renamed").exists()
        (here / "file").chmod(0o600 + number % 8)
        assert (there / "file").stat().st_mode & 0o777 == 0o600 + number % 8
        here, there = there, here
    big = os.urandom(8 * MIB)
    with (here / "big").open("wb") as file:
        file.write(big)
        file.flush()
        assert (there / "big").read_bytes() == big
    for plugin in nodes:
        plugin.unpublish("t", "v")
    first.delete("v")
    assert first.leftovers() == second.leftovers() == first.in_pool() == []


def test_a_limit_is_one_for_both_nodes_to_the_byte(nodes: tuple[Node, Node]) -> None:
    """S4-15, S4-17, S4-35: filled from both at once, given back by either, raised for both; and counted again by hand."""
    first, second = nodes
    volume = first.create("v", MIB)
    places = first.hold(volume), second.hold(volume)
    with ThreadPoolExecutor(2) as writers:
        written = list(writers.map(_fill, places))
    assert sum(written) == MIB
    assert all(written)
    for seen in places:
        with pytest.raises(OSError, match="quota") as refused:
            (seen / "more").write_bytes(b"x")
        assert refused.value.errno == errno.EDQUOT
        (seen / "more").unlink()
    min(places[0].glob("fill-*"), key=lambda path: path.stat().st_size).unlink()
    (places[1] / "back").write_bytes(b"x" * KIB)
    assert second.expand("v", 2 * MIB).capacity_bytes == 2 * MIB
    for seen in places:
        assert os.statvfs(seen).f_blocks * os.statvfs(seen).f_frsize == 2 * MIB
    (places[0] / "grown").write_bytes(b"x" * MIB)
    assert _fill(places[1]) > 0
    directory = first.pool / "volumes" / "v"
    assert budget.read(str(directory)).used == 2 * MIB

    # Behind the mounts' backs, as docs/quota.md says not to; and the way back that it tells.
    (first.data("v") / "grown").unlink()
    with pytest.raises(OSError, match="quota"):
        (places[1] / "after").write_bytes(b"x")
    program = f"from sidemount.host import budget; print(budget.recount({str(directory)!r}, 600))"
    counted = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert counted.stdout.strip() == f"Budget(limit={2 * MIB}, used={MIB})"
    (places[1] / "after").write_bytes(b"x" * MIB)
    with pytest.raises(OSError, match="quota"):
        (places[0] / "after").write_bytes(b"x" * (MIB + 1))
    for plugin in nodes:
        plugin.unpublish("t", "v")
    first.delete("v")
    assert first.leftovers() == second.leftovers() == first.in_pool() == []


def test_a_node_cuts_what_the_other_one_writes(nodes: tuple[Node, Node]) -> None:
    """S4-40: each file counts up after the one before it, so a cut of one moment has no later one ahead; restored on the other node."""
    first, second = nodes
    volume = first.create("v", 64 * MIB)
    first.hold(volume)
    seen = second.hold(volume)
    is_over = threading.Event()
    rounds = [0]

    def write() -> None:
        files = [os.open(seen / f"file-{n}", os.O_RDWR | os.O_CREAT, 0o600) for n in range(5)]
        while not is_over.is_set():
            rounds[0] += 1
            for file in files:
                os.pwrite(file, b"%020d" % rounds[0], 0)
        for file in files:
            os.close(file)

    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(write)
        try:
            for name in ("s1", "s2"):
                eventually(_more_than(rounds, rounds[0] + 5, writing.done), what="it writes", timeout_s=30)
                first.cut(name, "v")
                least = rounds[0]
                eventually(_more_than(rounds, least + 5, writing.done), what="it goes on", timeout_s=30)
        finally:
            is_over.set()
        writing.result(30)
    before = -1
    for name in ("s1", "s2"):
        restored = second.restore(f"of-{name}", name, 64 * MIB)
        shown = first.hold(restored, f"of-{name}")
        counts = [int((shown / f"file-{n}").read_text()) for n in range(5)]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] - counts[-1] <= 1
        assert before < counts[-1] <= rounds[0]
        before = counts[0]
        first.unpublish(f"of-{name}", f"of-{name}")
        first.delete(f"of-{name}")
        second.delete_snapshot(name)
    for plugin in nodes:
        plugin.unpublish("t", "v")
    second.delete("v")
    assert first.leftovers() == second.leftovers() == first.in_pool() == []


def _more_than(rounds: list[int], least: int, is_done: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: is_done() or rounds[0] > least


def _fill(seen: Path) -> int:
    """Write until the volume is full, at last byte by byte; return how many bytes are written."""
    written, size = 0, 4_321
    with (seen / f"fill-{os.urandom(4).hex()}").open("xb", buffering=0) as file:
        while size:
            try:
                written += file.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.EDQUOT  # noqa: PT017 - which of its errors ends the loop
                size //= 8
    return written
