"""Which blocks the cache volume has: in the order of their last use, with the room they take."""

import heapq
import itertools
import os
import threading
from collections.abc import Callable, Iterator

from sidecar.objects.cache_file import room_of

_MOST_FILES = 200_000  # an entry takes 150 bytes of memory
_UNIT_BYTES = 4096
_NAME_DIGITS = 16
_BREATH = 500  # entries, after which a scan lets others have the processor

TEMPORARY = "tmp-"


class CacheIndex:
    """The files of a cache volume. For any thread; never waits for the disk.

    An entry's value is its room in units, twice, and one more if this process has found its checksum right. Equal values are one object.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self._lock = threading.Lock()
        self._entries: dict[int, int] = {}
        self._values: dict[int, int] = {}
        self._taken = 0

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def taken_bytes(self) -> int:
        """Return the room that is taken, or given to somebody who is writing."""
        return self._taken

    def has_room(self, size: int) -> bool:
        """Tell whether there is room for a block of that size without giving anything up."""
        return self._taken + room_of(size) <= self.bound_bytes and len(self._entries) < _MOST_FILES

    def fill(self, found: list[tuple[int, int]]) -> None:
        """Take what a scan has found: number and room, the least recently used first."""
        with self._lock:
            for number, room in found:
                if number not in self._entries:
                    self._entries[number] = self._value(room, is_verified=False)
                    self._taken += room

    def is_verified(self, number: int) -> bool:
        """Tell whether this process has found an entry's checksum right."""
        return bool(self._entries.get(number, 0) & 1)

    def use(self, number: int) -> None:
        """Take note that an entry was read, and was right."""
        with self._lock:
            entry = self._entries.pop(number, None)
            if entry is not None:
                self._entries[number] = self._value(_room(entry), is_verified=True)

    def reserve(self, size: int, *, replaces: bool = True) -> list[tuple[int, int]] | None:
        """Give room to a block of that size. Return what has to go for it, number and room, which counts until `release`.

        None: it does not fit, not even if it `replaces` others.
        """
        room = room_of(size)
        with self._lock:
            if room > self.bound_bytes or not (replaces or self.has_room(size)):
                return None
            victims: list[tuple[int, int]] = []
            kept = self._taken
            for number, entry in self._entries.items():
                if kept + room <= self.bound_bytes and len(self._entries) - len(victims) < _MOST_FILES:
                    break
                victims.append((number, _room(entry)))
                kept -= _room(entry)
            if kept + room > self.bound_bytes:
                return None  # others are writing
            for number, _ in victims:
                del self._entries[number]
            self._taken += room
            return victims

    def shrink(self, room: int) -> list[tuple[int, int]]:
        """Return the oldest entries that take that much room together, as `reserve` does."""
        with self._lock:
            victims: list[tuple[int, int]] = []
            for number, entry in self._entries.items():
                if room <= 0:
                    break
                victims.append((number, _room(entry)))
                room -= _room(entry)
            for number, _ in victims:
                del self._entries[number]
            return victims

    def release(self, room: int) -> None:
        """Take room back: a file is gone, or was not written."""
        with self._lock:
            self._taken -= room

    def add(self, number: int, room: int) -> None:
        """Enter a file that was written into room that was reserved."""
        with self._lock:
            before = self._entries.pop(number, None)
            if before is not None:
                self._taken -= _room(before)  # written over
            self._entries[number] = self._value(room, is_verified=True)

    def remove(self, number: int) -> int:
        """Strike a file out, and return the room that `release` gets when it is gone."""
        with self._lock:
            return _room(self._entries.pop(number, 0))

    def _value(self, room: int, *, is_verified: bool) -> int:
        value = room // _UNIT_BYTES << 1 | is_verified
        return self._values.setdefault(value, value)


def _room(value: int) -> int:
    return (value >> 1) * _UNIT_BYTES


def number_of(of: bytes) -> int:
    """Return what a block's file is called by."""
    return int.from_bytes(of[: _NAME_DIGITS // 2], "big")


def path_of(directory: str, number: int) -> str:
    """Return the path of a block's file."""
    name = f"{number:016x}"
    return f"{directory}/{name[:2]}/{name}"


def scan(directory: str, breathe: Callable[[], bool]) -> Iterator[list[tuple[int, int]]]:
    """Return number and room of all files in pieces, the least recently used first. Removes what was not written to its end.

    `breathe` is called every now and then; False ends it. Nothing here keeps the interpreter from others for long, as sorting all at once would.
    Raises OSError.
    """
    runs: list[list[tuple[int, int, int]]] = [[]]
    for entry in _files(directory):
        if entry.name.startswith(TEMPORARY):
            os.unlink(entry.path)
        elif _is_name(entry.name):
            status = entry.stat(follow_symlinks=False)
            room = max(room_of(0), -(-status.st_size // _UNIT_BYTES) * _UNIT_BYTES)
            runs[-1].append((status.st_mtime_ns, int(entry.name, 16), room))
        if len(runs[-1]) == _BREATH:
            runs[-1].sort()
            runs.append([])
            if not breathe():
                return
    runs[-1].sort()
    merged = heapq.merge(*runs)
    while piece := [(number, room) for _, number, room in itertools.islice(merged, _BREATH)]:
        yield piece
        if not breathe():
            return


def _files(directory: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as parts:
        for part in parts:
            if part.is_dir(follow_symlinks=False):
                with os.scandir(part.path) as files:
                    yield from files
            elif part.name.startswith(TEMPORARY):
                yield part


def _is_name(name: str) -> bool:
    return len(name) == _NAME_DIGITS and all(digit in "0123456789abcdef" for digit in name)
