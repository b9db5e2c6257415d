"""Operations that wait for the store run beside each other, and no other waits for them: on a real mount, and both runtimes."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from sidecar.daemon_session import WORKERS_MAX
from tests.sidecar.directory.gate import GATE, Gate
from tests.sidecar.directory.harness import Mounted, mounted

pytestmark = [pytest.mark.fuse, pytest.mark.root]

_THREADS = 16
_LONGEST_S = 60.0


@dataclass
class Crowd:
    """Applications that sync a file each, and wait."""

    volume: Mounted
    gate: Gate
    pool: ThreadPoolExecutor

    def sync(self, count: int) -> list[Future[None]]:
        """Have so many begin; return when as many wait for the store as may at once."""
        self.gate.shut()
        waiting = [self.pool.submit(self._sync_one, number) for number in range(count)]
        until(lambda: self.gate.waiting() >= min(count, _THREADS))
        return waiting

    def _sync_one(self, number: int) -> None:
        fd = os.open(self.volume.path / f"slow{number}", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.write(fd, b"content")
            os.fsync(fd)
        finally:
            os.close(fd)


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + _LONGEST_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def do_everything_quick(root: Path, name: str) -> None:
    """Look, list, make, write, read, rename and remove."""
    (root / name).mkdir()
    path = root / name / "f"
    path.write_text(name)
    assert path.read_text() == name
    path.rename(root / name / "g")
    assert os.listdir(root / name) == ["g"]
    assert (root / name / "g").stat().st_size == len(name)
    (root / name / "g").unlink()
    (root / name).rmdir()


@pytest.fixture(params=["poll", "trio"])
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    source = tmp_path / "source"
    source.mkdir()
    gate = Gate(tmp_path / "gate")
    gate.shut()
    gate.open()
    arguments = ("--runtime", request.param, "--store", "tests.sidecar.directory.gate:gated")
    environment = {GATE: str(tmp_path / "gate")}
    with (
        mounted(tmp_path, source, *arguments, environment=environment) as volume,
        ThreadPoolExecutor(4 * WORKERS_MAX) as pool,
    ):
        try:
            yield Crowd(volume, gate, pool)
        finally:
            if (tmp_path / "gate").exists():
                gate.open()


def test_nothing_waits_for_more_slow_operations_than_there_are_threads(crowd: Crowd) -> None:
    slow = crowd.sync(WORKERS_MAX - 2)
    for number in range(10):
        do_everything_quick(crowd.volume.path, f"quick{number}")
    assert not any(future.done() for future in slow), "they were to wait all the while"
    crowd.gate.open()
    for future in slow:
        future.result(_LONGEST_S)


def test_more_slow_operations_than_workers_all_come_to_their_end(crowd: Crowd) -> None:
    """Whoever comes when every worker waits is served as soon as one does not any more. Twice: no worker is lost."""
    for turn in range(2):
        slow = crowd.sync(3 * WORKERS_MAX)
        quick = crowd.pool.submit(do_everything_quick, crowd.volume.path, f"quick{turn}")
        crowd.gate.open()
        for future in (*slow, quick):
            future.result(_LONGEST_S)
        assert crowd.gate.waiting() == 3 * WORKERS_MAX
    do_everything_quick(crowd.volume.path, "afterwards")
