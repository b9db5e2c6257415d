"""Leading by a Lease: acquire, renew, release. Whoever cannot renew in time stops leading by itself."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sidemount.host.cluster import Cluster, Document, Place
from sidemount.host.logs import log
from sidemount.model.errors import PublishConflict, VolumeError
from sidemount.model.lease import (
    DURATION_S,
    LeaseRecord,
    Watched,
    claim,
    parse_lease,
    release,
    render_lease,
    watch,
)

_LEADS_S = DURATION_S * 2 / 3
_log = log("election")


def lease_place(namespace: str, name: str) -> Place:
    """Return where the Lease is."""
    return Place("Lease", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", name)


class Election:
    """One candidate. `won` is set whenever it begins to lead. `predecessor`: what the Lease said of whoever led before, if anybody did."""

    def __init__(
        self,
        cluster: Cluster,
        place: Place,
        identity: str,
        *,
        wall: Callable[[], datetime],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._identity = identity
        self._wall = wall
        self._monotonic_s = monotonic_s
        self._watched: Watched | None = None
        self._leads_until_s = float("-inf")
        self._led = False
        self.won = asyncio.Event()
        self.predecessor: LeaseRecord | None = None

    @property
    def leads(self) -> bool:
        """Whether we lead now."""
        return self._monotonic_s() < self._leads_until_s

    async def step(self) -> None:
        """Read the Lease, and take or renew it if it is ours to take. Raises: as the cluster, but for a lost race."""
        document = await self._cluster.read(self._place)
        asked_s = self._monotonic_s()
        record = parse_lease(_spec(document)) if document is not None else None
        self._watched = watch(self._watched, record, asked_s)
        wanted = claim(self._watched, self._identity, now=self._wall(), now_s=asked_s)
        if wanted is None:
            self._leads_until_s = float("-inf")
        else:
            if record is not None and record.holder != self._identity:
                self.predecessor = record  # before the answer, which may be lost while the Lease is ours
            try:
                await self._write(document, wanted)
                self._leads_until_s = asked_s + _LEADS_S
            except PublishConflict:
                self._leads_until_s = float("-inf")
        self._tell()

    async def resign(self) -> None:
        """Stop leading, and let the next one lead at once if the API server hears of it."""
        was_leading, self._leads_until_s = self.leads, float("-inf")
        if not was_leading:
            return
        try:
            document = await self._cluster.read(self._place)
            free = release(parse_lease(_spec(document)), self._identity, now=self._wall())
            if document is not None and free is not None:
                await self._write(document, free)
        except VolumeError as error:
            _log.warning("lease_not_released", lease=self._place.name, error=str(error))
        self._tell()

    async def _write(self, document: Document | None, record: LeaseRecord) -> None:
        new: dict[str, Any] = dict(document) if document is not None else {}
        metadata = {**(new.get("metadata") or {}), "name": self._place.name}
        metadata.pop("managedFields", None)
        new.update(apiVersion="coordination.k8s.io/v1", kind="Lease", metadata=metadata)
        # Fields that we do not know stay as they are.
        new["spec"] = {**_spec(document), **render_lease(record)}
        if document is None:
            await self._cluster.create(self._place, new)
        else:
            await self._cluster.replace(self._place, new)

    def _tell(self) -> None:
        if self.leads != self._led:
            self._led = self.leads
            if self._led:
                self.won.set()
            _log.info(
                "leading" if self._led else "not_leading", lease=self._place.name, identity=self._identity
            )


def _spec(document: Document | None) -> dict[str, Any]:
    spec = document.get("spec") if document is not None else None
    return dict(spec) if isinstance(spec, dict) else {}
