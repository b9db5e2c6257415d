"""The cache volume: bounded, kept over a daemon's end, never wrong, and never in anybody's way."""

import contextlib
import errno
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sidecar.objects import cache_volume
from sidecar.objects.blocks import BlockKey
from sidecar.objects.cache_file import HEADER_BYTES, identity, room_of, write_block
from sidecar.objects.cache_index import TEMPORARY, CacheIndex, number_of, path_of, scan
from sidecar.objects.cache_volume import CacheVolume
from sidecar.objects.reading import Reading
from tests.sidecar.objects.scripted_store import BLOCK, ScriptedStore, content_of, settings, until

BOUND = 20 * room_of(BLOCK)


def key(number: int, etag: str = "etag") -> BlockKey:
    return ("some/key", etag, number)


def of(number: int, etag: str = "etag", size: int = BLOCK) -> memoryview:
    return memoryview(content_of(size, seed=number + len(etag)))


@contextlib.contextmanager
def volume_in(directory: Path, bound: int = BOUND, queue: int = 100 * BLOCK) -> Iterator[CacheVolume]:
    volume = CacheVolume(str(directory), bound, BLOCK, queue)
    try:
        assert volume.wait_ready(20)
        yield volume
    finally:
        volume.close()


def loaded(volume: CacheVolume, number: int, etag: str = "etag", size: int = BLOCK) -> memoryview | None:
    content = memoryview(bytearray(size))
    return content if volume.load(key(number, etag), content) else None


def files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "blocks").rglob("*") if path.is_file())


def room_taken(directory: Path) -> int:
    """Return what all files take, but for those that go while they are counted."""
    taken = 0
    for path in (directory / "blocks").rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            taken += status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0
    return taken


def test_a_successor_finds_what_was_written(tmp_path: Path) -> None:
    with volume_in(tmp_path) as volume:
        for number in range(5):
            volume.offer(key(number), of(number))
        until(lambda: len(volume.index) == 5)
        assert loaded(volume, 3) == of(3)
    with volume_in(tmp_path) as volume:
        assert [loaded(volume, number) for number in range(5)] == [of(number) for number in range(5)]
        assert loaded(volume, 5) is None
        assert volume.faults == 0


def test_bytes_of_another_version_are_never_found(tmp_path: Path) -> None:
    with volume_in(tmp_path) as volume:
        assert volume.store(key(0, "one"), of(0, "one"))
        assert loaded(volume, 0, "other") is None
        assert loaded(volume, 1, "one") is None
        target = Path(path_of(f"{tmp_path}/blocks", number_of(identity(key(0, "other"), BLOCK))))
        target.parent.mkdir(exist_ok=True)
        files(tmp_path)[0].rename(target)
    with volume_in(tmp_path) as volume:
        assert loaded(volume, 0, "other") is None
        assert volume.faults == 1
        assert files(tmp_path) == []


def test_blocks_of_another_size_are_others(tmp_path: Path) -> None:
    with volume_in(tmp_path) as volume:
        assert volume.store(key(0), of(0))
    other = CacheVolume(str(tmp_path), BOUND, 2 * BLOCK, BLOCK)
    assert other.wait_ready(20)
    assert not other.load(key(0), memoryview(bytearray(BLOCK)))
    other.close()


def test_the_bound_holds_and_the_longest_unused_goes_first(tmp_path: Path) -> None:
    with volume_in(tmp_path) as volume:
        for number in range(20):
            assert volume.store(key(number), of(number))
        assert loaded(volume, 0) is not None
        for number in range(20, 30):
            assert volume.store(key(number), of(number))
            assert room_taken(tmp_path) <= BOUND
        there = [number for number in range(30) if volume.has(key(number))]
        assert there == [0, *range(11, 30)]
        assert volume.evicted == 10


