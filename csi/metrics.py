"""Observation: what is seen of a plugin's process from outside: metrics where they are asked for, Events where there is a cluster.

A scrape reads what is in memory: it asks no mount, no pool, no daemon and no API server.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from csi.event_channel import EventChannel
from csi.event_news import VolumeNews
from csi.facts_source import FactsSource
from csi.metrics_calls import CallCounts
from csi.metrics_volumes import VolumeTally
from csi.settings import CONTROLLER, Settings
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure, NotReady

_AGAIN_S = 5.0
_log = log("csi.metrics")

Source = Callable[[], Iterable[Metric]]


class Observation(Collector):
    """Of one process. `add` a source for everything that the process has; then `run`."""

    def __init__(self, settings: Settings, facts: FactsSource, is_ready: Callable[[], bool]) -> None:
        self._settings = settings
        self._facts = facts
        self._is_ready = is_ready
        self.calls = CallCounts()
        self.tally = VolumeTally()
        self.events = EventChannel(settings)
        self.news = VolumeNews(self.tally, self.events.offer)
        self._sources: list[Source] = [self.calls.collect, self._own]

    def add(self, source: Source) -> None:
        """Have more shown."""
        self._sources.append(source)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        for source in self._sources:
            yield from source()

    async def run(self) -> None:
        """Serve the page and write Events until cancelled. Nothing that fails ends this."""
        async with asyncio.TaskGroup() as group:
            if self._settings.role != CONTROLLER:
                group.create_task(self.events.run())
            if self._settings.metrics_address is not None:
                group.create_task(self._serve(*self._settings.metrics_address))

    async def _serve(self, host: str, port: int) -> None:
        """Serve the page. That it cannot be is no reason not to serve volumes."""
        # Only where it is needed: an HTTP server.
        from sidemount.host.exposition import Exposition

        exposition = Exposition({}, self)
        try:
            while True:
                try:
                    _log.info("metrics_served", port=await exposition.start(host, port))
                    await asyncio.Event().wait()
                except HostFailure as error:
                    _log.warning("no_metrics", fault=str(error), again_s=_AGAIN_S)
                except Exception:
                    _log.error("no_metrics", exc_info=True)
                await exposition.stop()
                await asyncio.sleep(_AGAIN_S)
        finally:
            await exposition.stop()

    def _own(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "sidemount_csi_ready", "1 when this process is ready.", value=float(self._is_ready())
        )
        yield GaugeMetricFamily(
            "sidemount_csi_facts_age_seconds",
            "Time since classes and namespaces could last be read.",
            value=self._facts.age_s(),
        )
        try:
            facts = self._facts.facts()
        except NotReady:
            return
        for name, text, value in (
            ("driver_classes", "Driver classes in force.", len(facts.driver_classes())),
            ("facts_faults", "Things in the facts that cannot be used.", len(facts.faults())),
        ):
            yield GaugeMetricFamily(f"sidemount_csi_{name}", text, value=value)
        yield from self._facts.families("sidemount_csi_facts")
