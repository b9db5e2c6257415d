"""Inode numbers apart from node ids, in pyfuse3's own objects."""

import ctypes
import logging
import stat
import sys

import pyfuse3
import pytest

from sidecar import protocol_entry
from sidecar.protocol_entry import EntryRenderer, find_ino_offset
from sidecar.protocol_filesystem import Attributes

BIG = 2**63 + 12345
FILE = Attributes(
    BIG, stat.S_IFREG | 0o4644, 3, 1000, 2000, 0, 2**40, 4096, 2**31, -1, 10**18 + 1, 10**18 + 2
)


def test_place_of_the_inode_number_is_found() -> None:
    assert find_ino_offset() is not None


def test_rendered_entry_has_node_and_inode_number() -> None:
    entry = EntryRenderer(attribute_timeout_s=1.5, entry_timeout_s=0).render(42, FILE)
    assert entry.st_ino == 42
    words = ctypes.string_at(id(entry), pyfuse3.EntryAttributes.__basicsize__)
    assert words.count(BIG.to_bytes(8, sys.byteorder)) == 1
    assert entry.st_mode == FILE.mode
    assert (entry.st_nlink, entry.st_uid, entry.st_gid) == (3, 1000, 2000)
    assert (entry.st_size, entry.st_blocks, entry.st_blksize) == (2**40, 2**31, 4096)
    assert (entry.st_atime_ns, entry.st_mtime_ns, entry.st_ctime_ns) == (-1, 10**18 + 1, 10**18 + 2)
    assert (entry.attr_timeout, entry.entry_timeout, entry.generation) == (1.5, 0, 0)


def test_without_a_known_place_the_node_is_the_inode_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(protocol_entry, "find_ino_offset", lambda: None)
    renderer = EntryRenderer(attribute_timeout_s=1, entry_timeout_s=1)
    assert renderer.render(42, FILE).st_ino == 42
    assert not renderer.answer(pyfuse3.ReaddirToken()).takes_names
    assert [record.getMessage() for record in caplog.records] == ["inode_numbers_unstable"]


class Replies(list[tuple[bytes, int, int, int, int]]):
    """What pyfuse3 would put into a listing: name, node, inode number, mode, position; one object may be used again."""

    def __call__(
        self, token: pyfuse3.ReaddirToken, name: bytes, entry: pyfuse3.EntryAttributes, position: int
    ) -> bool:
        offset = find_ino_offset()
        ino = 0 if offset is None else ctypes.c_uint64.from_address(id(entry) + offset).value
        self.append((name, entry.st_ino, ino, entry.st_mode, position))
        return len(self) < 3


def test_a_name_alone_has_no_node_and_keeps_its_inode_number(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies()
    monkeypatch.setattr(protocol_entry, "_reply", replies)
    answer = EntryRenderer(attribute_timeout_s=1, entry_timeout_s=1).answer(pyfuse3.ReaddirToken())
    assert answer.takes_names
    assert answer.name_alone(b"one", BIG, stat.S_IFLNK >> 12, 5)
    assert answer(b"two", 42, FILE, 6)
    assert not answer.name_alone(b"three", 9, stat.S_IFREG >> 12, 7)
    assert replies == [
        (b"one", 0, BIG, stat.S_IFLNK, 5),
        (b"two", 42, BIG, FILE.mode, 6),
        (b"three", 0, 9, stat.S_IFREG, 7),
    ]


def test_without_a_known_place_only_the_dots_are_listed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inode number of 0 would say "deleted"."""
    replies = Replies()
    monkeypatch.setattr(protocol_entry, "_reply", replies)
    monkeypatch.setattr(protocol_entry, "find_ino_offset", lambda: None)
    answer = EntryRenderer(attribute_timeout_s=1, entry_timeout_s=1).answer(pyfuse3.ReaddirToken())
    with pytest.raises(OSError, match="without its attributes"):
        answer.name_alone(b"one", BIG, stat.S_IFREG >> 12, 5)
    assert answer.name_alone(b"..", 7, stat.S_IFDIR >> 12, 6)
    assert [reply[:3] for reply in replies] == [(b"..", 7, 7)]
