"""What is counted of calls. Labels are the RPCs that we answer and gRPC's codes: none comes from a request."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from sidemount.host.histogram import Histogram

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class CallCounts:
    """Calls since this process began. Implements `csi.boundary.CallWatch`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._under_way = 0

    def began(self, method: str) -> None:
        """Take note of a call."""
        self._under_way += 1

    def ended(self, method: str, code: str, elapsed_s: float) -> None:
        """Take note of its answer."""
        self._under_way -= 1
        self._counts[method, code] += 1
        self._seconds.setdefault(method, Histogram(SECONDS)).observe(elapsed_s)

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        calls = CounterMetricFamily("sidemount_csi_calls", "Calls answered.", labels=["method", "code"])
        for labels, count in sorted(self._counts.items()):
            calls.add_metric(labels, count)
        yield calls
        seconds = HistogramMetricFamily(
            "sidemount_csi_call_duration_seconds", "Time to answer a call.", labels=["method"]
        )
        for method, histogram in sorted(self._seconds.items()):
            histogram.add_to(seconds, [method])
        yield seconds
        yield GaugeMetricFamily(
            "sidemount_csi_calls_under_way", "Calls without an answer yet.", value=self._under_way
        )
