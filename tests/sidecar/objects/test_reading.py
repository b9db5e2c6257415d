"""What readers get is the content of one version, whatever is cached, read ahead, changed or broken meanwhile."""

import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from sidecar.objects.reading import Reader, Reading
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault
from tests.sidecar.objects.scripted_store import (
    BLOCK,
    KIB,
    Asked,
    ScriptedStore,
    content_of,
    fault,
    settings,
    until,
)


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
def reading(store: ScriptedStore) -> Iterator[Reading]:
    before = threading.active_count()
    reading = Reading(store, settings(), "")
    yield reading
    reading.close()
    until(lambda: threading.active_count() <= before)


@pytest.fixture
def large_blocks(store: ScriptedStore) -> Iterator[Reading]:
    """Blocks that are worth being read in parts."""
    reading = Reading(store, settings(block_bytes=4 * BLOCK, memory_cache_bytes=64 * BLOCK), "")
    yield reading
    reading.close()


def whole(reader: Reader, offset: int, size: int) -> bytes:
    """Read as the filesystem does."""
    found = reader.read_now(offset, size)
    return bytes(reader.read(offset, size) if found is None else found)


def put(store: ScriptedStore, key: str, size: int, seed: int = 0) -> tuple[ObjectInfo, bytes]:
    content = content_of(size, seed)
    return store.put(key, [content]), content


def test_read_to_its_end_an_object_is_fetched_once(reading: Reading, store: ScriptedStore) -> None:
    info, content = put(store, "key", 20 * BLOCK + 100)
    reader = reading.open("key", info)
    got = b"".join(whole(reader, offset, 16 * KIB) for offset in range(0, info.size + BLOCK, 16 * KIB))
    assert got == content
    statistics = reading.statistics()
    assert info.size <= statistics.store_bytes <= info.size + 2 * BLOCK
    assert statistics.hits + statistics.misses >= info.size // (16 * KIB)
    assert statistics.memory_bytes <= statistics.memory_bound_bytes == 32 * BLOCK


def test_blocks_ahead_are_there_before_anybody_asks(reading: Reading, store: ScriptedStore) -> None:
    info, _ = put(store, "key", 8 * BLOCK)
    reader = reading.open("key", info)
    for offset in range(0, BLOCK, 16 * KIB):
        whole(reader, offset, 16 * KIB)
    until(lambda: reader.read_now(BLOCK, 16 * KIB) is not None)
    assert (BLOCK, BLOCK) in store.gets()


def test_a_random_read_gets_what_it_asks_for_and_no_more(large_blocks: Reading, store: ScriptedStore) -> None:
    info, content = put(store, "key", 30 * BLOCK)
    reader = large_blocks.open("key", info)
    assert whole(reader, 7 * BLOCK + 4096, 4096) == content[7 * BLOCK + 4096 :][:4096]
    assert store.gets() == [(7 * BLOCK + 4096, 4096)]
    assert large_blocks.statistics().exact_reads == 1


def test_several_random_reads_in_a_block_fetch_it(large_blocks: Reading, store: ScriptedStore) -> None:
    info, content = put(store, "key", 30 * BLOCK)
    reader = large_blocks.open("key", info)
    block = 20 * BLOCK
    for at in (60, 2, 31, 45, 12, 55, 20, 38):
        assert whole(reader, block + at * KIB, 64) == content[block + at * KIB :][:64]
    assert store.gets()[-1] == (block, 4 * BLOCK)
    assert len(store.gets()) == 6


def test_a_read_over_the_edge_of_blocks_is_one_request(reading: Reading, store: ScriptedStore) -> None:
    info, content = put(store, "key", 30 * BLOCK)
    reader = reading.open("key", info)
    offset = 10 * BLOCK - 1000
    assert whole(reader, offset, 2000) == content[offset : offset + 2000]
    assert store.gets() == [(offset, 2000)]


def test_large_random_reads_borrow_memory_within_its_bound(
    large_blocks: Reading, store: ScriptedStore
) -> None:
    info, content = put(store, "key", 400 * BLOCK)
    reader = large_blocks.open("key", info)
    kept: list[tuple[int, memoryview | bytes]] = []
    for number in range(90, 0, -1):
        offset = number * 4 * BLOCK + 100
        kept.append((offset, reader.read(offset, 2 * BLOCK)))
        assert large_blocks.statistics().memory_bytes <= 64 * BLOCK
        del kept[:-5]
        assert all(view == content[at : at + 2 * BLOCK] for at, view in kept)
    assert large_blocks.statistics().memory_bytes <= 8 * 4 * BLOCK
    assert large_blocks.statistics().exact_reads == 90


def test_past_the_end_is_nothing(reading: Reading, store: ScriptedStore) -> None:
    info, content = put(store, "key", 100)
    reader = reading.open("key", info)
    assert whole(reader, 100, 10) == whole(reader, 5000, 10) == b""
    assert whole(reader, 90, 100) == content[90:]
    empty, _ = put(store, "empty", 0)
    assert whole(reading.open("empty", empty), 0, 10) == b""
    assert len(store.gets()) == 1


