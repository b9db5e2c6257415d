"""Listings: page by page, one ahead, each name once, from any position, by any process."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.objects.keys import Hidden
from sidecar.objects.known import Known
from sidecar.objects.listing import Record, Stream
from sidecar.objects.listing_records import ListingRecords
from sidecar.objects.metrics import Metrics
from sidecar.objects.tree import Tree
from sidecar.zygote_memory import own_memory
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.store import ObjectInfo, Page
from tests.sidecar.directory.core import Shelf, run
from tests.sidecar.objects.core import Kernel, make_kernel


class SmallPages(MemoryStore):
    """Has pages of a few entries, and counts them."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = size
        self.pages: list[str] = []
        self.is_down = False

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        self.pages.append(token)
        if self.is_down:
            raise TimeoutError
        return super().list_page(prefix, delimiter=delimiter, token=token, most=min(most, self.size))


class Endless(MemoryStore):
    """A prefix with very many keys, which are made up as they are asked for."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.pages = 0

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        self.pages += 1
        begin = int(token or "0")
        end = min(begin + most, self.count)
        infos = [ObjectInfo(f"{prefix}{number:09}", number, f"e{number}", 1) for number in range(begin, end)]
        return Page(infos, (), str(end) if end < self.count else "")


class LargePages(MemoryStore):
    """Has pages of as many entries as are asked for, and notes how many."""

    abilities = replace(MemoryStore.abilities, page_names=5000)

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        self.asked.append(most)
        return super().list_page(prefix, delimiter=delimiter, token=token, most=most)


@pytest.fixture
def ahead() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Maker:
    """Makes streams over a store."""

    def __init__(self, store: MemoryStore, ahead: ThreadPoolExecutor) -> None:
        self.metrics = Metrics()
        self._tree = Tree(store, Known(known_s=1, missing_s=1), self.metrics)
        self._ahead = ahead

    def stream(self, *own: str, records: dict[int, Record] | None = None) -> Stream:
        entries = [(name.encode(), name, False) for name in own]
        return Stream(self._tree, "", self.metrics, lambda: entries, self._ahead, records)


def read(stream: Stream, most: int = 10**9) -> tuple[list[str], int]:
    """Return names and the position after the last one."""
    names: list[str] = []
    position = 0
    while len(names) < most and (item := stream.peek()) is not None:
        names.append(item.name.decode())
        position = item.position
        stream.step()
    return names, position


def read_into(stream: Stream, names: list[str]) -> None:
    """Add names, up to the first that cannot be had."""
    while (item := stream.peek()) is not None:
        names.append(item.name.decode())
        stream.step()


TWINS = {
    "next-to-each-other": ["a", "a/x", "b"],
    "far-apart": ["a", *(f"a-{number}" for number in range(10)), "a/x", "z"],
    "at-the-end-of-a-page": ["1", "2", "a", "a/x", "z"],
    "chain": ["a", "a-", "a--", "a---", "a--/x", "a-/x", "a/x", "b"],
    "last-of-all": ["x", "y", "z", "z/1"],
    "no-twin": ["a", "a-1", "a-2", "a-3", "a-4", "ab/x"],
}


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("keys", TWINS.values(), ids=TWINS)
def test_directory_hides_the_file_of_its_name_wherever_they_are(
    keys: list[str], size: int, ahead: ThreadPoolExecutor
) -> None:
    store = SmallPages(size)
    for key in keys:
        store.put(key, [b""])
    maker = Maker(store, ahead)
    names, _ = read(maker.stream())
    assert sorted(names[2:]) == sorted({key.split("/")[0] for key in keys})
    directories = {key.split("/")[0] for key in keys if "/" in key}
    hidden = maker.metrics.numbers().get(f"hidden_{Hidden.TWIN.value}", 0)
    assert hidden >= len(directories & set(keys))
    assert (hidden > 0) == bool(directories & set(keys))


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("is_successor", [False, True])
def test_listing_goes_on_from_any_position_while_names_come_and_go(
    size: int, is_successor: bool, ahead: ThreadPoolExecutor, tmp_path: Path
) -> None:
    store = SmallPages(size)
    names = [f"n{number:02}" for number in range(20)]
    for name in names:
        store.put(name, [b""])
    maker = Maker(store, ahead)
    whole = ["draft", *names]
    for cut in range(1, 23):
        stream = maker.stream("draft")
        before, position = read(stream, cut)
        records = ListingRecords(str(tmp_path / "records"))
        records.save(7, stream.records)
        removed = before[-3:-1] if cut > 8 else []
        for name in removed:
            store.delete(name)
        store.put("n00-new", [b""])
        if is_successor:
            stream = maker.stream("draft", records=ListingRecords(str(tmp_path / "records")).load(7))
        else:
            stream.seek(1 << 40 | 1)  # somewhere else, and back
        stream.seek(position)
        after, _ = read(stream)
        told = [name for name in before + after if name not in (".", "..", "n00-new")]
        assert sorted(told) == sorted(whole), cut
        for name in (*removed, "n00-new"):
            store.delete(name)
        for name in removed:
            store.put(name, [b""])


def test_position_is_known_however_often_the_answer_to_it_is_lost(
    ahead: ThreadPoolExecutor, tmp_path: Path
) -> None:
    store = SmallPages()
    for number in range(60):
        store.put(f"n{number:02}", [b""])
    maker, records = Maker(store, ahead), ListingRecords(str(tmp_path))
    stream = maker.stream("draft")
    before, position = read(stream, 10)
    records.save(1, stream.records)
    for _ in range(5):
        stream = maker.stream("draft", records=records.load(1))
        stream.seek(position)
        after, _ = read(stream, 30)
        records.save(1, stream.records, position)
    stream = maker.stream("draft", records=records.load(1))
    stream.seek(position)
    after, _ = read(stream)
    assert sorted(before + after) == sorted([".", "..", "draft", *(f"n{number:02}" for number in range(60))])


def test_rewinding_reads_afresh(ahead: ThreadPoolExecutor) -> None:
    store = SmallPages()
    store.put("a", [b""])
    stream = Maker(store, ahead).stream()
    assert read(stream)[0] == [".", "..", "a"]
    store.put("b", [b""])
    stream.seek(0)
    assert read(stream)[0] == [".", "..", "a", "b"]


def test_failed_page_is_asked_for_again(ahead: ThreadPoolExecutor) -> None:
    store = SmallPages()
    for number in range(9):
        store.put(f"n{number}", [b""])
    stream = Maker(store, ahead).stream()
    names, _ = read(stream, 4)
    store.is_down = True
    with pytest.raises(TimeoutError):
        read_into(stream, names)
    store.is_down = False
    assert names + read(stream)[0] == [".", "..", *(f"n{number}" for number in range(9))]


def test_pages_are_as_large_as_the_store_gives_them(ahead: ThreadPoolExecutor) -> None:
    store = LargePages()
    keys = [f"n{number:05}" for number in range(6001)]
    for key in keys:
        store.put(key, [b""])
    names, _ = read(Maker(store, ahead).stream())
    assert names == [".", "..", *keys]
    assert store.asked == [5000, 5000]


def test_two_hundred_thousand_keys_take_little_memory_and_begin_at_once(tmp_path: Path) -> None:
    store = Endless(200_000)
    kernel = make_kernel(store, tmp_path)
    handle = run(kernel.filesystem.opendir(kernel.node("")))
    began = time.monotonic()
    shelf = Shelf(100)
    run(kernel.filesystem.readdir(handle, 0, shelf))
    assert len(shelf.entries) == 100
    assert store.pages <= 2  # the first, and the one ahead
    assert time.monotonic() - began < 2
    before = own_memory()
    count, position, last = 98, shelf.entries[-1][3], b""
    while shelf.entries:
        shelf = Shelf(1000)
        run(kernel.filesystem.readdir(handle, position, shelf))
        if shelf.entries:
            position = shelf.entries[-1][3]
            assert shelf.entries[0][0] > last  # in order: each once
            last = shelf.entries[-1][0]
            count += len(shelf.entries)
    assert count == 200_000
    assert own_memory() - before < 64 << 20
    assert store.pages == 200
    assert len(kernel.filesystem.nodes) < 2_000


def test_root_of_a_bucket_can_be_listed_by_many_at_once(tmp_path: Path) -> None:
    kernel = make_kernel(Endless(3_000), tmp_path)
    assert [len(kernel.listdir("", 77)) for _ in range(3)] == [3_000] * 3
    assert isinstance(kernel, Kernel)
