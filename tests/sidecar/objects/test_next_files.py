"""Files that are read in the order of their names are in memory before anybody asks; and what an open sees is what it would see without."""

import os
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sidecar.objects import next_files
from sidemount.stores.store import FaultKind
from tests.sidecar.directory.core import run
from tests.sidecar.objects.core import SOMEONE, Kernel, make_kernel
from tests.sidecar.objects.scripted_store import KIB, ScriptedStore, content_of, fault, until

_FILES = 120
_BELIEVED = {"known_timeout_s": 3600, "open_timeout_s": 3600, "missing_timeout_s": 3600}


@pytest.fixture
def store() -> ScriptedStore:
    store = ScriptedStore()
    for number in range(_FILES):
        store.put(_name(number), [content_of(4 * KIB, number)])
    return store


@pytest.fixture
def kernel(store: ScriptedStore, tmp_path: Path) -> Iterator[Kernel]:
    kernel = make_kernel(store, tmp_path, **_BELIEVED)
    yield kernel
    kernel.filesystem.stop()


def _name(number: int) -> str:
    return f"d/{number:04d}"


def _numbers(kernel: Kernel) -> dict[str, int]:
    return kernel.filesystem.volume.next_files.numbers()


def _asked(store: ScriptedStore) -> list[str]:
    return [key for call, key, _, _ in store.asked if call == "get"]


def _read(kernel: Kernel, numbers: Iterator[int] | range | list[int]) -> None:
    for number in numbers:
        assert kernel.cat(_name(number)) == content_of(4 * KIB, number)


def test_files_that_are_read_in_order_are_there_before_anybody_asks(
    kernel: Kernel, store: ScriptedStore
) -> None:
    kernel.listdir("d")
    _read(kernel, range(4))
    for number in range(4, _FILES):
        until(lambda: _name(number) in _asked(store))  # noqa: B023  # it is asked for at once
        _read(kernel, [number])
    assert _numbers(kernel)["hits"] == _FILES - 4
    assert sorted(_asked(store)) == [_name(number) for number in range(_FILES)]  # each once, by whomever
    numbers = _numbers(kernel)
    assert numbers["unused"] == 0
    assert numbers["bytes"] == numbers["files"] * 4 * KIB


def test_nothing_is_fetched_ahead_of_who_reads_at_random(kernel: Kernel, store: ScriptedStore) -> None:
    kernel.listdir("d")
    _read(kernel, random.Random(5).sample(range(_FILES), 40))
    assert len(_asked(store)) == 40


def test_nothing_is_fetched_ahead_where_every_open_asks(store: ScriptedStore, tmp_path: Path) -> None:
    kernel = make_kernel(store, tmp_path, known_timeout_s=3600)
    kernel.listdir("d")
    _read(kernel, range(30))
    assert _asked(store) == [_name(number) for number in range(30)]
    kernel.filesystem.stop()


def test_a_file_that_was_replaced_is_seen_as_soon_as_an_open_asks(
    kernel: Kernel, store: ScriptedStore
) -> None:
    kernel.listdir("d")
    _read(kernel, range(4))
    until(lambda: _numbers(kernel)["files"] >= 12)
    store.put(_name(8), [b"another"])
    known = kernel.filesystem.volume.tree.known
    clock = known.clock
    known.clock = lambda: clock() + 3600
    assert kernel.cat(_name(8)) == b"another"


def test_a_file_that_was_removed_is_missed_as_soon_as_an_open_asks(
    kernel: Kernel, store: ScriptedStore
) -> None:
    kernel.listdir("d")
    _read(kernel, range(4))
    until(lambda: _numbers(kernel)["files"] >= 12)
    node = kernel.node(_name(8))
    store.delete(_name(8))
    known = kernel.filesystem.volume.tree.known
    clock = known.clock
    known.clock = lambda: clock() + 3600
    assert kernel.filesystem.volume.nodes[node]
    with pytest.raises(OSError, match=r"Stale|No such"):
        kernel.cat(_name(8))


def test_what_turns_out_to_be_replaced_is_not_believed_any_more(kernel: Kernel, store: ScriptedStore) -> None:
    """The listing is an hour old at most, and might be believed; but by now it is known to be wrong."""
    kernel.listdir("d")
    store.put(_name(8), [b"another"])
    _read(kernel, range(4))
    until(lambda: _numbers(kernel)["files"] >= 12)
    assert kernel.cat(_name(8)) == b"another"
    _read(kernel, range(9, 30))