def test_views_are_of_the_cache_itself(reading: Reading, store: ScriptedStore) -> None:
    info, _ = put(store, "key", 1000)
    reader = reading.open("key", info)
    whole(reader, 0, 1000)
    one, other = reader.read_now(0, 1000), reader.read_now(0, 1000)
    assert one is not None
    assert other is not None
    assert one.obj is other.obj


def test_handles_share_what_is_cached(reading: Reading, store: ScriptedStore) -> None:
    info, content = put(store, "key", 1000)
    assert whole(reading.open("key", info), 0, 1000) == content
    assert in_memory(reading.open("key", info), 0, 1000) == content
    assert len(store.gets()) == 1


def in_memory(reader: Reader, offset: int, size: int) -> bytes:
    found = reader.read_now(offset, size)
    assert found is not None
    return bytes(found)


# Versions.


def test_a_reader_keeps_what_it_has_of_its_version_and_the_rest_is_stale(
    reading: Reading, store: ScriptedStore
) -> None:
    info, content = put(store, "key", 4 * BLOCK)
    reader = reading.open("key", info)
    assert whole(reader, 0, 4096) == content[:4096]
    assert whole(reader, 4096, 16 * KIB) == content[4096:][: 16 * KIB]
    until(lambda: reader.read_now(BLOCK, 100) is not None)
    put(store, "key", 4 * BLOCK, seed=9)
    assert whole(reader, 2 * KIB, 100) == content[2 * KIB :][:100]
    for offset in (3 * BLOCK, 3 * BLOCK + 100):
        with pytest.raises(StoreFault) as caught:
            whole(reader, offset, 50)
        assert caught.value.errno == errno.ESTALE
    assert reading.statistics().stale >= 2


def test_what_is_deleted_is_stale_too(reading: Reading, store: ScriptedStore) -> None:
    info, _ = put(store, "key", 4 * BLOCK)
    reader = reading.open("key", info)
    store.delete("key")
    with pytest.raises(StoreFault) as caught:
        whole(reader, 0, 100)
    assert caught.value.errno == errno.ESTALE


def test_a_store_that_ignores_conditions_makes_no_mix(reading: Reading, store: ScriptedStore) -> None:
    info, _ = put(store, "key", 4 * BLOCK)
    real = store.get
    store.get = lambda key, offset, buffer, etag="", unless="": real(key, offset, buffer)  # type: ignore[method-assign,misc]  # forgets them
    put(store, "key", 4 * BLOCK, seed=3)
    with pytest.raises(StoreFault) as caught:
        whole(reading.open("key", info), 0, 100)
    assert caught.value.errno == errno.ESTALE


def test_too_few_bytes_are_a_fault(reading: Reading, store: ScriptedStore) -> None:
    info, _ = put(store, "key", 100)
    longer = info._replace(size=200)
    with pytest.raises(StoreFault) as caught:
        whole(reading.open("key", longer), 0, 200)
    assert caught.value.kind is FaultKind.TRUNCATED


# Opening.


def test_an_open_brings_a_small_object_in_one_round_trip(reading: Reading, store: ScriptedStore) -> None:
    info, content = put(store, "key", 5000)
    for known in (info, None):
        store.asked.clear()
        reading.forget("key")
        opened = reading.fetch_at_open("key", known)
        assert opened == info
        assert in_memory(reading.open("key", opened), 0, 5000) == content
        assert store.calls() == ["get"]
    assert reading.statistics().memory_bytes <= 5000 + BLOCK


def test_an_open_of_what_is_cached_brings_nothing(reading: Reading, store: ScriptedStore) -> None:
    info, _ = put(store, "key", 5000)
    reading.fetch_at_open("key", info)
    before = reading.statistics().store_bytes
    assert reading.fetch_at_open("key", info) == info
    assert reading.statistics().store_bytes == before


def test_an_open_sees_another_version_with_its_content(reading: Reading, store: ScriptedStore) -> None:
    info, _ = put(store, "key", 5000)
    reading.fetch_at_open("key", info)
    for size in (6000, 100, 0, 3 * BLOCK):
        newer, content = put(store, "key", size, seed=size)
        opened = reading.fetch_at_open("key", info)
        assert opened == newer
        assert whole(reading.open("key", opened), 0, size) == content
        info = opened


def test_an_open_of_a_large_object_brings_only_its_beginning(store: ScriptedStore) -> None:
    reading = Reading(store, settings(block_bytes=1 << 20, memory_cache_bytes=16 << 20), "")
    info, content = put(store, "key", 5 << 20)
    assert reading.fetch_at_open("key", info) == info
    reader = reading.open("key", info)
    assert in_memory(reader, 0, 64 * KIB) == content[: 64 * KIB]
    assert reader.read_now(64 * KIB, 128 * KIB) is None
    assert bytes(reader.read(64 * KIB, 128 * KIB)) == content[64 * KIB :][: 128 * KIB]
    assert store.gets()[0] == (0, 128 * KIB)
    assert reading.fetch_at_open("key", info) == info
    reading.close()


