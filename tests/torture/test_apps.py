"""The applications notice: each finds nothing on an honest directory, and says so when anything that it relies on is not so."""

import errno
import fcntl
import hashlib
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.torture.apps.__main__ import APPLICATIONS
from e2e.torture.apps.lister import Lister
from e2e.torture.apps.stream import Stream
from e2e.torture.apps.tally import Tally

Patch = pytest.MonkeyPatch
_STEPS = {"blocks": 16, "churn": 2500, "lister": 3, "keeper": 2, "locker": 40, "log": 200, "reopener": 100}


@pytest.fixture(autouse=True)
def _let_nothing_reach_the_disk(monkeypatch: Patch) -> None:
    """Syncing takes the most of the time here, and its outcome is not looked at."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda file: None)


def work(kind: str, place: Path, steps: int = 0) -> Tally:
    """Have an application work on a directory for so many steps of each of its processes."""
    tally = Tally()
    left = [steps or _STEPS.get(kind, 400)]

    def goes_on() -> bool:
        left[0] -= 1
        return left[0] >= 0

    place.mkdir()
    try:
        APPLICATIONS[kind](place, goes_on, random.Random(7), tally)
    except OSError as error:
        tally.fail(repr(error))
    return tally


@pytest.mark.parametrize("kind", APPLICATIONS)
def test_an_honest_directory_gives_no_reason_to_complain(tmp_path: Path, kind: str) -> None:
    tally = work(kind, tmp_path / kind)
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.operations > 0
    for name, digest in tally.leaves.items():
        assert hashlib.sha256((tmp_path / kind / name).read_bytes()).hexdigest() == digest


def _now_and_then(
    patch: Patch, name: str, spoil: Callable[[Callable[..., Any], tuple[Any, ...]], Any]
) -> None:
    """Have every third call of a function of `os` done in another way."""
    original, calls = getattr(os, name), [0]

    def spoiled(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3:
            return original(*arguments, **named)
        return spoil(lambda *given: original(*given, **named), arguments)

    patch.setattr(os, name, spoiled)


def _wrong_byte(read: Callable[..., bytes], arguments: tuple[Any, ...]) -> bytes:
    found = read(*arguments)
    return found[:-1] + bytes([found[-1] ^ 1]) if found else found


def _short_read(read: Callable[..., bytes], arguments: tuple[Any, ...]) -> bytes:
    return read(*arguments)[:-1]


def _lost(write: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    return len(arguments[1])


def _twice(write: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    write(*arguments)
    return write(*arguments)


def _short_write(write: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    return write(arguments[0], arguments[1][:-1], *arguments[2:])


def _not_done(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return None


def _no_copy(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return arguments[2]


def _failing(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    raise OSError(errno.EIO, "injected")


def _exists(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Do it, and answer as if it had been done before: what an operation that is repeated looks like."""
    call(*arguments)
    raise FileExistsError(errno.EEXIST, "injected")


