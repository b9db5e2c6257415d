"""ObjectCounts: what volumes of buckets count, by class, as metrics. Labels are names of classes and words of ours.

Whoever is told of volumes has one: the node service by its keeper, the observer by the keepers' logs.
"""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from sidemount.model.object_numbers import FAMILIES, Nature, ObjectTotals, Report

_CLASS = "class"


class ObjectCounts:
    """Of many volumes. `label` returns the label of a class, of no more classes than can be."""

    def __init__(self, label: Callable[[str], str]) -> None:
        self._label = label
        self._totals: dict[str, ObjectTotals] = {}
        self._labels: dict[str, str] = {}

    def __len__(self) -> int:
        """Return of how many volumes something is known."""
        return len(self._labels)

    def know(self, volume: str, driver_class: str) -> None:
        """Learn of which class a volume is."""
        if volume not in self._labels:
            label = self._labels[volume] = self._label(driver_class)
            self._totals.setdefault(label, ObjectTotals())

    def take(self, volume: str, report: Report, *, is_counted: bool = True) -> None:
        """Take a report as `ObjectTotals` does; of a volume that is not known nothing is taken."""
        label = self._labels.get(volume)
        if label is not None:
            self._totals[label].take(volume, report, is_counted=is_counted)

    def forget(self, volume: str) -> None:
        """Know nothing of a volume any more; what it has counted stays."""
        label = self._labels.pop(volume, None)
        if label is not None:
            self._totals[label].forget(volume)

    def collect(self, *, is_present: bool = True) -> Iterator[Metric]:
        """Yield every family; each series of a class is there from its first volume on. Not `is_present`: nobody tells us what there is now."""
        for family in FAMILIES:
            make = CounterMetricFamily if family.nature is Nature.COUNTED else GaugeMetricFamily
            shown = make(
                family.name, family.text, labels=[_CLASS, family.label] if family.label else [_CLASS]
            )
            is_told = is_present or family.nature is Nature.COUNTED
            for driver_class, totals in sorted(self._totals.items()) if is_told else ():
                for value, source in family.series.items():
                    labels = [driver_class, value] if family.label else [driver_class]
                    shown.add_metric(labels, totals.value(family, source))
            yield shown
