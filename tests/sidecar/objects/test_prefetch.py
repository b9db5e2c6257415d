"""Fetching ahead of everybody what a request names: into the cache as far as it has room, and after everybody else."""

import fnmatch
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.objects import prefetch
from sidecar.objects.cache_file import room_of
from sidecar.objects.prefetch import PrefetchState
from sidecar.objects.prefetch_globs import parse_globs
from sidecar.objects.reading import Reading
from sidemount.stores.store import FaultKind, Page
from tests.sidecar.objects.scripted_store import (
    BLOCK,
    Asked,
    ScriptedStore,
    content_of,
    fault,
    settings,
    until,
)

KEYS = ["data/a/1", "data/a/2", "data/b/deep/3", "data/x.txt", "other/1", "other/2.txt"]


def make(directory: Path | str, store: ScriptedStore, text: str, **values: object) -> Reading:
    return Reading(
        store, settings(prefetch=text, **{"disk_cache_bytes": 100 * BLOCK} | values), str(directory)
    )


def filled(size: int = 3 * BLOCK + 10) -> ScriptedStore:
    store = ScriptedStore()
    for key in KEYS:
        store.put(key, [content_of(size, len(key))])
    store.put("data/a/", [b""])
    return store


def finished(reading: Reading) -> bool:
    return reading.statistics().prefetch.state not in (PrefetchState.LISTING, PrefetchState.FETCHING)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("**", KEYS),
        ("data/**", KEYS[:4]),
        ("data/", KEYS[:4]),
        ("/data/a/*", KEYS[:2]),
        ("data/*", ["data/x.txt"]),
        ("**/*.txt", ["data/x.txt", "other/2.txt"]),
        ("data/**/3;other/1", ["data/b/deep/3", "other/1"]),
        ("data/a/?;data/**", KEYS[:4]),
        ("*/[0-1]", ["other/1"]),
        ("nothing;data/[!b]/2", ["data/a/2"]),
    ],
)
def test_what_the_globs_match_is_in_the_cache(tmp_path: Path, text: str, keys: list[str]) -> None:
    store = filled()
    reading = make(tmp_path, store, text)
    reading.begin()
    until(lambda: finished(reading))
    progress = reading.statistics().prefetch
    assert progress.state is PrefetchState.DONE
    assert (progress.objects, progress.objects_total, progress.errors) == (len(keys), len(keys), 0)
    assert progress.bytes == progress.bytes_total == len(keys) * (3 * BLOCK + 10)
    assert sorted({key for call, key, _, _ in store.asked if call == "get"}) == sorted(keys)
    store.asked.clear()
    for key in keys:
        info = store.head(key)
        assert reading.open(key, info).read(0, info.size) == content_of(info.size, len(key))
    assert "get" not in store.calls()
    reading.close()


def test_globs_are_relative_to_the_volume_s_own_root(tmp_path: Path) -> None:
    store = filled()
    reading = make(tmp_path, store, "a/*;x.txt", sub_path="data")
    reading.begin()
    until(lambda: finished(reading))
    assert sorted({key for call, key, _, _ in store.asked if call == "get"}) == [*KEYS[:2], "data/x.txt"]
    assert reading.statistics().prefetch.objects == 3
    reading.close()


def test_a_successor_goes_on_and_fetches_nothing_twice(tmp_path: Path) -> None:
    store = filled()
    may = threading.Event()

    def gate(asked: Asked) -> None:
        if asked[0] == "get" and len(store.gets()) > 5:
            assert may.wait(20)

    store.gate = gate
    reading = make(tmp_path, store, "**")
    reading.begin()
    until(lambda: len(store.gets()) > 5)
    before = reading.statistics().prefetch
    assert before.objects < len(KEYS)
    assert before.bytes_total in (0, len(KEYS) * (3 * BLOCK + 10))
    closer = threading.Thread(target=reading.close)
    closer.start()
    may.set()
    closer.join(20)
    first = len(store.gets())
    store.gate = lambda asked: None
    reading = make(tmp_path, store, "**")
    reading.begin()
    until(lambda: finished(reading))
    assert reading.statistics().prefetch.state is PrefetchState.DONE
    assert len(store.gets()) == len(set(store.asked) - {one for one in store.asked if one[0] != "get"})
    assert 0 < first < len(store.gets())
    reading.close()


def test_it_ends_where_the_cache_is_full_and_gives_nothing_up(tmp_path: Path) -> None:
    store = filled(BLOCK)
    reading = make(tmp_path, store, "**", disk_cache_bytes=3 * room_of(BLOCK))
    reading.begin()
    until(lambda: finished(reading))
    statistics = reading.statistics()
    assert statistics.prefetch.state is PrefetchState.FULL
    assert statistics.prefetch.objects == 3
    assert statistics.volume_evicted == 0
    reading.close()


