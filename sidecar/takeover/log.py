"""A log of records in a state file: appended at the end, cleaned and given back from the beginning.

A record is a length, a checksum and its content. The length is stored last and in one piece, so a process that is killed meanwhile
leaves no record rather than half of one. No record crosses a window.
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator

from sidecar.takeover import layout
from sidecar.takeover.mapping import give_back, map_bytes, reserve
from sidemount.model.errors import BadMessage

_HEADER = 8  # length and checksum, 32 bits each
_REST_UNUSED = b"\xff" * 4  # instead of a length: the window ends here


class Log:
    """The log of one state. `head` has the numbers of its first window and of the one after its last.

    `records` is how many there are, current or not. Not safe to use from several threads.
    """

    def __init__(self, file: int, head: memoryview) -> None:
        self._file = file
        self._head = head
        self.records = 0
        self._end = layout.WINDOW  # where the next record goes in the last window; none is mapped yet
        self._last: memoryview
        self._lengths: memoryview
        self._cleaning: Iterator[bytes] | None = None  # what is left of the first window

    def read(self) -> Iterator[list[bytes]]:
        """Yield all records from the oldest, by window, then be ready to append. Called once, before anything else.

        Raises BadMessage.
        """
        begin, end = self._head[layout.AT_LOG_BEGIN], self._head[layout.AT_LOG_END]
        for window in range(begin, end):
            is_last = window == end - 1
            content = bytes(map_bytes(self._file, _offset(window), layout.WINDOW))
            records, at = _parse(content, is_checked=is_last)
            yield records
            self.records += len(records)
            if is_last:
                self._map_last(window)
                self._last[at:] = bytes(layout.WINDOW - at)  # a torn record must not be taken for one later
                self._end = at
            elif content[at : at + 4] not in (_REST_UNUSED, b""):
                raise BadMessage(f"window {window} of the log is damaged at byte {at}")

    def append(self, content: bytes) -> None:
        """Add a record. Raises OSError: ENOSPC if it cannot grow."""
        size = _HEADER + (len(content) + 3 & ~3)
        at = self._end
        if at + size > layout.WINDOW:
            self._add_window()
            at = 0
        body = at + _HEADER
        self._last[body : body + len(content)] = content
        word = at >> 2
        self._lengths[word + 1] = zlib.crc32(content)
        self._lengths[word] = len(content)
        self._end = at + size
        self.records += 1

    def clean(self, most: int, is_current: Callable[[bytes], bool]) -> None:
        """Take up to `most` records off the beginning; those that still say something are appended again. Raises OSError."""
        for _ in range(most):
            begin = self._head[layout.AT_LOG_BEGIN]
            if begin >= self._head[layout.AT_LOG_END] - 1:
                return  # what is being written is not cleaned
            if self._cleaning is None:
                content = bytes(map_bytes(self._file, _offset(begin), layout.WINDOW))
                self._cleaning = iter(_parse(content, is_checked=False)[0])
            record = next(self._cleaning, None)
            if record is None:
                self._cleaning = None
                self._head[layout.AT_LOG_BEGIN] = begin + 1
                give_back(self._file, _offset(begin), layout.WINDOW)
                continue
            if is_current(record):
                self.append(record)
            self.records -= 1

    def give_back(self) -> None:
        """Free all space, for there will be no successor: others need it. Nothing may be appended any more."""
        begin, end = self._head[layout.AT_LOG_BEGIN], self._head[layout.AT_LOG_END]
        if begin < end:
            self._head[layout.AT_LOG_BEGIN] = end
            with contextlib.suppress(OSError):
                give_back(self._file, _offset(begin), (end - begin) * layout.WINDOW)

    def _add_window(self) -> None:
        window = self._head[layout.AT_LOG_END]
        offset = _offset(window)
        os.truncate(self._file, offset + layout.WINDOW)
        reserve(self._file, offset, layout.WINDOW)
        if self._end <= layout.WINDOW - 4:
            self._last[self._end : self._end + 4] = _REST_UNUSED
        self._map_last(window)
        self._head[layout.AT_LOG_END] = window + 1
        self._end = 0

    def _map_last(self, window: int) -> None:
        self._last = map_bytes(self._file, _offset(window), layout.WINDOW)
        self._lengths = self._last.cast("I")


def _offset(window: int) -> int:
    return layout.LOG + window * layout.WINDOW


def _parse(content: bytes, *, is_checked: bool) -> tuple[list[bytes], int]:
    """Return the records of a window and the place after the last of them.

    Only where records are still being added can one be torn; a million checksums would take a second.
    """
    lengths = memoryview(content).cast("I")
    records = []
    at = 0
    size = len(content)
    while at <= size - _HEADER:
        word = at >> 2
        length = lengths[word]
        body = at + _HEADER
        end = body + length
        if not length or end > size:  # the end, or what says that the rest is unused
            break
        record = content[body:end]
        if is_checked and zlib.crc32(record) != lengths[word + 1]:
            break
        records.append(record)
        at = end + 3 & ~3
    return records, at
