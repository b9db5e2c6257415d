"""Observer: the running process. It watches always; reads logs and writes while it leads."""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from sidemount.host.cluster import Cluster
from sidemount.host.cluster_configuration import load_cluster_configuration
from sidemount.host.cluster_reader import ClusterReader, ReadLimits
from sidemount.host.election import Election, lease_place
from sidemount.host.event_desk import DeskLimits
from sidemount.host.exposition import Exposition, Verdict
from sidemount.host.kind_watch import KindWatch, Pace
from sidemount.host.logs import log
from sidemount.model.errors import VolumeError
from sidemount.model.lease import RENEW_EVERY_S
from webhook.observer.observed_store import KINDS
from webhook.observer.settings import ObserverSettings
from webhook.observer.watchtower import Watchtower

_RESIGN_S = 3.0
_LOOK_S = 0.2
_PAUSE_S = 1.0
_STUCK_S = 120.0
_log = log("observer")


class Observer:
    """One process. `run` returns after `end`."""

    def __init__(self, settings: ObserverSettings, *, instance: str, pace: Pace | None = None) -> None:
        self._settings = settings
        self._instance = instance
        self._pace = pace or Pace()
        self._ended = asyncio.Event()
        self._turned_at = time.monotonic()
        self.port = 0  # before it listens

    def end(self) -> None:
        """Ask for the end."""
        self._ended.set()

    async def run(self) -> None:
        """Observe until the end. Raises: InvalidRequest or HostFailure if it cannot start."""
        settings = self._settings
        reader = ClusterReader(await load_cluster_configuration(settings.kubeconfig), ReadLimits())
        configuration = await load_cluster_configuration(settings.kubeconfig)
        try:
            async with Cluster(configuration, None) as cluster:
                identity = f"{self._instance or 'unknown'}_{secrets.token_hex(4)}"
                election = Election(
                    cluster,
                    lease_place(settings.namespace, settings.lease),
                    identity,
                    wall=lambda: datetime.now(UTC),
                    monotonic_s=time.monotonic,
                )
                await self._observe(reader, cluster, election)
        finally:
            await reader.close()
        _log.info("ended")

    async def _observe(self, reader: ClusterReader, cluster: Cluster, election: Election) -> None:
        settings = self._settings
        tower = Watchtower(
            reader,
            cluster,
            election,
            settings,
            DeskLimits(pace_s=settings.event_pace_s, a_second=settings.events_a_second),
            instance=self._instance,
            clock=time.monotonic,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            random=random.random,
        )
        probes = {
            "/healthz": lambda: Verdict(self._unwell()),
            "/readyz": lambda: Verdict(tower.missing()),
        }
        exposition = Exposition(probes, tower)
        try:
            self.port = await exposition.start(settings.host, settings.port)
            _log.info("started", port=self.port)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(KindWatch(kind, reader, tower.store, self._pace).run())
                    for kind in KINDS
                ]
                tasks.append(group.create_task(self._campaign(election)))
                tasks.append(group.create_task(self._terms(election, tower.term)))
                await self._ended.wait()
                for task in tasks:
                    task.cancel()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESIGN_S):
                    await election.resign()
            await exposition.stop()

    async def _campaign(self, election: Election) -> None:
        """Lead if nobody does."""
        fault = ""
        while True:
            self._turned_at = time.monotonic()
            try:
                await election.step()
                fault = ""
            except VolumeError as error:
                if str(error) != fault:
                    _log.warning("lease_failed", error=str(error))
                fault = str(error)
            except Exception:
                _log.error("lease_failed", exc_info=True)
            await asyncio.sleep(RENEW_EVERY_S * (0.8 + random.random() * 0.4))  # noqa: S311 - no secret: it parts replicas

    async def _terms(self, election: Election, term: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a term for as long as we lead, again and again."""
        while True:
            if not election.leads:
                await asyncio.sleep(_LOOK_S)
                continue
            running = asyncio.create_task(term())
            try:
                while election.leads and not running.done():
                    await asyncio.wait((running,), timeout=_LOOK_S)
            finally:
                running.cancel()
                (came_of_it,) = await asyncio.gather(running, return_exceptions=True)
            if isinstance(came_of_it, Exception):
                _log.error("term_ended", error=repr(came_of_it))
                await asyncio.sleep(_PAUSE_S)

    def _unwell(self) -> str:
        """Return why this process has to be started again, "" if it has not."""
        silent_s = time.monotonic() - self._turned_at
        return f"nothing was done for {silent_s:.0f} s" if silent_s > _STUCK_S else ""