def test_an_open_of_nothing_is_missing_and_of_something_empty_is_not(
    reading: Reading, store: ScriptedStore
) -> None:
    with pytest.raises(StoreFault) as caught:
        reading.fetch_at_open("key", None)
    assert caught.value.kind is FaultKind.MISSING
    info, _ = put(store, "key", 0)
    assert reading.fetch_at_open("key", None) == reading.fetch_at_open("key", info) == info


# Faults.


def test_a_fault_is_told_once_and_the_next_read_tries_again(reading: Reading, store: ScriptedStore) -> None:
    info, content = put(store, "key", 20 * BLOCK)
    reader = reading.open("key", info)
    faults = iter([fault(FaultKind.SERVER), fault(FaultKind.TIMEOUT, errno.ETIMEDOUT)])

    def gate(asked: Asked) -> None:
        if (error := next(faults, None)) is not None:
            raise error

    store.gate = gate
    for number in (errno.EIO, errno.ETIMEDOUT):
        with pytest.raises(StoreFault) as caught:
            whole(reader, 9 * BLOCK, 100)
        assert caught.value.errno == number
    assert whole(reader, 9 * BLOCK, 100) == content[9 * BLOCK :][:100]


def test_what_has_failed_ahead_of_a_reader_does_not_concern_it(
    reading: Reading, store: ScriptedStore
) -> None:
    info, content = put(store, "key", 12 * BLOCK)
    reader = reading.open("key", info)
    failed = 0

    def gate(asked: Asked) -> None:
        nonlocal failed
        if asked[2] >= BLOCK:
            failed += 1
            raise fault()

    store.gate = gate
    got = [whole(reader, offset, 32 * KIB) for offset in range(0, BLOCK, 32 * KIB)]
    until(lambda: failed == 1 and store.at_once == 0)
    store.gate = lambda asked: None
    got += [whole(reader, offset, 32 * KIB) for offset in range(BLOCK, info.size, 32 * KIB)]
    assert b"".join(got) == content


def test_a_hundred_readers_of_a_few_files_with_little_memory(store: ScriptedStore) -> None:
    reading = Reading(store, settings(memory_cache_bytes=8 * BLOCK, read_ahead_blocks=3), "")
    files = [put(store, f"key{number}", 5 * BLOCK + number, seed=number) for number in range(4)]
    wrong: list[object] = []

    def read(number: int) -> None:
        choice = random.Random(number)
        info, content = files[number % 4]
        reader = reading.open(info.key, info)
        try:
            for _ in range(30):
                offset, size = choice.randrange(info.size), choice.choice([1, 4096, 30_000, 2 * BLOCK])
                if bytes(reader.read(offset, size)) != content[offset : offset + size]:
                    wrong.append((number, offset, size))
        except Exception as error:
            wrong.append(error)
        reader.close()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert reading.statistics().memory_bytes <= 8 * BLOCK
    reading.close()


# Any sequence of reads.


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    size = draw(st.integers(0, 6 * BLOCK))
    kinds = st.sampled_from(["read", "read", "read", "on", "on", "on", "change", "open", "forget"])
    offsets = st.integers(0, size + 10)
    sizes = st.one_of(st.integers(1, 300), st.integers(1, 2 * BLOCK))
    return size, draw(st.lists(st.tuples(kinds, offsets, sizes), max_size=30))


@examples(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=steps(), has_volume=st.booleans())
def test_any_sequence_of_reads_equals_the_content_of_one_version(
    story: tuple[int, list[tuple[str, int, int]]], has_volume: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    size, moves = story
    store = ScriptedStore()
    directory: Path | str = tmp_path_factory.mktemp("cache") if has_volume else ""
    reading = Reading(
        store, settings(memory_cache_bytes=10 * BLOCK, disk_cache_bytes=8 * BLOCK), str(directory)
    )
    try:
        info, content = put(store, "key", size)
        contents = {info.etag: content}
        reader, at = reading.open("key", info), 0
        for seed, (kind, offset, length) in enumerate(moves):
            match kind:
                case "read" | "on":
                    offset = at if kind == "on" else offset
                    try:
                        got = whole(reader, offset, length)
                    except StoreFault as error:
                        is_gone = store.head("key").etag != reader.info.etag
                        assert (is_gone, error.errno) == (True, errno.ESTALE)  # noqa: PT017  # or content, as below
                        continue
                    at = offset + len(got)
                    assert got == contents[reader.info.etag][offset : offset + length]
                case "change":
                    info, content = put(store, "key", max(0, size - length % 3), seed=seed)
                    contents[info.etag] = content
                case "open":
                    known = reader.info if length % 2 else None
                    reader.close()
                    opened = reading.fetch_at_open("key", known)
                    assert opened.etag == store.head("key").etag
                    reader = reading.open("key", opened)
                case "forget":
                    reading.forget("key")
        statistics = reading.statistics()
        assert statistics.memory_bytes <= 10 * BLOCK
        assert statistics.volume_bytes <= 8 * BLOCK
    finally:
        reading.close()
