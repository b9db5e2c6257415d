"""Files that are read at random: fetched as a whole once that is worth it, never beyond what may be kept, and only while somebody reads."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.objects import file_heat
from sidecar.objects.block_costs import BlockCosts
from sidecar.objects.reading import Reader, Reading
from sidemount.stores.store import ObjectInfo, StoreFault
from tests.sidecar.objects.scripted_store import (
    BLOCK,
    Asked,
    ScriptedStore,
    content_of,
    fault,
    settings,
    until,
)

LARGE = 4 * BLOCK  # of a block: worth being read in parts
_MEMORY = 128 * BLOCK
_PART = 512


@contextmanager
def made(store: ScriptedStore, cache: Path | None = None, **values: object) -> Iterator[Reading]:
    given = {"block_bytes": LARGE, "memory_cache_bytes": _MEMORY} | values
    reading = Reading(store, settings(**given), "" if cache is None else str(cache))
    try:
        yield reading
    finally:
        reading.close()


def put(store: ScriptedStore, blocks: int, key: str = "key") -> tuple[ObjectInfo, bytes]:
    content = content_of(blocks * LARGE - 1000, len(key))
    return store.put(key, [content]), content


def read(reader: Reader, content: bytes, dice: random.Random, parts: int) -> None:
    """Read parts, each in a block that is another than the last one, so that no block is fetched for its own sake."""
    blocks = list(range(len(content) // LARGE))
    for number in range(parts):
        offset = blocks[number % len(blocks)] * LARGE + dice.randrange(LARGE // _PART - 8) * _PART
        found = reader.read_now(offset, _PART)
        got = bytes(reader.read(offset, _PART) if found is None else found)
        assert got == content[offset : offset + _PART]


def keep_reading(reader: Reader, content: bytes, condition: Callable[[], bool]) -> None:
    dice = random.Random(1)

    def done() -> bool:
        read(reader, content, dice, len(content) // LARGE)
        return condition()

    until(done)


def test_a_file_that_is_read_at_random_is_fetched_once_and_then_read_from_memory() -> None:
    store = ScriptedStore()
    info, content = put(store, 20)
    with made(store) as reading:
        reader = reading.open("key", info)
        read(reader, content, random.Random(0), 16)
        keep_reading(reader, content, lambda: reading.statistics().memory_bytes >= info.size)
        asked = len(store.asked)
        read(reader, content, random.Random(2), 500)
        assert len(store.asked) == asked
        statistics = reading.statistics()
        assert statistics.whole_files == 1
        assert statistics.store_bytes <= info.size + 16 * _PART + 2 * LARGE
        assert statistics.memory_bytes <= statistics.memory_bound_bytes


def test_a_few_reads_fetch_nothing() -> None:
    store = ScriptedStore()
    info, content = put(store, 20)
    with made(store) as reading:
        read(reading.open("key", info), content, random.Random(0), 15)
        assert {size for _, size in store.gets()} == {_PART}


def test_what_memory_cannot_hold_is_not_fetched() -> None:
    store = ScriptedStore()
    info, content = put(store, 30)  # of 32 that memory has, which is more than the share of one
    with made(store) as reading:
        read(reading.open("key", info), content, random.Random(0), 120)
        assert reading.statistics().whole_files == 0
        assert reading.statistics().memory_bytes <= LARGE


def test_it_goes_to_the_cache_volume_if_memory_cannot_hold_it(tmp_path: Path) -> None:
    """A successor has it as well."""
    store = ScriptedStore()
    info, content = put(store, 30)
    values = {"disk_cache_bytes": 64 * LARGE, "memory_cache_bytes": _MEMORY // 2}
    with made(store, tmp_path, **values) as reading:
        volume = reading._volume
        assert volume is not None
        keys = [reading._blocks.key(info, number) for number in range(30)]
        reader = reading.open("key", info)
        keep_reading(reader, content, lambda: all(volume.has(key) for key in keys))
        until(lambda: not reader._file.is_wanted)
        assert reading.statistics().whole_files > 0
        asked = len(store.asked)
        read(reader, content, random.Random(2), 300)
        assert len(store.asked) == asked
        assert reading.statistics().memory_bytes <= _MEMORY // 2
    with made(store, tmp_path, **values) as successor:
        assert successor._volume is not None
        assert successor._volume.wait_ready(20)
        read(successor.open("key", info), content, random.Random(3), 300)
        assert len(store.asked) == asked


def test_two_files_that_do_not_fit_together_are_not_both_fetched() -> None:
    store = ScriptedStore()
    one, content = put(store, 16)
    other, other_content = put(store, 16, "other")
    with made(store) as reading:
        first, second = reading.open("key", one), reading.open("other", other)
        keep_reading(first, content, lambda: reading.statistics().memory_bytes >= one.size)
        asked = len(store.asked)
        for _ in range(5):
            read(first, content, random.Random(4), 16)
            read(second, other_content, random.Random(5), 16)
        assert reading.statistics().whole_files == 1
        assert {key for _, key, _, _ in store.asked[asked:]} == {"other"}


def test_fetching_ends_when_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_heat, "_IDLE_S", -1.0)
    store = ScriptedStore()
    info, content = put(store, 20)
    with made(store) as reading:
        reader = reading.open("key", info)
        read(reader, content, random.Random(0), 16)
        until(lambda: reading.statistics().whole_files == 1 and not reader._file.is_wanted)
        assert all(size == _PART for _, size in store.gets())


def test_what_fails_is_given_up_and_readers_still_get_what_is_right() -> None:
    store = ScriptedStore()
    info, content = put(store, 20)

    def fail(asked: Asked) -> None:
        if asked[3] > _PART:
            raise fault()

    store.gate = fail
    with made(store) as reading:
        reader = reading.open("key", info)
        with pytest.raises(StoreFault):
            read(reader, content, random.Random(6), 10_000)
        store.gate = lambda asked: None
        keep_reading(reader, content, lambda: reading.statistics().memory_bytes >= info.size)


def test_a_replaced_object_is_never_mixed_with_its_successor() -> None:
    store = ScriptedStore()
    info, content = put(store, 20)
    with made(store) as reading:
        reader = reading.open("key", info)
        gate = threading.Event()

        def slow(asked: Asked) -> None:
            if asked[3] > _PART and asked[2] >= 8 * LARGE:
                assert gate.wait(20)

        store.gate = slow
        keep_reading(reader, content[: 8 * LARGE], lambda: reading.statistics().whole_files == 1)
        newer = content_of(20 * LARGE - 1000, 99)
        new = store.put("key", [newer])
        gate.set()
        wrong = stale = 0
        for number in range(20):
            try:
                got = bytes(reader.read(number * LARGE + 100, _PART))
            except StoreFault:
                stale += 1
            else:
                wrong += got != content[number * LARGE + 100 :][:_PART]
        assert not wrong
        assert stale
        again = reading.open("key", new)
        read(again, newer, random.Random(8), 200)


@pytest.mark.parametrize(
    ("block_s", "expected"), [(0.004, 4.0), (0.0001, 2.0), (1.0, 16.0)], ids=["measured", "least", "most"]
)
def test_a_block_is_worth_as_many_reads_as_it_lasts_longer(block_s: float, expected: float) -> None:
    costs = BlockCosts(LARGE)
    assert costs.ratio == 6
    for _ in range(20):
        costs.note(4096, 0.001)
        costs.note(LARGE, block_s)
    assert costs.ratio == pytest.approx(expected)
    assert costs.of(LARGE) == pytest.approx(expected)
    assert costs.of(0) == 1
