"""Who is taken for somebody that reads the files of a directory in order, what comes next for him, and when that ends."""

import random

import pytest

from sidecar.objects.walk import Walk, Wanted
from sidemount.stores.store import ObjectInfo

_NAMES = [f"d/{number:04d}" for number in range(2000)]


class Reader:
    """Reads files through a walk, whose fetches are done at once."""

    def __init__(self) -> None:
        self.walk = Walk(8)
        self.fetched: list[str] = []
        self.hits = 0

    def read(self, path: str) -> None:
        wanted = self.walk.note(path)
        if wanted is Wanted.NAMES:
            self.walk.begin(_NAMES)
        if wanted is not Wanted.NOTHING:
            while (one := self.walk.take(self.find)) is not None:
                one.is_there = one.is_ours = True
        self.hits += self.walk.hits
        self.walk.hits = 0

    def find(self, path: str) -> ObjectInfo:
        self.fetched.append(path)
        return ObjectInfo(path, 100, "tag", 0)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_who_reads_in_order_finds_all_but_the_first_files(reader: Reader) -> None:
    for path in _NAMES:
        reader.read(path)
    assert reader.hits == len(_NAMES) - 4
    assert reader.fetched == _NAMES[4:]
    assert reader.walk.abandoned == []
    assert reader.walk.ahead_bytes == 0


def test_what_is_ahead_is_bounded(reader: Reader) -> None:
    for path in _NAMES[:200]:
        reader.read(path)
        assert reader.walk.ahead_bytes <= 64 * 100


def test_several_at_once_read_in_order_too(reader: Reader) -> None:
    chosen = random.Random(3)
    left = list(_NAMES)
    while left:
        reader.read(left.pop(chosen.randrange(min(8, len(left)))))
    assert reader.hits > len(_NAMES) * 0.95
    assert len(reader.walk.abandoned) < len(_NAMES) * 0.05  # one in eight may be left behind for long


@pytest.mark.parametrize("seed", range(5))
def test_for_who_reads_at_random_next_to_nothing_is_fetched(reader: Reader, seed: int) -> None:
    chosen = random.Random(seed)
    for _ in range(5):
        for path in chosen.sample(_NAMES, len(_NAMES)):
            reader.read(path)
    assert len(reader.fetched) <= len(_NAMES) * 5 // 50


def test_who_takes_each_tenth_file_is_soon_left_alone(reader: Reader) -> None:
    for path in _NAMES[::10]:
        reader.read(path)
    assert len(reader.fetched) < 150
    assert reader.walk.ahead_bytes == 0
    assert len(reader.walk.abandoned) + reader.hits == len(reader.fetched)


def test_who_turns_to_read_at_random_ends_the_walk(reader: Reader) -> None:
    for path in _NAMES[:100]:
        reader.read(path)
    before = len(reader.fetched)
    for path in random.Random(1).sample(_NAMES, 500):
        reader.read(path)
    assert len(reader.fetched) - before < 150
    assert reader.walk.ahead_bytes == 0


def test_a_second_pass_is_a_walk_like_the_first(reader: Reader) -> None:
    for _ in range(3):
        for path in _NAMES[:300] + _NAMES[-300:]:
            reader.read(path)
    assert reader.hits > 3 * 600 * 0.9


def test_names_that_come_too_late_begin_no_walk() -> None:
    walk = Walk(8)
    for path in _NAMES[:4]:
        wanted = walk.note(path)
    assert wanted is Wanted.NAMES
    walk.end()
    assert not walk.begin(_NAMES)


def test_more_threads_fetch_only_from_a_slow_store() -> None:
    for seconds, most in ((0.0005, 2), (0.05, 8)):
        walk = Walk(8)
        for path in _NAMES[:4]:
            walk.note(path)
        walk.begin(_NAMES)
        for path in _NAMES[4:200]:
            walk.note(path)  # none of them is there in time
            walk.took(seconds)
        assert walk.wanted_fetchers == most
