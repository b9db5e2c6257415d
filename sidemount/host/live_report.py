"""KindReport: how well a kind of objects is followed, for metrics and for who asks whether we are ready."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from sidemount.host.cluster_reader import Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class KindReport:
    """One kind. `age_s`: since the API server last spoke of it, infinite if never. `lists`: how often it was listed."""

    kind: str
    is_synced: bool
    is_live: bool
    age_s: float
    objects: int
    faults: int
    lists: int
    errors: Mapping[Trouble, int] = field(default_factory=dict)


def families(reports: Iterable[KindReport], reads: int | None, prefix: str) -> Iterator[Metric]:
    """Yield the metrics of all kinds; `reads` is None where single reads are not made. Labels are kinds and sorts of trouble, both of fixed tables."""
    gauges = {
        name: GaugeMetricFamily(f"{prefix}_kind_{name}", text, labels=["kind"])
        for name, text in (
            (
                "age_seconds",
                "Time since the API server last spoke of a kind; watches are renewed within two minutes.",
            ),
            ("synced", "1 once a kind was listed, or is known not to be readable."),
            ("live", "1 while a watch of the kind is open."),
            ("objects", "Objects known."),
            ("faults", "Objects that cannot be used."),
        )
    }
    lists = CounterMetricFamily(f"{prefix}_kind_lists", "Whole lists taken over.", labels=["kind"])
    errors = CounterMetricFamily(f"{prefix}_kind_errors", "Reads that failed.", labels=["kind", "trouble"])
    for report in reports:
        label = [report.kind]
        gauges["age_seconds"].add_metric(label, report.age_s)
        gauges["synced"].add_metric(label, float(report.is_synced))
        gauges["live"].add_metric(label, float(report.is_live))
        gauges["objects"].add_metric(label, report.objects)
        gauges["faults"].add_metric(label, report.faults)
        lists.add_metric(label, report.lists)
        for trouble, count in report.errors.items():
            errors.add_metric([report.kind, trouble.value], count)
    yield from (*gauges.values(), lists, errors)
    if reads is not None:
        yield CounterMetricFamily(f"{prefix}_second_looks", "Single reads before a refusal.", value=reads)
