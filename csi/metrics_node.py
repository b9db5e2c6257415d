"""NodeMetrics: the node service as it is now: publications, volumes, keeper, daemons, kubelet's registration, Events."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from csi.event_channel import EventChannel
from csi.keeper_link import KeeperLink, VolumeStatus
from csi.launcher import Launcher
from csi.metrics_volumes import VolumeTally
from csi.publications import Publications
from csi.records import Stage
from csi.registration import Registration
from sidemount.host.session import Phase
from sidemount.model.keeper_log import HealthState

_PREFIX = "sidemount_csi"
_ENDING = frozenset({Phase.FLUSHING.value, Phase.DETACHED.value})


class NodeMetrics:
    """Of one node. `registration` is None where nobody is to know the plugin."""

    def __init__(
        self,
        publications: Publications,
        keeper: KeeperLink,
        launcher: Launcher,
        registration: Registration | None,
        tally: VolumeTally,
        events: EventChannel,
    ) -> None:
        self._publications = publications
        self._keeper = keeper
        self._launcher = launcher
        self._registration = registration
        self._tally = tally
        self._events = events

    def collect(self) -> Iterator[Metric]:
        """Yield every family. Volumes come first: their classes are counted from then on."""
        yield from self._volumes()
        yield from self._tally.collect()
        yield from self._processes()
        yield from self._left_over()
        yield from self._told()

    def _volumes(self) -> Iterator[Metric]:
        records = self._publications.records()
        stages = Counter(record.stage for record in records)
        publications = GaugeMetricFamily(
            f"{_PREFIX}_publications", "Targets of this node, by how far they are.", labels=["stage"]
        )
        for stage in Stage:
            publications.add_metric([stage.value], stages[stage])
        yield publications
        states = Counter(
            (self._tally.label(record.spec.driver_class), _state(self._keeper.status(record.name)))
            for record in records
            if record.stage is Stage.PUBLISHED
        )
        volumes = GaugeMetricFamily(
            f"{_PREFIX}_volumes", "Published volumes, by state.", labels=["class", "state"]
        )
        for label in sorted({label for label, _ in states}):
            for state in HealthState:
                volumes.add_metric([label, state.value], states[label, state])
        yield volumes
        yield GaugeMetricFamily(
            f"{_PREFIX}_operations_under_way",
            "Publishes and unpublishes that are being carried out.",
            value=self._publications.under_way,
        )

    def _processes(self) -> Iterator[Metric]:
        census = self._launcher.census()
        yield GaugeMetricFamily(
            f"{_PREFIX}_keeper_up", "1 while the keeper runs.", value=float(self._keeper.is_up)
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_keeper_starts", "Times the keeper was started.", value=self._keeper.starts
        )
        daemons = GaugeMetricFamily(
            f"{_PREFIX}_daemons", "Daemons, or their mount pods, by state.", labels=["state"]
        )
        for state, count in sorted(census.states.items()):
            daemons.add_metric([state], count)
        yield daemons
        starts = CounterMetricFamily(
            f"{_PREFIX}_daemon_starts", "Daemons or mount pods started, by the way.", labels=["by"]
        )
        for way, count in sorted(census.starts.items()):
            starts.add_metric([way], count)
        yield starts
        if census.is_nursery_ready is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}_nursery_ready",
                "1 while daemons can be started from the nursery.",
                value=float(census.is_nursery_ready),
            )

    def _left_over(self) -> Iterator[Metric]:
        orphans = CounterMetricFamily(
            f"{_PREFIX}_orphans",
            "What a crash or a lost state has left, and was taken away.",
            labels=["kind"],
        )
        orphans.add_metric(["daemon"], self._launcher.census().orphans)
        orphans.add_metric(["publication"], self._publications.leftovers_cleared)
        yield orphans

    def _told(self) -> Iterator[Metric]:
        registration = self._registration
        if registration is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}_registered",
                "1 while kubelet knows the driver, as far as it has told.",
                value=float(not registration.fault),
            )
        events = CounterMetricFamily(
            f"{_PREFIX}_events", "Events, by reason and result.", labels=["reason", "result"]
        )
        for (reason, result), count in self._events.results.items():
            events.add_metric([reason, result], count)
        yield events
        yield GaugeMetricFamily(
            f"{_PREFIX}_events_waiting", "Events that are still to be written.", value=len(self._events)
        )


def _state(status: VolumeStatus) -> HealthState:
    if status.phase in _ENDING:
        return HealthState.DETACHED
    if status.hung:
        return HealthState.HUNG
    if status.abnormal:
        return HealthState.ABNORMAL
    return HealthState.SERVING if status.is_live else HealthState.WAITING
