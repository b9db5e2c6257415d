"""Prometheus text as tests read it: single values, and what a histogram has gained between two looks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    labels: Mapping[str, str]
    value: float


def samples(text: str, name: str, /, **labels: str) -> list[Sample]:
    """Return the lines of a metric that have these labels, and maybe more."""
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match[1] != name:
            continue
        own = dict(_LABEL.findall(match[2] or ""))
        if labels.items() <= own.items():
            found.append(Sample(own, float(match[3])))
    return found


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts up to each upper bound, in their order, and the sum of all that was observed."""

    counts: tuple[tuple[float, float], ...]
    total: float

    def since(self, before: "Histogram") -> "Histogram":
        """Return what has come since an earlier look."""
        earlier = dict(before.counts)
        counts = tuple((bound, count - earlier.get(bound, 0.0)) for bound, count in self.counts)
        return Histogram(counts, self.total - before.total)

    @property
    def count(self) -> float:
        """How many were observed."""
        return self.counts[-1][1] if self.counts else 0.0

    def quantile(self, part: float) -> float:
        """Return a quantile as Prometheus computes it: even within a bucket, the last bound at most."""
        rank, lower, below = part * self.count, 0.0, 0.0
        for bound, count in self.counts:
            if count >= rank and count > below:
                if bound == float("inf"):
                    return lower
                return lower + (bound - lower) * (rank - below) / (count - below)
            lower, below = bound, count
        return lower

    def told(self) -> str:
        """Return it for a person, in milliseconds."""
        mean = self.total / self.count if self.count else 0.0
        return f"{self.count:.0f} with p50 {self.quantile(0.5) * 1000:.1f} p99 {self.quantile(0.99) * 1000:.1f} mean {mean * 1000:.1f} ms"


def histogram(text: str, name: str, /, **labels: str) -> Histogram:
    """Return a histogram: the sum of all series that have these labels."""
    counts: dict[float, float] = {}
    for sample in samples(text, f"{name}_bucket", **labels):
        bound = float(sample.labels["le"])
        counts[bound] = counts.get(bound, 0.0) + sample.value
    total = sum(sample.value for sample in samples(text, f"{name}_sum", **labels))
    return Histogram(tuple(sorted(counts.items())), total)