def _missing(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    call(*arguments)
    raise FileNotFoundError(errno.ENOENT, "injected")


@pytest.mark.parametrize(
    ("kind", "name", "spoil"),
    [
        ("writer", "pread", _wrong_byte),
        ("writer", "pread", _short_read),
        ("writer", "pwrite", _lost),
        ("writer", "pwrite", _short_write),
        ("writer", "ftruncate", _not_done),
        ("writer", "fsync", _failing),
        ("log", "write", _lost),
        ("log", "write", _twice),
        ("log", "write", _short_write),
        ("blocks", "pread", _wrong_byte),
        ("blocks", "pwrite", _lost),
        ("blocks", "pwrite", _short_write),
        ("ranges", "pwritev", _lost),
        ("ranges", "truncate", _not_done),
        ("ranges", "ftruncate", _not_done),
        ("ranges", "posix_fallocate", _not_done),
        ("ranges", "copy_file_range", _no_copy),
        ("ranges", "lseek", _failing),
        ("ranges", "pread", _wrong_byte),
        ("mapper", "pwrite", _lost),
        ("mapper", "pread", _wrong_byte),
        ("keeper", "pread", _wrong_byte),
        ("keeper", "pwrite", _lost),
        ("keeper", "listdir", _failing),
        ("keeper", "rename", _not_done),
        ("keeper", "fstat", _failing),
        ("churn", "mkdir", _exists),
        ("churn", "symlink", _exists),
        ("churn", "link", _not_done),
        ("churn", "unlink", _missing),
        ("churn", "rmdir", _missing),
        ("churn", "rename", _missing),
        ("churn", "rename", _not_done),
        ("churn", "setxattr", _not_done),
        ("churn", "setxattr", _exists),
        ("churn", "removexattr", _not_done),
        ("churn", "mkfifo", _exists),
        ("reopener", "fsync", _failing),
        ("locker", "pwrite", _lost),
    ],
)
def test_what_is_not_done_or_done_twice_is_noticed(
    tmp_path: Path, monkeypatch: Patch, kind: str, name: str, spoil: Callable[..., Any]
) -> None:
    with monkeypatch.context() as patch:
        _now_and_then(patch, name, spoil)
        tally = work(kind, tmp_path / kind)
    assert tally.wrong or tally.errors


def test_what_was_lost_after_it_was_synced_is_noticed(tmp_path: Path, monkeypatch: Patch) -> None:
    """By the application that takes a lost connection for granted."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda self, target: target.write_bytes(b"half"))
        tally = work("reopener", tmp_path / "reopener")
    assert any("nobody has written" in what for what in tally.wrong)


def test_a_lost_connection_is_no_error_to_who_expects_it(tmp_path: Path, monkeypatch: Patch) -> None:
    def lost(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        raise OSError(errno.ENOTCONN, "injected")

    with monkeypatch.context() as patch:
        _now_and_then(patch, "fsync", lost)
        tally = work("reopener", tmp_path / "reopener", 60)
    assert (tally.errors, tally.wrong) == ([], [])


@pytest.mark.parametrize("function", ["flock", "lockf", "fcntl"])
def test_a_lock_that_is_none_is_noticed(tmp_path: Path, monkeypatch: Patch, function: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, function, lambda *arguments: None)
        tally = work("locker", tmp_path / "locker")
    assert any("was had that somebody holds" in what or "count under" in what for what in tally.wrong)


@pytest.mark.parametrize("fault", ["lost", "doubled", "renamed"])
@pytest.mark.parametrize("way", ["scan", "look", "seek", "list_held", "change"])
def test_an_entry_that_is_lost_or_doubled_is_noticed_whichever_way_it_is_listed(
    tmp_path: Path, monkeypatch: Patch, way: str, fault: str
) -> None:
    tally = Tally()
    listing = Lister(tmp_path, random.Random(1), tally, 300)
    following = Stream.next
    waiting: list[str] = []

    def spoiled_next(stream: Stream) -> str | None:
        if waiting:
            return waiting.pop()
        name = following(stream)
        if name != "f0077":
            return name
        if fault == "doubled":
            waiting.append(name)
            return name
        return following(stream) if fault == "lost" else "f7700"

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "next", spoiled_next)
        if way in ("scan", "look"):
            _spoil_directory(tmp_path, fault)
        getattr(listing, way)()
    assert tally.wrong
    assert "f0077" in tally.wrong[0] or "f7700" in tally.wrong[0]


def _spoil_directory(place: Path, fault: str) -> None:
    if fault == "lost":
        (place / "f0077").unlink()
    else:
        (place / "f0077").rename(place / "f7700")


def test_a_stream_that_goes_back_to_another_place_is_noticed(tmp_path: Path, monkeypatch: Patch) -> None:
    tally = Tally()
    listing = Lister(tmp_path, random.Random(1), tally, 300)
    with monkeypatch.context() as patch:
        patch.setattr(Stream, "seek", lambda stream, position: stream.rewind())
        listing.seek()
    assert any(what.startswith("names from") for what in tally.wrong)


class _Leaky(mmap.mmap):
    """A mapping that does not keep what is written into it: private to each, or never there."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, bytes(len(value)))


def test_a_mapping_that_loses_what_is_written_is_noticed(tmp_path: Path, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", _Leaky)
        tally = work("mapper", tmp_path / "mapper")
    assert {what.split(":")[0] for what in tally.wrong} >= {
        "the other mapping",
        "a page of one's own",
        "read",
    }


def test_a_private_page_that_is_shared_is_noticed(tmp_path: Path, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "MAP_PRIVATE", mmap.MAP_SHARED)
        tally = work("mapper", tmp_path / "mapper")
    assert tally.wrong


def test_a_process_of_an_application_that_dies_is_noticed(tmp_path: Path, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *arguments: os._exit(3))
        tally = work("blocks", tmp_path / "blocks")
    assert "ended with 3" in tally.errors[0]
