"""How one rotating process stands: what probes and Prometheus ask. No secret is in it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from certs.secret import Custody
from certs.trust import Trust, Verdict
from sidemount.model.errors import Reason

_PREFIX = "sidemount_certs"
STUCK_S = 120.0


@dataclass(slots=True)
class Standing:
    """The present state, kept by the rotator."""

    monotonic_s: Callable[[], float]
    looked_at_s: float | None = None
    stepped_at_s: float = 0.0
    custody: Custody | None = None
    leads: bool = False
    has_been_ready: bool = False
    own: Verdict | None = None
    is_behind: bool = False
    authorities: dict[str, int] = field(default_factory=dict)
    serving_not_after: datetime | None = None
    authority_not_after: datetime | None = None
    skew_s: float = 0.0
    fault: str = ""
    notes: tuple[str, ...] = ()
    changes: Counter[str] = field(default_factory=Counter)
    failures: Counter[Reason] = field(default_factory=Counter)
    publications: int = 0

    def is_started(self) -> bool:
        """Whether a certificate is in place, so that the webhook can start."""
        return self.serving_not_after is not None

    def is_alive(self) -> bool:
        """Whether the loop still turns."""
        return self.monotonic_s() - self.stepped_at_s < STUCK_S

    def missing(self) -> str:
        """Return why this pod should get no calls, "" if it should.

        A bundle that somebody broke for all replicas makes none unready that was ready: there would be none left, and it
        is repaired in seconds. One that is behind the others is.
        """
        if not self.is_started():
            return self.fault or "no certificate is in place yet"
        if self.looked_at_s is None and not self.has_been_ready:
            return self.fault or "the cluster was not read yet"
        if self.own is None or self.own.is_verified:
            return ""
        broken_here = self.own.trust in (Trust.UNREACHABLE, Trust.TIMED_OUT, Trust.NOT_TLS)
        if broken_here or self.is_behind or not self.has_been_ready:
            return f"{self.own.trust.value}: {self.own.message}"
        return ""

    def told(self) -> tuple[str, ...]:
        """Return what a person should know besides."""
        notes = list(self.notes)
        if self.fault:
            notes.append(self.fault)
        if self.own is not None and not self.own.is_verified:
            notes.append(f"{self.own.trust.value}: {self.own.message}")
        return tuple(dict.fromkeys(notes))


class StandingCollector(Collector):
    """The same for Prometheus. Every label value comes from an enum or a fixed table."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of now."""
        standing = self._standing
        for name, text, value in self._gauges():
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text)
            gauge.add_metric([], value)
            yield gauge
        held = GaugeMetricFamily(f"{_PREFIX}_authorities", "Authorities by state", labels=["state"])
        for state, count in standing.authorities.items():
            held.add_metric([state], count)
        yield held
        trust = GaugeMetricFamily(
            f"{_PREFIX}_handshake", "1 for what the last handshake with ourselves came to", labels=["trust"]
        )
        for code in Trust:
            if standing.own is not None:
                trust.add_metric([code.value], float(standing.own.trust is code))
        yield trust
        custody = GaugeMetricFamily(f"{_PREFIX}_custody", "1 for whose the Secret is", labels=["custody"])
        for kind in Custody:
            custody.add_metric([kind.value], float(standing.custody is kind))
        yield custody
        changes = CounterMetricFamily(f"{_PREFIX}_changes", "Changes of the Secret", labels=["change"])
        for change, count in standing.changes.items():
            changes.add_metric([change], count)
        yield changes
        failures = CounterMetricFamily(f"{_PREFIX}_failures", "Steps that failed", labels=["reason"])
        for reason, count in standing.failures.items():
            failures.add_metric([reason.value], count)
        yield failures
        publications = CounterMetricFamily(f"{_PREFIX}_publications", "Bundles published or repaired")
        publications.add_metric([], standing.publications)
        yield publications

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        standing = self._standing
        yield "ready", "Whether this pod should get calls", float(not standing.missing())
        yield "leader", "Whether this process leads", float(standing.leads)
        yield (
            "serving_not_after_seconds",
            "When the certificate in place ends",
            _epoch(standing.serving_not_after),
        )
        yield "authority_not_after_seconds", "When the authority ends", _epoch(standing.authority_not_after)
        yield "clock_skew_seconds", "How far our clock is ahead of the API server's", standing.skew_s
        if standing.looked_at_s is not None:
            age = standing.monotonic_s() - standing.looked_at_s
            yield "last_success_age_seconds", "Since the cluster was last read", age


def _epoch(moment: datetime | None) -> float:
    return moment.timestamp() if moment is not None else 0.0
