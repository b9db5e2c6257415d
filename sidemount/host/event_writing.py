"""EventWriting: writes what the desk gives, while we may, and never twice."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum

from sidemount.host.cluster import Cluster, Place
from sidemount.host.event_desk import DeskLimits, EventDesk, Pending
from sidemount.host.event_record import (
    EventRecord,
    Key,
    Occurrence,
    Teller,
    event_name,
    merged,
    read_record,
    render_event,
    render_update,
)
from sidemount.host.logs import log
from sidemount.model.errors import NotReady, PublishConflict, VolumeError

_IDLE_S = 0.5
_log = log("event_writing")


class EventWriting:
    """Takes occurrences at any time; `run` writes. `results` counts by reason and what came of it."""

    def __init__(
        self,
        cluster: Cluster,
        limits: DeskLimits,
        *,
        teller: Teller,
        reasons: Iterable[Enum],
        leads: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`reasons` are all that there will be. Nothing is written while `leads` says that another one writes."""
        self._cluster = cluster
        self._teller = teller
        self._leads = leads
        self._clock = clock
        self._desk = EventDesk(limits, clock())
        self._wake = asyncio.Event()
        # There before the first: of a counter that begins with 1 Prometheus sees no increase.
        self.results: Counter[tuple[str, str]] = Counter({(reason.value, "dropped"): 0 for reason in reasons})

    def __len__(self) -> int:
        return len(self._desk)

    def offer(self, occurrences: Iterable[Occurrence]) -> None:
        """Have occurrences told."""
        for occurrence in occurrences:
            if self._desk.offer((occurrence,), self._clock()):
                self.results[occurrence.reason.value, "dropped"] += 1
            self._wake.set()

    async def run(self) -> None:
        """Write until cancelled. Nothing that fails ends this."""
        while True:
            taken = self._desk.take(self._clock()) if self._leads() else None
            if taken is None:
                await self._idle()
                continue
            try:
                await self._tell(*taken)
            except asyncio.CancelledError:
                # The term is over. If the next one is ours too, nobody reads again what was to be told.
                self._desk.failed(*taken[:2], self._clock())
                raise
            except Exception:
                self._failed(*taken[:2], "internal")
                _log.error("event_not_written", exc_info=True)

    async def _idle(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(_IDLE_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _tell(self, key: Key, pending: Pending, known: EventRecord | None) -> None:
        reason = pending.latest.reason.value
        try:
            record = known if known is not None else await self._found(pending.latest)
            news = merged(record, pending.moments_ms)
            if news is None:
                assert record is not None  # what there is nothing of is news
                self._desk.written(key, record, self._clock())
                self.results[reason, "known"] += 1
                return
            self._desk.written(key, await self._write(pending.latest, news), self._clock())
            self.results[reason, "written"] += 1
        except (NotReady, PublishConflict) as error:
            self._failed(key, pending, str(error))
        except (
            VolumeError
        ) as error:  # it will not be allowed the next time either: the namespace is going, most often
            self.results[reason, "refused"] += 1
            _log.debug("event_refused", reason=reason, error=str(error))

    async def _found(self, latest: Occurrence) -> EventRecord | None:
        document = await self._cluster.read(_place(latest))
        return read_record(document) if document is not None else None

    async def _write(self, latest: Occurrence, news: EventRecord) -> EventRecord:
        place = _place(latest)
        if news.version:
            document = await self._cluster.patch(place, render_update(latest, news))
        else:
            document = await self._cluster.create(place, render_event(latest, news, self._teller))
        return read_record(document)

    def _failed(self, key: Key, pending: Pending, why: str) -> None:
        reason = pending.latest.reason.value
        if self._desk.failed(key, pending, self._clock()):
            self.results[reason, "retried"] += 1
        else:
            self.results[reason, "dropped"] += 1
            _log.warning("event_dropped", reason=reason, namespace=pending.latest.namespace, error=why)


def _place(occurrence: Occurrence) -> Place:
    collection = f"/api/v1/namespaces/{occurrence.namespace}/events"
    return Place("Event", collection, event_name(occurrence))
