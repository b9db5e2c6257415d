"""What the service counts, for Prometheus. Every label value comes from an enum or a fixed table: none from a request."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sidemount.host.histogram import Histogram
from sidemount.host.live_report import KindReport, families
from webhook.outcome import Outcome

SECONDS = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    3.0,
    10.0,
)
BYTES = (1024, 4096, 16384, 65536, 262144, 1048576, 3145728, 7340032)
_PREFIX = "sidemount_webhook"


class Path(Enum):
    """The two questions that are answered."""

    MUTATE = "mutate"
    VALIDATE = "validate"


class TlsFault(Enum):
    """Why a handshake failed."""

    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    GONE = "gone"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What is so right now; read when somebody scrapes. Ages and times in seconds, times since the epoch."""

    is_ready: bool
    is_draining: bool
    in_flight: int
    connections: int
    slow_clients: int
    facts_age_s: float
    facts_faults: int
    facts_generation: int
    driver_classes: int
    certificate_not_after: float
    certificate_is_faulty: bool
    facts_kinds: tuple[KindReport, ...] = ()
    facts_reads: int = 0


class Metrics(Collector):
    """Counters of one process. One event loop's: observing is not safe from threads.

    prometheus-client's own counters lock on every step; these are plain numbers that are rendered when scraped.
    """

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._statuses: Counter[int] = Counter()
        self._tls_faults: Counter[TlsFault] = Counter()
        self._proof_failures = 0
        self._certificate_loads = 0
        self._certificate_faults = 0
        self._seconds = {path.value: Histogram(SECONDS) for path in Path}
        self._bytes = {path.value: Histogram(BYTES) for path in Path}

    def decided(self, path: Path, outcome: Outcome, elapsed_s: float, size_bytes: int) -> None:
        """Count one decision."""
        # `_value_`: `.value` and an enum's hash run Python code, on the path of every request.
        asked = path._value_
        self._requests[asked, outcome.verdict._value_, outcome.reason._value_] += 1
        self._seconds[asked].observe(elapsed_s)
        self._bytes[asked].observe(size_bytes)
        if outcome.proof_failed:
            self._proof_failures += 1

    def refused(self, status: int) -> None:
        """Count one request that was answered with an HTTP status instead of a review."""
        self._statuses[status] += 1

    def tls_failed(self, fault: TlsFault) -> None:
        """Count one handshake that came to nothing."""
        self._tls_faults[fault] += 1

    def certificate_loaded(self) -> None:
        """Count one certificate taken into use."""
        self._certificate_loads += 1

    def certificate_faulty(self) -> None:
        """Count one certificate that could not be taken."""
        self._certificate_faults += 1

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        return generate_latest(registry)

    def describe(self) -> list[Metric]:
        """Return nothing: names are checked when they are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield from self._collect_requests()
        yield from self._collect_counters()
        yield from self._collect_gauges()

    def _collect_requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            f"{_PREFIX}_admission_requests",
            "Admission reviews answered, by question, verdict and reason.",
            labels=["path", "verdict", "reason"],
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        seconds = HistogramMetricFamily(
            f"{_PREFIX}_admission_duration_seconds",
            "Time to decide, without waiting for the body.",
            labels=["path"],
        )
        sizes = HistogramMetricFamily(f"{_PREFIX}_body_bytes", "Size of the reviews.", labels=["path"])
        for path in Path:
            self._seconds[path.value].add_to(seconds, [path.value])
            self._bytes[path.value].add_to(sizes, [path.value])
        yield seconds
        yield sizes

    def _collect_counters(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            f"{_PREFIX}_http_refusals", "Requests answered with an HTTP error.", labels=["status"]
        )
        for status, count in self._statuses.items():
            refused.add_metric([str(status)], count)
        yield refused
        handshakes = CounterMetricFamily(
            f"{_PREFIX}_tls_failures", "Handshakes that failed.", labels=["reason"]
        )
        for fault in TlsFault:
            handshakes.add_metric([fault.value], self._tls_faults[fault])
        yield handshakes
        for name, text, value in (
            (
                "patch_proof_failures",
                "Patches withheld because they did not pass their proof.",
                self._proof_failures,
            ),
            ("certificate_loads", "Serving certificates taken into use.", self._certificate_loads),
            ("certificate_faults", "Serving certificates that could not be taken.", self._certificate_faults),
        ):
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)

    def _collect_gauges(self) -> Iterator[Metric]:
        now = self._gauges()
        if now.facts_kinds:
            yield from families(now.facts_kinds, now.facts_reads, f"{_PREFIX}_facts")
        yield CounterMetricFamily(
            f"{_PREFIX}_slow_clients",
            "Connections closed because a request did not arrive.",
            value=now.slow_clients,
        )
        for name, text, value in (
            ("ready", "1 when this process is ready.", now.is_ready),
            ("draining", "1 when this process is on its way out.", now.is_draining),
            ("in_flight_requests", "Requests being handled.", now.in_flight),
            ("connections", "Open connections.", now.connections),
            ("facts_age_seconds", "Time since the facts could last be read.", now.facts_age_s),
            ("facts_faults", "Things in the facts that cannot be used.", now.facts_faults),
            ("facts_generation", "Grows with every change of the facts.", now.facts_generation),
            ("driver_classes", "Driver classes in force.", now.driver_classes),
            (
                "certificate_not_after_seconds",
                "When the serving certificate ends.",
                now.certificate_not_after,
            ),
            ("certificate_faulty", "1 while the files hold no usable pair.", now.certificate_is_faulty),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=float(value))
