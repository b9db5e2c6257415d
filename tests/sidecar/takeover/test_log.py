"""The log: what was appended is there, whatever killed whoever appended it."""

import os
import random
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.takeover import layout
from sidecar.takeover.log import Log
from sidecar.takeover.mapping import map_words
from sidemount.model.errors import BadMessage
from tests.sidecar.takeover.processes import ended, in_small_tmpfs


class Book:
    """A log in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        if os.fstat(self.file).st_size < layout.LOG:
            os.truncate(self.file, layout.LOG)
        self.head = map_words(self.file, 0, layout.HEAD_WORDS)
        self.log = Log(self.file, self.head)
        try:
            self.found = [record for window in self.log.read() for record in window]
        except BadMessage:
            self.close()
            raise

    def close(self) -> None:
        os.close(self.file)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def read(path: Path) -> list[bytes]:
    book = Book(path)
    book.close()
    return book.found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.binary(min_size=1, max_size=300), st.just("clean"), st.just("again")), max_size=80)
)
def test_records_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    wanted: list[bytes] = []
    book = Book(path)
    for step in steps:
        if isinstance(step, bytes):
            book.log.append(step)
            wanted.append(step)
        elif step == "clean":
            book.log.clean(5, lambda record: True)
        else:
            book.close()
            book = Book(path)
            assert book.found == wanted
    book.close()
    assert read(path) == wanted


def test_a_million_bytes_and_more_pass_through_few_windows(path: Path) -> None:
    """What is cleaned is given back: the file stays small, however much is appended."""
    book = Book(path)
    current: dict[int, bytes] = {}
    for number in range(100_000):
        key = number % 300
        current[key] = b"%03d %08d" % (key, number) + b"." * 40
        book.log.append(current[key])
        if book.log.records > 3000:
            book.log.clean(4, lambda record: current[int(record[:3])] == record)
    book.close()
    latest = {int(record[:3]): record for record in read(path)}
    assert latest == current
    assert os.stat(path).st_blocks * 512 < 4 * layout.WINDOW + layout.HEAD_WORDS * 8 + 65536


def test_what_says_nothing_any_more_is_dropped_and_the_rest_is_kept(path: Path) -> None:
    book = Book(path)
    for number in range(20_000):
        book.log.append(b"%06d" % number + b"." * 50)
    windows = book.head[layout.AT_LOG_END]
    assert windows >= 4
    for _ in range(20_000):
        book.log.clean(1, lambda record: int(record[:6]) % 1000 == 0)
    found = [int(record[:6]) for record in read(path)]
    assert set(range(0, 20_000, 1000)) <= set(found)
    assert len(found) < 20_000 // 3
    assert book.log.records == len(found)
    book.close()


def _written(path: Path, count: int) -> list[bytes]:
    book = Book(path)
    records = [b"record %d %s" % (number, b"x" * (number % 23)) for number in range(count)]
    for record in records:
        book.log.append(record)
    book.close()
    return records


def test_cut_at_every_byte_leaves_whole_records_and_can_be_written_on(path: Path) -> None:
    """S4-09. A store that never happened leaves zeros."""
    records = _written(path, 12)
    file = os.open(path, os.O_RDWR)
    content = os.pread(file, layout.WINDOW, layout.LOG)
    for cut in range(len(content.rstrip(b"\0")) + 9):
        os.pwrite(file, content[:cut] + bytes(len(content) - cut), layout.LOG)
        book = Book(path)
        assert book.found == records[: len(book.found)]
        assert len(book.found) >= cut // 48
        book.log.append(b"after")
        book.close()
        assert read(path) == [*book.found, b"after"]
    os.close(file)


def test_rubbish_behind_the_last_record_is_never_taken_for_one(path: Path) -> None:
    """A process was killed between a record's content and its length; the next record is shorter."""
    records = _written(path, 3)
    book = Book(path)
    at = book.log._end
    book.log._last[at + 8 : at + 8 + 400] = struct.pack("=II", 20, 0) * 50
    book.close()
    book = Book(path)
    assert book.found == records
    book.log.append(b"x")
    book.close()
    assert read(path) == [*records, b"x"]


def test_damage_in_the_midst_is_an_error(path: Path) -> None:
    _written(path, 20_000)
    with open(path, "r+b") as file:
        file.seek(layout.LOG + 1000)
        file.write(bytes(5000))
    with pytest.raises(BadMessage, match="window 0 of the log is damaged at byte"):
        read(path)


def test_a_writer_that_is_killed_at_any_time_leaves_all_it_had_appended(tmp_path: Path) -> None:
    """S4-09. Real processes, killed at random; each continues where the one before it was."""
    path, dice = tmp_path / "log", random.Random(5)
    counter = os.open(tmp_path / "counter", os.O_RDWR | os.O_CREAT)
    os.truncate(counter, 4096)
    done = map_words(counter, 0, 2)
    for life in range(500):
        if life >= 25 and done[0] > 1000:
            break
        child = os.fork()
        if child == 0:
            book = Book(path)
            number = max((int(record.split()[0]) for record in book.found), default=-1) + 1
            while True:
                book.log.append(b"%d %s" % (number, b"y" * (number % 97)))
                done[0] = number = number + 1
                book.log.clean(1, lambda record: True)
        time.sleep(dice.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        assert ended(child) == -signal.SIGKILL
        found = [int(record.split()[0]) for record in read(path)]
        assert set(range(done[0])) <= set(found)
        assert len(set(found)) <= done[0] + 1
    os.close(counter)
    assert done[0] > 1000


@pytest.mark.root
def test_full_filesystem_is_an_error_and_never_a_signal(tmp_path: Path) -> None:
    def fill() -> tuple[int, int, bool]:
        book = Book(tmp_path / "log")
        appended = 0
        try:
            while True:
                book.log.append(b"z" * 100)
                appended += 1
        except OSError as error:
            number = error.errno or 0
        book.close()
        return appended, number, len(read(tmp_path / "log")) == appended

    appended, number, is_whole = in_small_tmpfs(tmp_path, "1m", fill)
    assert appended > 3000
    assert number == 28
    assert is_whole


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0
