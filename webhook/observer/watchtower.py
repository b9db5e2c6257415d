"""Watchtower: what is seen, and what is made of it: counts, Events, status of classes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sidemount.host.cluster import Cluster
from sidemount.host.cluster_reader import ClusterReader
from sidemount.host.election import Election
from sidemount.host.event_desk import DeskLimits
from sidemount.host.event_record import Teller
from sidemount.host.event_writing import EventWriting
from sidemount.host.live_report import families
from sidemount.host.logs import log
from sidemount.host.object_exposition import ObjectCounts
from sidemount.model.keeper_log import HealthState, KeeperEvent
from sidemount.model.timestamp import parse_timestamp_ms
from sidemount.model.volume_request import Delivery
from webhook.observer.log_reading import LogReading
from webhook.observer.log_schedule import LogPace
from webhook.observer.news import COMPONENT, Occurrence, Reason, deaths, injected, told_by_keeper
from webhook.observer.observed_store import ObservedStore, View
from webhook.observer.pod_view import PodView
from webhook.observer.settings import ObserverSettings
from webhook.observer.status_writing import StatusWriting
from webhook.observer.tally import Tally

_PREFIX = "sidemount_observer"
_UNKNOWN = "unknown"
OVERLAP_MS = 10 * 60_000
KEPT_MS = 50 * 60_000
FIRST_MS = 20 * 60_000
AHEAD_MS = 10 * 60_000
_log = log("observer.watchtower")


@dataclass(frozen=True, slots=True)
class Since:
    """From when on something is news: to be told as an Event, and to be counted."""

    told_ms: int
    counted_ms: int


def since(predecessor_ms: int | None, now_ms: int) -> Since:
    """Return what is news to whoever begins to lead. `predecessor_ms`: when whoever led before was last seen to; None if nobody was.

    What a predecessor had not come to read before it ended is told once more if its Event, by which it is recognised, is certainly
    still there: API servers keep Events for an hour. Counts begin where it ended.
    """
    if predecessor_ms is None:
        return Since(now_ms - FIRST_MS, now_ms - FIRST_MS)
    seen_ms = min(predecessor_ms, now_ms)
    return Since(max(seen_ms - OVERLAP_MS, min(seen_ms, now_ms - KEPT_MS)), seen_ms)


class Watchtower(Collector):
    """Everything but the watches and the Lease. `term` is run while we lead."""

    def __init__(
        self,
        reader: ClusterReader,
        cluster: Cluster,
        election: Election,
        settings: ObserverSettings,
        limits: DeskLimits,
        *,
        instance: str,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        self._election = election
        self._wall_ms = wall_ms
        self._since: Since | None = None
        self._deaths: dict[str, dict[str, int]] = {}  # by pod and container, the last that was told
        self.store = ObservedStore(clock, self._seen)
        self._tally = Tally(lambda name: name in self.store.classes)
        self._objects = ObjectCounts(self._tally.label)
        self._events = EventWriting(
            cluster,
            limits,
            teller=Teller(COMPONENT, instance),
            reasons=Reason,
            leads=self._leads,
            clock=clock,
        )
        self._statuses = StatusWriting(
            cluster,
            self.store,
            debounce_s=settings.status_debounce_s,
            leads=self._leads,
            clock=clock,
            wall_ms=wall_ms,
        )
        pace = LogPace(period_s=settings.log_period_s, a_second=settings.logs_a_second)
        pods: dict[tuple[str, str], PodView] = self.store.states["Pod"].objects  # type: ignore[assignment]  # keys of pods
        self._reading = LogReading(reader, pods, pace, self._read, clock=clock, random=random)

    def missing(self) -> str:
        """Return why nothing can be told yet, "" if it can."""
        names = [name for name, state in self.store.states.items() if not state.is_synced]
        return f"{' and '.join(names)} was never read from the API server" if names else ""

    async def term(self) -> None:
        """Read and write until cancelled."""
        record = self._election.predecessor
        before_ms = parse_timestamp_ms(record.renewed) if record is not None else None
        found = since(before_ms, self._wall_ms())
        earlier = self._since
        if earlier is not None:  # we have led before, and what was told then is told
            found = Since(max(found.told_ms, earlier.told_ms), max(found.counted_ms, earlier.counted_ms))
        self._since = found
        _log.info("term_begins", told_since_ms=found.told_ms, counted_since_ms=found.counted_ms)
        for pod in list(self.store.pods.values()):
            self._tell([injected(pod), *self._fresh_deaths(pod)])
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reading.run())
            group.create_task(self._events.run())
            group.create_task(self._statuses.run())

    def _leads(self) -> bool:
        return self._election.leads

    # What is seen ------------------------------------------------------------------------------------

    def _seen(self, before: View | None, now: View | None) -> None:
        """Take note of an object that is another one now."""
        if not isinstance(before, PodView | None) or not isinstance(now, PodView | None):
            return
        self._reading.follow(before, now)
        is_new = before is None or now is None or before.uid != now.uid
        if before is not None and is_new:
            self._deaths.pop(before.uid, None)
            for volume in before.volumes:
                self._objects.forget(_key(before, volume.name))
        if now is None or self._since is None or not self._leads():
            return
        self._tell([*((injected(now),) if is_new else ()), *self._fresh_deaths(now)])

    def _fresh_deaths(self, pod: PodView) -> list[Occurrence]:
        """Return the deaths that this process has not told yet, in this term or an earlier one."""
        found = [death for death in deaths(pod) if death.at_ms > self._told_until(death)]
        for death in found:
            self._deaths.setdefault(death.uid, {})[death.container] = death.at_ms
        return found

    def _told_until(self, death: Occurrence) -> int:
        return self._deaths.get(death.uid, {}).get(death.container, -1)

    def _read(self, pod: PodView, events: list[KeeperEvent]) -> None:
        """Take what a keeper's log told."""
        told = [told_by_keeper(pod, event) for event in events]
        self._tell([occurrence for occurrence in told if occurrence is not None])
        for event in events:
            self._count(pod, event)
        for volume in pod.volumes if pod.is_over else ():
            self._objects.forget(_key(pod, volume.name))  # nothing of it is there any more, said or not

    def _count(self, pod: PodView, event: KeeperEvent) -> None:
        """Take what a volume's daemon has counted."""
        since_ = self._since
        is_its = any(volume.name == event.volume for volume in pod.volumes)
        if event.counted is None or since_ is None or not is_its:
            return
        key = _key(pod, event.volume)
        self._objects.know(key, pod.class_of(event.volume))
        self._objects.take(key, event.counted, is_counted=event.at_ms > since_.counted_ms)

    def _tell(self, occurrences: Iterable[Occurrence]) -> None:
        since_ = self._since
        if since_ is None:
            return
        ahead_ms = self._wall_ms() + AHEAD_MS
        for occurrence in occurrences:
            if occurrence.at_ms > ahead_ms:
                continue  # told once, it would hide all that comes before that time
            if occurrence.at_ms > since_.counted_ms:
                self._tally.count(occurrence)
            if occurrence.at_ms > since_.told_ms:
                self._events.offer((occurrence,))

    # What is counted ---------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Yield every metric. Volumes come first: their classes are counted from then on."""
        yield from self._volumes()
        yield from self._tally.collect()
        yield from self._objects.collect(is_present=self._leads())
        yield from families(self.store.reports(), None, f"{_PREFIX}_facts")
        yield from self._own()

    def _volumes(self) -> Iterator[Metric]:
        counts: Counter[tuple[str, str]] = Counter()
        layers = 0
        leads = self._leads()
        for pod in self.store.pods.values() if leads else ():
            if pod.is_over:
                continue
            health = self._reading.health(pod.key) or {}
            for volume in pod.volumes:
                if volume.delivery == Delivery.CSI.value:
                    continue  # no keeper in the pod tells of it
                known = health.get(volume.name)
                # Of a log whose beginning is gone, a fault alone does not say that a volume is not live.
                is_known = known is not None and (known.phase or known.state is not HealthState.WAITING)
                state = known.state.value if known is not None and is_known else _UNKNOWN
                counts[self._tally.label(volume.driver_class), state] += 1
                layers = max(layers, known.layers if known is not None else 0)
        volumes = GaugeMetricFamily(
            "sidemount_volumes", "Volumes of pods that are not over, by state.", labels=["class", "state"]
        )
        labels = {label for label, _ in counts}
        for label in sorted(labels):
            for state in (*(state.value for state in HealthState), _UNKNOWN):
                volumes.add_metric([label, state], counts[label, state])
        yield volumes
        yield GaugeMetricFamily("sidemount_layers_max", "Most mounts stacked at one place.", value=layers)

    def _own(self) -> Iterator[Metric]:
        for name, text, value in (
            ("leads", "1 while this process is the one that reads and writes.", float(self._leads())),
            ("ready", "1 once pods and classes were listed.", float(not self.missing())),
            (
                "log_late_seconds",
                "For how long the log that waits longest is overdue.",
                self._reading.late_s(),
            ),
            ("events_waiting", "Events that are still to be written.", float(len(self._events))),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)
        reads = CounterMetricFamily(f"{_PREFIX}_log_reads", "Reads of logs, by result.", labels=["result"])
        for result, count in self._reading.reads.items():
            reads.add_metric([result], count)
        yield reads
        events = CounterMetricFamily(
            f"{_PREFIX}_events", "Events, by reason and result.", labels=["reason", "result"]
        )
        for (reason, result), count in self._events.results.items():
            events.add_metric([reason, result], count)
        yield events
        statuses = CounterMetricFamily(
            f"{_PREFIX}_status_writes", "Writes of a class's status, by result.", labels=["result"]
        )
        for result, count in self._statuses.results.items():
            statuses.add_metric([result], count)
        yield statuses


def _key(pod: PodView, volume: str) -> str:
    return f"{pod.uid}/{volume}"