def test_a_store_that_fails_is_asked_for_nothing_that_nobody_needs(
    kernel: Kernel, store: ScriptedStore
) -> None:
    kernel.listdir("d")

    def refuse(asked: tuple[str, str, int, int]) -> None:
        if asked[1] > _name(3):
            raise fault(FaultKind.SERVER)

    store.gate = refuse
    _read(kernel, range(4))
    until(lambda: len(_asked(store)) > 4)
    until(lambda: not kernel.filesystem.volume.next_files._walks["d"].fetchers)
    store.gate = lambda asked: None
    before = len(_asked(store))
    assert before <= 4 + 2
    _read(kernel, range(4, 8))
    assert len(_asked(store)) <= before + 4  # it is looked at longer before anything is fetched ahead again


def test_what_others_need_does_not_wait_until_enough_files_are_ahead(
    store: ScriptedStore, tmp_path: Path
) -> None:
    """The threads are those of the read-ahead: whoever reads on and on in a large file would go without."""
    kernel = make_kernel(store, tmp_path, **_BELIEVED, connections=2)  # so one thread
    kernel.listdir("d")
    may = threading.Event()

    def wait(asked: tuple[str, str, int, int]) -> None:
        assert asked[1] <= _name(3) or may.wait(20)

    store.gate = wait
    _read(kernel, range(4))
    until(lambda: len(_asked(store)) == 5)
    before: list[int] = []
    assert kernel.filesystem.volume.reading._threads.submit(lambda: before.append(len(_asked(store))))
    may.set()
    until(lambda: _numbers(kernel)["files"] >= 16)
    assert before == [4 + 8]
    kernel.filesystem.stop()


def test_what_is_ahead_takes_an_eighth_of_the_memory_at_most(store: ScriptedStore, tmp_path: Path) -> None:
    for number in range(40):
        store.put(f"large/{number:02d}", [content_of(60 * KIB, number)])
    kernel = make_kernel(store, tmp_path, **_BELIEVED, memory_cache_bytes=1 << 20, block_bytes=64 * KIB)
    kernel.listdir("large")
    for number in range(40):
        assert kernel.cat(f"large/{number:02d}") == content_of(60 * KIB, number)
        walks = kernel.filesystem.volume.next_files._walks.values()
        assert sum(walk.ahead_bytes for walk in walks) <= (1 << 20) // 8 + 60 * KIB
        assert kernel.filesystem.volume.reading.statistics().memory_bytes <= 1 << 20
    kernel.filesystem.stop()


def test_who_stops_in_the_middle_leaves_his_room_to_others(
    store: ScriptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_files, "_IDLE_S", -1.0)
    for name in ("one", "other"):
        for number in range(40):
            store.put(f"{name}/{number:02d}", [content_of(60 * KIB, number)])
    kernel = make_kernel(store, tmp_path, **_BELIEVED, memory_cache_bytes=1 << 20, block_bytes=64 * KIB)
    walks = kernel.filesystem.volume.next_files._walks

    def has_all(name: str) -> bool:
        return walks[name].ahead_bytes >= (1 << 20) // 8 and not walks[name].fetchers

    for name in ("one", "other"):
        kernel.listdir(name)
        for number in range(5):
            assert kernel.cat(f"{name}/{number:02d}") == content_of(60 * KIB, number)
        until(partial(has_all, name))
    assert walks["one"].ahead_bytes == 0
    assert _numbers(kernel)["unused"] > 0
    kernel.filesystem.stop()


def test_a_file_that_is_written_here_is_read_as_it_was_written(kernel: Kernel, store: ScriptedStore) -> None:
    kernel.listdir("d")
    _read(kernel, range(4))
    until(lambda: _numbers(kernel)["files"] >= 12)
    kernel.unlink(_name(8))
    kernel.put(_name(8), b"of this mount")
    assert kernel.cat(_name(8)) == b"of this mount"
    _read(kernel, range(9, _FILES))


def test_an_open_that_believes_what_is_known_needs_no_thread(kernel: Kernel, store: ScriptedStore) -> None:
    kernel.listdir("d")
    node = kernel.node(_name(0))
    _read(kernel, [0])

    async def none(*_: object) -> None:
        raise AssertionError("nobody has to be asked")

    kernel.filesystem._in_thread = none  # type: ignore[assignment]  # returns nothing, ever
    handle = run(kernel.filesystem.open(node, os.O_RDONLY, SOMEONE)).handle
    assert kernel.read(handle) == content_of(4 * KIB)
    kernel.close(handle)
    with pytest.raises(AssertionError):
        run(kernel.filesystem.open(node, os.O_RDONLY | os.O_TRUNC, SOMEONE))
    store.put(_name(0), [b"another"])
    kernel.filesystem.volume.tree.known.forget(_name(0))
    with pytest.raises(AssertionError):
        run(kernel.filesystem.open(node, os.O_RDONLY, SOMEONE))
