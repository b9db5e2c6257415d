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


def stalls_ms(blows: Sequence[float], slow_calls: Sequence[Call], until: float) -> list[float]:
    """Return for each blow how long the call that it hit had to wait, 0 if no call was slow.

    Moments are of one clock, in seconds and in order. A call counts for the blow after which it ended first.
    """
    ends = [end for _, end in slow_calls]
    stalls = []
    for number, blow in enumerate(blows):
        following = blows[number + 1] if number + 1 < len(blows) else until
        longest = 0.0
        for begin, end in slow_calls[bisect.bisect_left(ends, blow) :]:
            if begin > following:
                break
            longest = max(longest, end - max(begin, blow))
        stalls.append(longest * 1000)
    return stalls


def spread(sample: Sequence[float]) -> Spread | None:
    """Return the percentiles of a sample, None if it is empty. The nearest rank, so each is a value that was measured."""
    if not sample:
        return None
    ordered = sorted(sample)

    def rank(share: float) -> float:
        return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

    return Spread(count=len(ordered), p50=rank(0.5), p99=rank(0.99), most=ordered[-1])
