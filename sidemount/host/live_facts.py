"""LiveFacts: the facts of a cluster, followed by watches."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from kubernetes.aio import client

from sidemount.host.cluster_reader import ClusterReader, ReadLimits
from sidemount.host.kind_watch import KindWatch, Pace
from sidemount.host.live_kinds import KINDS, LiveKind
from sidemount.host.live_report import KindReport
from sidemount.host.live_store import LiveStore
from sidemount.host.logs import log
from sidemount.model.errors import NotReady
from sidemount.model.facts import Facts

_STALE_S = 180.0
_SWEEP_S = 0.5
_log = log("live_facts")

Configure = Callable[[], Awaitable[client.Configuration]]
Start = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]


class LiveFacts:
    """Follows `kinds` once `run` runs. What was known last stays when the API server is away."""

    def __init__(
        self,
        configure: Configure,
        *,
        kinds: Sequence[LiveKind] = KINDS,
        read_limits: ReadLimits | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configure = configure
        self._read_limits = read_limits or ReadLimits()
        self._pace = pace or Pace()
        self._clock = clock
        self._kinds = tuple(kinds)
        self._store = LiveStore(clock, self._kinds)
        self._reader: ClusterReader | None = None
        self._loaded = asyncio.Event()

    def facts(self) -> Facts:
        """Return the present facts. Raises NotReady before every kind was synced once."""
        if not self._is_loaded():
            raise NotReady("the facts of the cluster are not known yet", hint="try again")
        return self._store.snapshot

    def _is_loaded(self) -> bool:
        if not self._loaded.is_set() and not self.missing():
            self._loaded.set()
            _log.info("facts_synced", kinds={k: len(s.objects) for k, s in self._store.states.items()})
        return self._loaded.is_set()

    def known(self) -> Facts:
        """What is known, however little."""
        return self._store.snapshot

    async def start(self) -> None:
        """Find out how to reach the API server. Raises InvalidRequest, HostFailure."""
        self._reader = ClusterReader(await self._configure(), self._read_limits)

    async def run(self, told: Callable[[], None]) -> None:
        """Follow until cancelled."""
        assert self._reader is not None  # `start` comes first
        try:
            async with asyncio.TaskGroup() as group:

                def start(look: Coroutine[None, None, None]) -> asyncio.Task[None]:
                    return group.create_task(look)

                self._began(self._reader, start)
                for kind in self._kinds:
                    group.create_task(KindWatch(kind, self._reader, self._store, self._pace).run())
                await self._sweep(told)
        finally:
            self._ended()
            await self._reader.close()

    def _began(self, reader: ClusterReader, start: Start) -> None:
        """For what else is to read meanwhile; `start` runs a coroutine in the same task group."""

    def _ended(self) -> None:
        """Nothing is read from here on."""

    async def _sweep(self, told: Callable[[], None]) -> None:
        classes = None
        while True:
            is_loaded = self._is_loaded()
            try:
                self._store.return_borrowed()
                # Of other kinds something changes all the time; that is nothing to tell.
                if is_loaded and self._store.snapshot.driver_classes() is not classes:
                    classes = self._store.snapshot.driver_classes()
                    told()
            except Exception:  # it must not end what serves
                _log.error("facts_sweep_failed", exc_info=True)
            await asyncio.sleep(_SWEEP_S if is_loaded else _SWEEP_S / 10)

    async def wait_loaded(self) -> None:
        """Return when every kind was synced once."""
        await self._loaded.wait()

    def missing(self) -> tuple[str, ...]:
        """Return the kinds that were never synced. What was synced once stays so, whatever becomes of the API server."""
        return tuple(
            f"{name} was never read from the API server" + (f" ({state.trouble})" if state.trouble else "")
            for name, state in self._store.states.items()
            if not state.is_synced
        )

    def notes(self) -> tuple[str, ...]:
        """Return which kinds are not followed, and every fault."""
        states = self._store.states
        without = [f"{name} is done without: {s.absent_why}" for name, s in states.items() if s.absent_why]
        stale = [
            f"{report.kind}: the API server told nothing for {report.age_s:.0f} s; what is known is kept"
            for report in self.kinds()
            if _STALE_S < report.age_s < float("inf")
        ]
        faults = [f"{fault.where}: {fault.message}" for fault in self._store.snapshot.faults()]
        return (*without, *stale, *faults)

    def age_s(self) -> float:
        """Return the age of the kind that was heard of longest ago, without those that may not be read."""
        states = self._store.states
        ages = [report.age_s for report in self.kinds() if not states[report.kind].absent_why]
        return max(ages, default=float("inf"))

    def kinds(self) -> tuple[KindReport, ...]:
        """Return how well each kind is followed."""
        now = self._clock()
        return tuple(
            KindReport(
                kind=name,
                is_synced=state.is_synced,
                is_live=state.is_live,
                age_s=float("inf") if state.heard_at is None else now - state.heard_at,
                objects=len(state.objects),
                faults=len(state.faults),
                lists=state.lists,
                errors=dict(state.errors),
            )
            for name, state in self._store.states.items()
        )