def test_a_successor_gives_up_what_its_predecessor_used_least_recently(tmp_path: Path) -> None:
    with volume_in(tmp_path) as volume:
        for number in range(10):
            assert volume.store(key(number), of(number))
        for at, path in enumerate(files(tmp_path)):
            os.utime(path, ns=(at, at))
        assert loaded(volume, 4) is not None
    with volume_in(tmp_path, bound=3 * room_of(BLOCK)) as volume:
        assert len(volume.index) == 3
        assert loaded(volume, 4) == of(4)
        assert room_taken(tmp_path) <= 3 * room_of(BLOCK)


def test_several_writers_keep_the_bound(tmp_path: Path) -> None:
    with volume_in(tmp_path, bound=5 * room_of(BLOCK)) as volume:
        most = 0
        stop = threading.Event()

        def write(seed: int) -> None:
            for number in range(30):
                volume.store(key(seed * 100 + number), of(number))

        def watch() -> None:
            nonlocal most
            while not stop.is_set():
                most = max(most, room_taken(tmp_path))

        watcher = threading.Thread(target=watch)
        watcher.start()
        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        stop.set()
        watcher.join(30)
        assert 0 < most <= 5 * room_of(BLOCK)
        assert volume.index.taken_bytes == len(volume.index) * room_of(BLOCK)


@pytest.mark.parametrize("harm", ["flip", "flip header", "cut", "lengthen", "empty", "zeros"])
def test_what_a_crash_has_left_is_no_content(tmp_path: Path, harm: str) -> None:
    with volume_in(tmp_path) as volume:
        assert volume.store(key(0), of(0))
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    match harm:
        case "flip":
            content[HEADER_BYTES + 1000] ^= 1
        case "flip header":
            content[20] ^= 1
        case "cut":
            del content[-1:]
        case "empty":
            content.clear()
        case "zeros":
            content[4096:] = bytes(len(content) - 4096)
        case "lengthen":
            content += b"more"
    path.write_bytes(content)
    with volume_in(tmp_path) as volume:
        assert loaded(volume, 0) in ((of(0),) if harm == "lengthen" else (None,))
        assert volume.store(key(0), of(0))
        assert loaded(volume, 0) == of(0)


def test_a_part_is_read_of_what_has_been_found_right(tmp_path: Path) -> None:
    part = memoryview(bytearray(100))
    with volume_in(tmp_path) as volume:
        assert volume.store(key(0), of(0))
        assert volume.load_part(key(0), 500, part)
        assert part == of(0)[500:600]
    with volume_in(tmp_path) as volume:
        assert not volume.load_part(key(0), 500, part)
        assert loaded(volume, 0) is not None
        assert volume.load_part(key(0), 500, part)
        assert not volume.load_part(key(1), 500, part)


def test_what_was_not_written_to_its_end_is_removed(tmp_path: Path) -> None:
    (tmp_path / "blocks" / "ab").mkdir(parents=True)
    for name in (f"{TEMPORARY}1-1", f"ab/{TEMPORARY}2-2"):
        (tmp_path / "blocks" / name).write_bytes(b"half")
    (tmp_path / "blocks" / "ab" / "somebody else's").write_bytes(b"kept")
    with volume_in(tmp_path):
        assert [path.name for path in files(tmp_path)] == ["somebody else's"]


# A dying and a starting daemon.


def test_a_successor_reads_while_its_predecessor_dies_and_writes_afterwards(tmp_path: Path) -> None:
    with volume_in(tmp_path) as volume:
        assert volume.store(key(0), of(0))
        successor = CacheVolume(str(tmp_path), BOUND, BLOCK, BLOCK)
        assert not successor.wait_ready(0.3)
        assert loaded(successor, 0) == of(0)
        successor.offer(key(1), of(1))
        assert not successor.store(key(1), of(1))
        assert volume.store(key(2), of(2))
    assert successor.wait_ready(20)
    assert successor.has(key(2))
    assert successor.store(key(1), of(1))
    successor.close()


