"""Histogram: counts by upper bound for Prometheus, cheap to observe."""

from bisect import bisect_left

from prometheus_client.metrics_core import HistogramMetricFamily


class Histogram:
    """Of one set of labels. One event loop's: observing is not safe from threads.

    prometheus-client's own lock on every step; these are plain numbers that are rendered when scraped.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        """Add what was counted to a family."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(labels, buckets, self._sum)
