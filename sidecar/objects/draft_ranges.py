"""Sets of byte ranges."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    """Half-open ranges of bytes, in order, none touching another."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        """Have a range in the set."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if ends and ends[-1] == start:  # what a sequential writer does
            ends[-1] = end
            return
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        """Have nothing of a range in the set."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        first = bisect_right(ends, start)
        last = bisect_left(starts, end)
        if first >= last:
            return
        left = (starts[first], start) if starts[first] < start else None
        right = (end, ends[last - 1]) if ends[last - 1] > end else None
        kept = [one for one in (left, right) if one is not None]
        starts[first:last] = [one[0] for one in kept]
        ends[first:last] = [one[1] for one in kept]

    def within(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what of the set is in a range."""
        for number in range(bisect_right(self._ends, start), len(self._starts)):
            begin, stop = max(self._starts[number], start), min(self._ends[number], end)
            if begin >= stop:
                return
            yield begin, stop

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what of a range is not in the set."""
        at = start
        for begin, stop in self.within(start, end):
            if at < begin:
                yield at, begin
            at = stop
        if at < end:
            yield at, end

    def covers(self, start: int, end: int) -> bool:
        """Tell whether all of a range is in the set."""
        return next(self.missing(start, end), None) is None

    def touches(self, start: int, end: int) -> bool:
        """Tell whether anything of a range is in the set."""
        return next(self.within(start, end), None) is not None