_WRITER = """
import sys
sys.path[:0] = sys.argv[2].split(":")
from tests.sidecar.objects.test_cache_volume import BOUND, CacheVolume, BLOCK, key, of
volume = CacheVolume(sys.argv[1], BOUND, BLOCK, BLOCK)
assert volume.wait_ready(20)
print("ready", flush=True)
number = int(sys.argv[3])
while True:
    volume.store(key(number), of(number))
    number += 1
"""


def test_a_kill_at_any_instant_leaves_no_wrong_byte_and_no_excess(tmp_path: Path) -> None:
    choice = random.Random(20)
    found = 0
    for round_ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), ":".join(sys.path), str(round_ * 1000)],
            stdout=subprocess.PIPE,
        )
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(choice.uniform(0, 0.03))  # the instant does not matter: that is what is tested
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.communicate(timeout=20)
        assert room_taken(tmp_path) <= BOUND + room_of(BLOCK)  # with one that was being written
        with volume_in(tmp_path) as volume:
            assert room_taken(tmp_path) == volume.index.taken_bytes <= BOUND
            for number in range(round_ * 1000, round_ * 1000 + 1000):
                content = loaded(volume, number)
                assert content in (None, of(number))
                found += content is not None
            assert volume.faults == 0
    assert found > 12


# A volume that does not work is none.


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_write_that_fails_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(temporary: str, name: str, of: bytes, content: memoryview) -> None:
        raise OSError(number, os.strerror(number))

    with volume_in(tmp_path) as volume:
        for at in range(18):
            assert volume.store(key(at), of(at))
        with monkeypatch.context() as patch:
            patch.setattr(cache_volume, "write_block", failing)
            assert not volume.store(key(50), of(50))
        assert volume.faults == 1
        assert volume.index.taken_bytes == room_taken(tmp_path)
        assert len(volume.index) == (16 if number == errno.ENOSPC else 18)
        assert not volume.store(key(51), of(51))  # it has some rest first
        monkeypatch.setattr(cache_volume, "_FAULT_PAUSE_S", 0.0)
        volume._quiet_until_s = 0.0
        assert volume.store(key(52), of(52))


@pytest.mark.root
def test_a_volume_that_is_full_before_its_bound_goes_on_with_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_volume, "_FAULT_PAUSE_S", 0.0)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "cache", tmp_path], check=True)
    try:
        with volume_in(tmp_path, bound=100 << 20) as volume:
            stored = [number for number in range(60) if volume.store(key(number), of(number))]
            assert volume.faults > 0
            assert len(stored) > 20
            assert loaded(volume, stored[-1]) == of(stored[-1])
            assert volume.index.taken_bytes == room_taken(tmp_path) <= 1 << 20
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_place_that_is_none_is_no_fault_of_reads(tmp_path: Path) -> None:
    (tmp_path / "blocks").write_bytes(b"")
    store = ScriptedStore()
    content = content_of(10 * BLOCK)
    info = store.put("key", [content])
    reading = Reading(store, settings(disk_cache_bytes=BOUND), str(tmp_path))
    reader = reading.open("key", info)
    assert b"".join(bytes(reader.read(at, BLOCK)) for at in range(0, info.size, BLOCK)) == content
    assert reading.statistics().volume_faults > 0
    reading.close()


def test_a_volume_that_does_not_work_at_first_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_volume, "_AGAIN_S", 0.01)
    (tmp_path / "blocks").write_bytes(b"")
    volume = CacheVolume(str(tmp_path), BOUND, BLOCK, BLOCK)
    until(lambda: volume.faults > 1)
    assert not volume.store(key(0), of(0))
    (tmp_path / "blocks").unlink()
    assert volume.wait_ready(20)
    assert volume.store(key(0), of(0))
    volume.close()


def test_files_that_somebody_removes_are_only_not_there(tmp_path: Path) -> None:
    with volume_in(tmp_path) as volume:
        assert volume.store(key(0), of(0))
        files(tmp_path)[0].unlink()
        assert loaded(volume, 0) is None
        assert volume.index.taken_bytes == 0
        assert volume.store(key(0), of(0))