def test_without_a_cache_volume_it_fills_memory_up_to_three_quarters() -> None:
    store = filled(BLOCK)
    reading = make("", store, "**", memory_cache_bytes=8 * BLOCK)
    reading.begin()
    until(lambda: finished(reading))
    assert reading.statistics().prefetch.objects == 6
    info = store.head(KEYS[0])
    assert reading.open(KEYS[0], info).read_now(0, BLOCK) is not None
    reading.close()


def test_readers_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_LONGEST_PAUSE_S", 20.0)
    store = filled(BLOCK)
    may = threading.Event()

    def gate(asked: Asked) -> None:
        if asked[:2] == ("get", "other/1") and asked[3] == 100:
            assert may.wait(20)

    store.gate = gate
    reading = make(tmp_path, store, "data/**", block_bytes=4 * BLOCK)
    store.put("other/1", [content_of(40 * BLOCK)])
    info = store.head("other/1")
    reader = threading.Thread(target=lambda: reading.open("other/1", info).read(9 * BLOCK, 100))
    reader.start()
    until(lambda: store.at_once == 1)
    reading.begin()
    time.sleep(0.2)  # in which nothing must happen
    assert len(store.gets()) == 1
    may.set()
    until(lambda: finished(reading))
    reader.join(20)
    assert reading.statistics().prefetch.objects == 4
    reading.close()


def test_what_cannot_be_had_is_counted_and_the_rest_is_fetched(tmp_path: Path) -> None:
    store = filled()

    def gate(asked: Asked) -> None:
        if asked[0] == "get" and asked[1] == "data/a/1":
            raise fault(FaultKind.DENIED)

    store.gate = gate
    reading = make(tmp_path, store, "data/**")
    reading.begin()
    until(lambda: finished(reading))
    progress = reading.statistics().prefetch
    assert (progress.objects, progress.objects_total, progress.errors) == (3, 4, 4)
    assert progress.state is PrefetchState.DONE
    assert not vars(vars(reading)["_prefetch"])["_pending"]  # or there would be one for each of a million
    reading.close()


def test_a_listing_that_fails_for_good_is_a_failure_and_what_was_found_is_fetched(tmp_path: Path) -> None:
    store = filled(BLOCK)

    def refusing(prefix: str, **others: object) -> Page:
        raise fault(FaultKind.DENIED)

    store.list_page = refusing  # type: ignore[method-assign]  # a store that must not be listed
    reading = make(tmp_path, store, "other/1;data/**")
    reading.begin()
    until(lambda: finished(reading))
    progress = reading.statistics().prefetch
    assert (progress.state, progress.objects, progress.errors) == (PrefetchState.FAILED, 1, 1)
    reading.close()


def test_a_listing_that_fails_now_and_then_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_LISTING_PAUSE_S", 0.01)
    store = filled(BLOCK)
    faults = iter([fault(), None, fault(), fault()])

    def gate(asked: Asked) -> None:
        if asked[0] == "list" and (error := next(faults, None)) is not None:
            raise error

    store.gate = gate
    reading = make(tmp_path, store, "**")
    reading.begin()
    until(lambda: finished(reading))
    progress = reading.statistics().prefetch
    assert (progress.state, progress.objects, progress.errors) == (PrefetchState.DONE, 6, 3)
    reading.close()


def test_nothing_wanted_starts_nothing() -> None:
    before = threading.active_count()
    reading = make("", ScriptedStore(), "")
    reading.begin()
    assert threading.active_count() <= before
    assert reading.statistics().prefetch.state is PrefetchState.NONE
    reading.close()


@given(
    pattern=st.text("ab*?[]!-", max_size=12).filter(lambda text: "**" not in text and text.strip()),
    key=st.text("ab[]!-", max_size=8),
)
def test_within_one_component_it_is_what_fnmatch_says(pattern: str, key: str) -> None:
    (glob,) = parse_globs(pattern)
    assert glob.matches(key) == fnmatch.fnmatchcase(key, pattern)


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "a/xb", False),
        ("a/**/**/b", "a/b", True),
        ("**/b", "b", True),
        ("**/b", "xb", False),
        ("**b", "x/xb", True),
        ("*b", "x/b", False),
        ("a*/**", "ab/c/d", True),
        ("a?b", "a/b", False),
        ("a[!x]b", "a/b", False),
        ("a**", "a", True),
    ],
)
def test_globs_over_components(pattern: str, key: str, matches: bool) -> None:
    (glob,) = parse_globs(pattern)
    assert glob.matches(key) is matches


def test_no_glob_takes_long() -> None:
    (glob,) = parse_globs("**a" * 80 + "/*a" * 20)
    began = time.process_time()
    assert not glob.matches("a" * 1024)
    assert time.process_time() - began < 2
