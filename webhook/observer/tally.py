"""Tally: what is counted of volumes, by class. Labels are names of classes, which an admin makes, and codes; never a pod's."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

from sidemount.host.histogram import Histogram
from webhook.observer.news import Occurrence, Reason

STALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
OTHER = "other"
_CLASSES_MAX = 500
_COUNTED = {
    Reason.TAKEN_OVER: ("sidemount_takeovers", "Times a fresh process continued a volume's connection."),
    Reason.REMOUNTED: ("sidemount_remounts", "Times a volume was mounted anew; open files were lost."),
    Reason.KEEPER_RESTARTED: ("sidemount_keeper_restarts", "Volumes that a restarted keeper took back."),
    Reason.VOLUME_ABNORMAL: ("sidemount_abnormal", "Times a volume became abnormal."),
    Reason.VOLUME_RECOVERED: ("sidemount_recovered", "Times a volume became well again."),
    Reason.OOM_KILLED: ("sidemount_oom_kills", "Containers of ours that were killed at their memory limit."),
}


class Tally:
    """Counts since this process began. `is_class` says whether a class of that name is there."""

    def __init__(self, is_class: Callable[[str], bool]) -> None:
        self._is_class = is_class
        self._counts: Counter[tuple[Reason, str]] = Counter()
        self._stalls: dict[str, Histogram] = {}
        self._labels: set[str] = set()

    def count(self, occurrence: Occurrence) -> None:
        """Count something that happened."""
        if occurrence.reason not in _COUNTED:
            return
        label = self.label(occurrence.driver_class)
        self._counts[occurrence.reason, label] += 1
        if occurrence.stall_ms is not None:
            stalls = self._stalls.setdefault(label, Histogram(STALL_SECONDS))
            stalls.observe(occurrence.stall_ms / 1000)

    def label(self, driver_class: str) -> str:
        """Return the label for a class: its name while such a class is there, and of no more classes than can be."""
        if driver_class in self._labels:
            return driver_class
        if not self._is_class(driver_class) or len(self._labels) >= _CLASSES_MAX:
            return OTHER
        self._labels.add(driver_class)
        return driver_class

    def collect(self) -> Iterator[Metric]:
        """Yield every family and class, those that count nothing yet too.

        What is absent cannot be told from what is broken, and of a counter that begins with 1 Prometheus sees no increase.
        """
        labels = sorted(self._labels | {label for _, label in self._counts} | {OTHER})
        for reason, (name, text) in _COUNTED.items():
            family = CounterMetricFamily(name, text, labels=["class"])
            for label in labels:
                family.add_metric([label], self._counts[reason, label])
            yield family
        stalls = HistogramMetricFamily(
            "sidemount_stall_seconds",
            "How long a volume answered nothing, at takeovers and remounts.",
            labels=["class"],
        )
        for label in labels:
            self._stalls.get(label, Histogram(STALL_SECONDS)).add_to(stalls, [label])
        yield stalls