def test_what_it_cannot_keep_up_with_is_dropped_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, real = threading.Event(), write_block

    def slow(temporary: str, name: str, of: bytes, content: memoryview) -> None:
        assert may.wait(20)
        real(temporary, name, of, content)

    monkeypatch.setattr(cache_volume, "write_block", slow)
    with volume_in(tmp_path, queue=3 * BLOCK) as volume:
        began = time.monotonic()
        for number in range(10):
            volume.offer(key(number), of(number))
        assert time.monotonic() - began < 5
        assert volume.dropped == 7
        may.set()
        until(lambda: len(volume.index) == 3)
        volume.offer(key(20), of(20))
        until(lambda: volume.has(key(20)))


def test_a_scan_of_many_files_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may = threading.Event()

    def slow(directory: str, breathe: Callable[[], bool]) -> Iterator[list[tuple[int, int]]]:
        assert may.wait(20)
        yield from scan(directory, breathe)

    with volume_in(tmp_path) as volume:
        assert volume.store(key(0), of(0))
    monkeypatch.setattr(cache_volume, "scan", slow)
    volume = CacheVolume(str(tmp_path), BOUND, BLOCK, BLOCK)
    assert loaded(volume, 0) == of(0)
    assert loaded(volume, 1) is None
    volume.offer(key(1), of(1))
    may.set()
    assert volume.wait_ready(20)
    assert volume.has(key(0))
    volume.close()


def test_room_that_others_are_writing_into_is_not_given_twice() -> None:
    index = CacheIndex(3 * room_of(BLOCK))
    for number in range(3):
        assert index.reserve(BLOCK) == []
        index.add(number, room_of(BLOCK))
    assert index.reserve(BLOCK) == [(0, room_of(BLOCK))]
    index.release(room_of(BLOCK))
    assert index.taken_bytes == 3 * room_of(BLOCK)
    assert index.reserve(10 * BLOCK) is None


# Under readers.


def test_a_second_daemon_asks_the_store_for_nothing_but_the_version(tmp_path: Path) -> None:
    store = ScriptedStore()
    content = content_of(6 * BLOCK + 5)
    info = store.put("key", [content])
    for _ in range(2):
        store.asked.clear()
        reading = Reading(store, settings(disk_cache_bytes=BOUND), str(tmp_path))
        volume = reading._volume
        assert volume is not None
        assert volume.wait_ready(20)
        assert reading.fetch_at_open("key", info) == info
        reader = reading.open("key", info)
        for number, at in enumerate(range(0, info.size, BLOCK)):
            assert reader.read(at, BLOCK) == content[at : at + BLOCK]
            until(partial(volume.has, ("key", info.etag, number)))
        statistics = reading.statistics()
        reading.close()
    assert store.calls() == ["get"]
    assert statistics.store_bytes == 0
    assert statistics.volume_read_bytes == info.size


def test_what_waits_to_be_written_is_counted_no_more_when_writing_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each end would leave less room in the queue, until nothing is taken any more."""
    monkeypatch.setattr(cache_volume, "_AGAIN_S", 0.0)

    def fail(*arguments: object) -> bool:
        raise MemoryError

    with volume_in(tmp_path, queue=3 * BLOCK) as volume:
        for faults in range(1, 6):  # more than the queue has room for
            with monkeypatch.context() as patch:
                patch.setattr(volume, "store", fail)
                volume.offer(key(0), of(0))
                until(lambda: volume.faults == faults)  # noqa: B023  # it is asked for at once
            until(lambda: volume.is_ready)
        volume.offer(key(1), of(1))
        until(lambda: loaded(volume, 1) == of(1))


def test_a_block_that_is_not_written_for_want_of_memory_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    with volume_in(tmp_path) as volume:
        monkeypatch.setattr(cache_volume, "write_block", fail)
        assert not volume.store(key(0), of(0))
        assert volume.index.taken_bytes == 0
        assert volume.faults == 1
