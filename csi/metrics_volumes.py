"""VolumeTally: what is counted of a node's volumes. Labels are names of classes, which an admin makes, and reason codes."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

from csi import event_reasons
from csi.event_reasons import Reason
from sidemount.host.histogram import Histogram
from sidemount.model import errors

STALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
OTHER = "other"
_CLASSES_MAX = 500
_COUNTED = {
    Reason.TAKEN_OVER: ("takeovers", "Times a fresh process continued a volume's connection."),
    Reason.REMOUNTED: ("remounts", "Times a volume was mounted anew; open files were lost."),
    Reason.VOLUME_ABNORMAL: ("abnormal", "Times a volume became abnormal."),
    Reason.VOLUME_RECOVERED: ("recovered", "Times a volume became well again."),
}
_ENDS = "daemon_ends"


class VolumeTally:
    """Counts since this process began."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._stalls: dict[str, Histogram] = {}
        self._failures: Counter[str] = Counter()
        self._labels: set[str] = set()
        self._detached = 0

    def label(self, driver_class: str) -> str:
        """Return the label for a class: its name, of no more classes than can be."""
        if driver_class not in self._labels:
            if not driver_class or len(self._labels) >= _CLASSES_MAX:
                return OTHER
            self._labels.add(driver_class)
        return driver_class

    def happened(self, reason: event_reasons.Reason, driver_class: str, times: int = 1) -> None:
        """Count something that became of volumes of a class."""
        self._counts[_COUNTED[reason][0], self.label(driver_class)] += times

    def interrupted(self, reason: event_reasons.Reason, driver_class: str, times: int, pause_ms: int) -> None:
        """Count takeovers or remounts, of which the last one took so long."""
        self.happened(reason, driver_class, times)
        stalls = self._stalls.setdefault(self.label(driver_class), Histogram(STALL_SECONDS))
        stalls.observe(pause_ms / 1000)

    def daemon_ended(self, driver_class: str, times: int) -> None:
        """Count daemons that have ended although they were wanted."""
        self._counts[_ENDS, self.label(driver_class)] += times

    def publish_failed(self, reason: errors.Reason) -> None:
        """Count a publish that came to nothing."""
        self._failures[reason.value] += 1

    def leftover_detached(self, layers: int) -> None:
        """Count dead mounts that ended pods had left."""
        self._detached += layers

    def collect(self) -> Iterator[Metric]:
        """Yield every family and class, those that count nothing yet too: of a counter that begins with 1 Prometheus sees no increase."""
        labels = sorted(self._labels | {OTHER})
        for name, text in (
            *_COUNTED.values(),
            (_ENDS, "Times a daemon has ended, or its container, although its volume was published."),
        ):
            family = CounterMetricFamily(f"sidemount_csi_{name}", text, labels=["class"])
            for label in labels:
                family.add_metric([label], self._counts[name, label])
            yield family
        stalls = HistogramMetricFamily(
            "sidemount_csi_stall_seconds",
            "How long a volume answered nothing, at takeovers and remounts.",
            labels=["class"],
        )
        for label in labels:
            self._stalls.get(label, Histogram(STALL_SECONDS)).add_to(stalls, [label])
        yield stalls
        failures = CounterMetricFamily(
            "sidemount_csi_publish_failures", "Publishes that came to nothing, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._failures.items()):
            failures.add_metric([reason], count)
        yield failures
        yield CounterMetricFamily(
            "sidemount_csi_janitor_detached", "Dead mounts of ended pods taken away.", value=self._detached
        )
