"""EventChannel: from the node service to the API server's Events. Nobody waits for it; what it cannot write in time is dropped and counted."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from csi.event_reasons import Occurrence, Reason
from csi.settings import POD, Settings
from sidemount.host.event_desk import DeskLimits
from sidemount.host.event_record import Teller
from sidemount.host.logs import log
from sidemount.model.errors import VolumeError

COMPONENT = "sidemount-csi-node"
_AGAIN_S = 30.0
_EARLY_MAX = 200  # before it is known how to reach the API server
_log = log("csi.event_channel")


class _Writing(Protocol):
    results: Counter[tuple[str, str]]

    def __len__(self) -> int: ...

    def offer(self, occurrences: Iterable[Occurrence]) -> None: ...


class EventChannel:
    """Takes occurrences at any time; `run` writes them where there is an API server: with its facts, or with mount pods."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.has_cluster = settings.facts is None or settings.launcher == POD
        self._early: deque[Occurrence] = deque(maxlen=_EARLY_MAX)
        self._writing: _Writing | None = None

    def offer(self, occurrence: Occurrence) -> None:
        """Have something told, if there is anybody to tell."""
        if not self.has_cluster:
            return
        if self._writing is None:
            self._early.append(occurrence)
        else:
            self._writing.offer((occurrence,))

    @property
    def results(self) -> Mapping[tuple[str, str], int]:
        """Return how many were written, by reason and what came of it."""
        return self._writing.results if self._writing is not None else Counter()

    def __len__(self) -> int:
        """Return how many are still to be written."""
        return len(self._early) if self._writing is None else len(self._writing)

    async def run(self) -> None:
        """Write until cancelled. Nothing that fails ends this."""
        while self.has_cluster:
            try:
                await self._write()
            except VolumeError as error:
                _log.warning("events_wait", fault=str(error), again_s=_AGAIN_S)
            except Exception:
                _log.error("events_wait", exc_info=True)
            await asyncio.sleep(_AGAIN_S)

    async def _write(self) -> None:
        # Only where it is needed: the Kubernetes client takes more memory than all of ours.
        from sidemount.host.cluster import Cluster
        from sidemount.host.cluster_configuration import load_cluster_configuration
        from sidemount.host.event_writing import EventWriting

        settings = self._settings
        kubeconfig = Path(settings.kubeconfig) if settings.kubeconfig else None
        async with Cluster(await load_cluster_configuration(kubeconfig), None) as cluster:
            writing = EventWriting(
                cluster,
                # Of one node, of perhaps thousands. A quarter of an hour without the API server loses nothing.
                DeskLimits(a_second=1.0, burst=20.0, tries=20, waiting=1000, remembered=2000),
                teller=Teller(COMPONENT, settings.node_id),
                reasons=Reason,
                leads=lambda: True,
                clock=time.monotonic,
            )
            writing.offer(self._early)
            self._early.clear()
            self._writing = writing
            await writing.run()
