"""Which part of an upload has which bytes: a rule, so that no table of it has to be kept or handed on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

LARGEST_OBJECT = 5 << 40  # of S3 and GCS; the others take more
_STEADY = 4000  # so many parts are of one size: 32 GB of parts of 8 MiB
_TIER = 450  # after which so many each are twice as large as those before
_COPIED = 256 << 20
_MOST_COPIED = 2100  # the last of them may be nearly twice as large: it takes the rest


class Span(NamedTuple):
    """The bytes of one part. Numbers begin at 1."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of one upload.

    The first `prefix` bytes are copied from the object that is there, in large pieces; then come parts of `part_bytes`, which grow
    as the object does, so that 10,000 of them are enough for the largest object. None is larger than `largest_part`.
    """

    part_bytes: int
    prefix: int
    largest_part: int

    def span(self, number: int) -> Span:
        """Return the bytes of a part, as if the object never ended."""
        pieces = self._pieces
        if number <= pieces:
            start = (number - 1) * self._piece
            return Span(number, start, self.prefix if number == pieces else start + self._piece)
        index = number - pieces - 1
        start, size = self.prefix, self._steady
        if index >= _STEADY:
            start += _STEADY * size
            index -= _STEADY
            while index >= _TIER:
                size = self._doubled(size)
                start += _TIER * size
                index -= _TIER
            size = self._doubled(size)
        start += index * size
        return Span(number, start, start + size)

    def number_at(self, offset: int) -> int:
        """Return the part that a byte is in."""
        pieces = self._pieces
        if offset < self.prefix:
            return min(offset // self._piece + 1, pieces)
        offset -= self.prefix
        size = self._steady
        if offset < _STEADY * size:
            return pieces + offset // size + 1
        offset -= _STEADY * size
        number = pieces + _STEADY
        size = self._doubled(size)
        while offset >= _TIER * size:
            offset -= _TIER * size
            number += _TIER
            size = self._doubled(size)
        return number + offset // size + 1

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """Yield the parts that have bytes of a range, whole."""
        if start >= end:
            return
        for number in range(self.number_at(start), self.number_at(end - 1) + 1):
            yield self.span(number)

    @property
    def _piece(self) -> int:
        return min(max(_COPIED, -(-self.prefix // _MOST_COPIED)), self.largest_part // 2)

    @property
    def _pieces(self) -> int:
        return max(self.prefix // self._piece, 1) if self.prefix else 0

    @property
    def _steady(self) -> int:
        return min(max(self.part_bytes, self.prefix // 10_000), self.largest_part)

    def _doubled(self, size: int) -> int:
        return min(2 * size, self.largest_part)
