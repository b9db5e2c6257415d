"""StatusWriting: keeps the status of every FuseDriverClass as it should be, and writes only what differs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from sidemount.host.cluster import Cluster, Place
from sidemount.host.live_kinds import FUSE_DRIVER_CLASS
from sidemount.host.logs import log
from sidemount.model.errors import PublishConflict, VolumeError
from sidemount.model.names import API_VERSION
from webhook.observer.class_view import ClassStatus, ClassView, render_status, wanted_status
from webhook.observer.observed_store import ObservedStore

_COLLECTION = f"/apis/{API_VERSION}/{FUSE_DRIVER_CLASS.plural}"
_LOOK_S = 1.0
_REPEAT_S = 60.0  # the same again: somebody else has overwritten it, or what was written does not stay
_log = log("observer.status_writing")


class StatusWriting:
    """`run` writes. A class's status is written at most once in `debounce_s`: a thousand pods that start are one change."""

    def __init__(
        self,
        cluster: Cluster,
        store: ObservedStore,
        *,
        debounce_s: float,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._debounce_s = debounce_s
        self._leads = leads
        self._clock = clock
        self._wall_ms = wall_ms
        self._written: dict[str, tuple[float, ClassStatus]] = {}
        self.results: Counter[str] = Counter()

    async def run(self) -> None:
        """Write until cancelled. Nothing that fails ends this."""
        while True:
            try:
                await self.look()
            except Exception:
                self.results["internal"] += 1
                _log.error("status_not_written", exc_info=True)
            await asyncio.sleep(min(_LOOK_S, self._debounce_s))

    async def look(self) -> None:
        """Write what differs, of every class. What is known must be whole: a count of half of the pods would be wrong."""
        if not self._store.is_synced:
            return
        counts = used_by(self._store)
        for found in list(self._store.classes.values()):
            wanted = wanted_status(found, counts[found.name], self._wall_ms())
            if wanted is not None and self._leads() and self._may_write(found.name, wanted):
                await self._write(found, wanted)
        for name in self._written.keys() - self._store.classes.keys():
            del self._written[name]

    def _may_write(self, name: str, wanted: ClassStatus) -> bool:
        at_s, last = self._written.get(name, (float("-inf"), None))
        wait_s = self._debounce_s if wanted != last else _REPEAT_S
        return self._clock() - at_s >= wait_s

    async def _write(self, found: ClassView, wanted: ClassStatus) -> None:
        self._written[found.name] = self._clock(), wanted
        place = Place(FUSE_DRIVER_CLASS.name, _COLLECTION, found.name, subresource="status")
        operations: list[Mapping[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": found.version},
            {"op": "add", "path": "/status", "value": render_status(wanted)},
        ]
        try:
            await self._cluster.patch(place, operations)
            self.results["written"] += 1
        except PublishConflict:
            # The class has changed meanwhile: the watch tells how, and then it is looked at again.
            self._written[found.name] = self._clock(), found.found
            self.results["retried"] += 1
        except VolumeError as error:
            self._written[found.name] = self._clock(), found.found
            self.results["failed"] += 1
            _log.warning("status_not_written", driver_class=found.name, error=str(error))


def used_by(store: ObservedStore) -> Counter[str]:
    """Return how many pods that are not over have a volume of each class."""
    return Counter(
        name
        for pod in store.pods.values()
        if not pod.is_over
        for name in {volume.driver_class for volume in pod.volumes}
    )
