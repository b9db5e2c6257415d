"""How long applications waited: from the moments of the blows and the prober's slow calls. Pure."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

Call = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles of a sample, in milliseconds."""

    count: int
    p50: float
    p99: float
    most: float


def stalls_ms(blows: Sequence[float], slow_calls: Sequence[Call]) -> list[float]:
    """Return for each blow the longest wait that it caused, 0 if no call was slow.

    Moments are of one clock, in seconds, blows in order. A blow is blamed for the calls that it hit, and for those that began
    after it and before the next one.
    """
    longest = [0.0] * len(blows)
    for begin, end in slow_calls:
        first, beyond = bisect.bisect_left(blows, begin), bisect.bisect_right(blows, end)
        hit = range(first, beyond) if first < beyond else range(max(0, first - 1), first)
        for number in hit:
            longest[number] = max(longest[number], end - max(begin, blows[number]))
    return [wait * 1000 for wait in longest]


def spread(sample: Sequence[float]) -> Spread | None:
    """Return the percentiles of a sample, None if it is empty. The nearest rank, so each is a value that was measured."""
    if not sample:
        return None
    ordered = sorted(sample)

    def rank(share: float) -> float:
        return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

    return Spread(count=len(ordered), p50=rank(0.5), p99=rank(0.99), most=ordered[-1])
