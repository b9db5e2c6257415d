"""All pools of a controller as one store: where something is, what is to be made where, and what a crash has left."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from csi.controller_jobs import Jobs, Key
from csi.faults import NotFound, PoolClosed
from csi.hidden_texts import HiddenTexts
from csi.place_threads import PlaceThreads
from csi.pool_sources import no_copies
from csi.provision_plan import check_content_fits, check_same, choose_places, plan_volume
from csi.provision_request import CapacityRange, CreateRequest, SnapshotRequest
from csi.volume_copy import Progress
from csi.volume_intents import unfinished_kind
from csi.volume_state import Content, Kind, SnapshotState, VolumeState
from csi.volume_store import VolumeStore
from sidemount.host.limited_log import LimitedLog
from sidemount.host.logs import log
from sidemount.model.errors import PublishConflict, VolumeError, shown
from sidemount.model.facts import Facts

T = TypeVar("T")
_SETTLE_S = 30.0
_SETTLE_AT_ONCE = 4
_CHUNK = 2000
_NONE = HiddenTexts()


class Pools:
    """The volumes and snapshots of every pool."""

    def __init__(
        self, stores: Sequence[VolumeStore], facts: Callable[[], Facts], *, wait_s: float, answer_s: float
    ) -> None:
        """A caller waits for `wait_s` for what takes long, and for `answer_s` for what a pool should answer at once."""
        self._stores = {store.name: store for store in stores}
        self._facts = facts
        self._jobs = Jobs(wait_s)
        self._threads = PlaceThreads("pool", answer_s)
        self._wake = asyncio.Event()
        self._is_settled_once = asyncio.Event()
        self._settling: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._log = LimitedLog(log("csi.controller"))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the pools."""
        return tuple(self._stores)

    @property
    def is_ready(self) -> bool:
        """Tell whether every pool was looked at, or does not answer."""
        return self._is_settled_once.is_set()

    # Looking -----------------------------------------------------------------------------------------

    @property
    def has_copies(self) -> bool:
        """Tell whether any pool has snapshots and clones."""
        return any(store.has_copies for store in self._stores.values())

    async def volume(self, id_: str, secrets: HiddenTexts = _NONE) -> VolumeState:
        """Return a volume. Raises NotFound; NotReady if a pool that may have it does not answer, PoolClosed if nobody can look into it."""
        found = await self._find(self._bound(secrets), lambda store: store.volume(id_))
        if found is None:
            raise NotFound(f"there is no volume {shown(id_)}")
        return found

    async def snapshot(self, id_: str) -> SnapshotState:
        """Return a snapshot. Raises as `volume` does."""
        found = await self._find(self._stores, lambda store: store.snapshot(id_))
        if found is None:
            raise NotFound(f"there is no snapshot {shown(id_)}")
        return found

    async def ids(self, kind: Kind) -> list[tuple[str, str]]:
        """Return what may be there, as its pool tells it apart, with its pool; sorted."""
        listed = await asyncio.gather(
            *(self._threads.quick(name, partial(store.ids, kind)) for name, store in self._stores.items())
        )
        return sorted((id_, pool) for pool, ids in zip(self._stores, listed, strict=True) for id_ in ids)

    async def read(
        self, kind: Kind, places: Sequence[tuple[str, str]]
    ) -> "list[tuple[str, VolumeState | SnapshotState]]":
        """Return what is there of what `ids` has told, in that order, each with its place; what is not, or cannot be read, is left out."""
        found: dict[tuple[str, str], VolumeState | SnapshotState] = {}
        for pool, store in self._stores.items():
            ids = [id_ for id_, place in places if place == pool]
            for begin in range(0, len(ids), _CHUNK):
                chunk = ids[begin : begin + _CHUNK]
                states = await self._threads.quick(pool, partial(store.states, kind, chunk))
                found.update({(id_, pool): state for id_, state in states.items()})
        return [(place[0], found[place]) for place in places if place in found]

    async def available_bytes(self, pool: str) -> int:
        """Return how much room a pool has."""
        return await self._threads.quick(pool, self._stores[pool].available_bytes)

    # What is shown of them: nothing here asks a pool but `size_bytes` and `counts`.

    async def size_bytes(self, pool: str) -> int:
        """Return how large a pool is."""
        return await self._threads.quick(pool, self._stores[pool].size_bytes)

    async def counts(self, pool: str) -> tuple[int, int, int]:
        """Return how many volumes, snapshots and unfinished things a pool has. Raises VolumeError if it does not answer."""
        store = self._stores[pool]
        volumes = await self._threads.quick(pool, partial(store.ids, Kind.VOLUME))
        snapshots = await self._threads.quick(pool, partial(store.ids, Kind.SNAPSHOT))
        return len(volumes), len(snapshots), len(await self._threads.quick(pool, store.unfinished))

    def progress(self, pool: str) -> Progress:
        """Return what was copied into a pool."""
        return self._stores[pool].progress

    def stuck(self, pool: str) -> int:
        """Return how many calls a pool has not answered in time."""
        return self._threads.stuck(pool)

    def under_way(self) -> list[str]:
        """Return the kind of everything that an operation is under way on."""
        return self._jobs.kinds()

    def oldest_s(self) -> float:
        """Return for how long the oldest operation has been under way."""
        return self._jobs.oldest_s()

    def _bound(self, secrets: HiddenTexts) -> Mapping[str, VolumeStore]:
        """Return the pools by name, asked with the credentials of a call."""
        return (
            {name: store.bound(secrets) for name, store in self._stores.items()} if secrets else self._stores
        )

    async def _find(
        self,
        stores: Mapping[str, VolumeStore],
        look: Callable[[VolumeStore], T | None],
        counts: Callable[[str, VolumeError], bool] = lambda pool, fault: True,
    ) -> T | None:
        """Return what one of the pools has; of one that does not answer nothing is known, so nothing may be said.

        `counts` tells of which pools' faults that holds.
        """

        async def ask(name: str, store: VolumeStore) -> T | None:
            try:
                return await self._threads.quick(name, partial(look, store))
            except VolumeError as error:
                if counts(name, error):
                    raise
                return None

        asked = [asyncio.ensure_future(ask(name, store)) for name, store in stores.items()]
        fault: VolumeError | None = None
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    found = await answer
                except VolumeError as error:
                    fault = error
                    continue
                if found is not None:
                    return found
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if fault is not None:
            raise fault
        return None

    # Changing ----------------------------------------------------------------------------------------

    async def create(self, request: CreateRequest, secrets: HiddenTexts = _NONE) -> VolumeState:
        """Return the volume that is asked for, made if it is not there. Raises VolumeError."""
        stores = self._bound(secrets)
        candidates = self._candidates(request)

        def counts(pool: str, fault: VolumeError) -> bool:
            # Into a closed pool nobody has made it with these credentials; if it is to be made there, that says so.
            return pool in candidates and not isinstance(fault, PoolClosed)

        found = await self._find(stores, lambda store: store.named(request.id), counts)
        if found is None:
            plan = plan_volume(request, self._facts(), self.names)
            store = stores[plan.pool]
            if request.content is not None:
                if not store.has_copies:
                    raise no_copies(store.name)
                source_pool, size_bytes = await self._content(request.content, secrets)
                check_content_fits(request.content, size_bytes, plan.capacity_bytes)
                plan = replace(plan, source_pool=source_pool)
            found = await self._run(
                (Kind.VOLUME.value, request.id), request, store, lambda: store.make_volume(plan)
            )
        check_same(request, found)
        return found

    def _candidates(self, request: CreateRequest) -> Collection[str]:
        """Return the pools that the same request may have been made in: a pool that is away holds up no others."""
        try:
            places = choose_places(request.parameters, self._facts(), self.names, "parameters")
        except VolumeError:
            return self.names
        return {place.pool for place in places}

    async def _content(self, content: Content, secrets: HiddenTexts) -> tuple[str, int]:
        """Return the pool that has it, and how many bytes it is known to hold."""
        if content.kind is Kind.SNAPSHOT:
            snapshot = await self.snapshot(content.id)
            return snapshot.pool, snapshot.size_bytes
        pool = (await self.volume(content.id, secrets)).pool
        if not self._stores[pool].has_copies:
            raise no_copies(pool)
        return pool, 0  # what it holds is known when it is cut

    async def delete(self, kind: Kind, id_: str, secrets: HiddenTexts = _NONE) -> None:
        """See that nothing of that id is there any more."""
        stores = self._bound(secrets)
        owner: str | None = None
        with contextlib.suppress(VolumeError):  # whoever does not answer is asked again
            owner = await self._find(stores, lambda store: store.name if _holds(store, kind, id_) else None)
        was_there, faults = False, []
        for store in stores.values() if owner is None else [stores[owner]]:
            try:
                was_there |= await self._run(
                    (kind.value, id_), ("delete", store.name), store, partial(store.remove, kind, id_)
                )
            except VolumeError as fault:
                faults.append(fault)
        self._wake.set()
        if faults and not was_there:  # it may be there
            raise next((fault for fault in faults if not isinstance(fault, PoolClosed)), faults[0])

    async def expand(self, id_: str, capacity: CapacityRange, secrets: HiddenTexts = _NONE) -> VolumeState:
        """Return the volume, not smaller than is asked for."""
        found = await self.volume(id_, secrets)
        store = self._stores[found.pool].bound(secrets)
        return await self._run((Kind.VOLUME.value, id_), capacity, store, lambda: store.expand(id_, capacity))

    async def cut(self, request: SnapshotRequest, secrets: HiddenTexts = _NONE) -> SnapshotState:
        """Return the snapshot that is asked for, made if it is not there. Raises VolumeError."""
        found = await self._find(self._stores, lambda store: store.snapshot(request.id))
        if found is None:
            store = self._stores[(await self.volume(request.source_volume_id, secrets)).pool]
            found = await self._run(
                (Kind.SNAPSHOT.value, request.id), request, store, lambda: store.make_snapshot(request)
            )
        if (found.name, found.source_volume_id) != (request.name, request.source_volume_id):
            raise PublishConflict(
                f"snapshot {shown(request.name)} is there already, of volume {shown(found.source_volume_id)}",
                hint="ask with another name",
            )
        return found

    async def _run(self, key: Key, asked: object, store: VolumeStore, work: Callable[[], T]) -> T:
        def begin() -> Awaitable[T]:
            return self._threads.long(store.name, work)

        return await self._jobs.run(key, asked, begin)

    # What is left ------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Bring to its end what is unfinished, for as long as this runs. What cannot be is tried again later."""
        while True:
            for name, store in self._stores.items():
                with contextlib.suppress(VolumeError):
                    await self._settle(name, store)
            self._is_settled_once.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _settle(self, pool: str, store: VolumeStore) -> None:
        try:
            names = await self._threads.quick(pool, store.unfinished)
        except VolumeError as error:
            self._log.warning("pool_does_not_answer", pool=pool, fault=str(error))
            raise
        for name in names:
            made = unfinished_kind(name)
            busy = made is not None and self._jobs.has((made[0].value, made[1]))
            if busy or (pool, name) in self._settling or len(self._settling) >= _SETTLE_AT_ONCE:
                continue
            task = asyncio.ensure_future(self._settle_one(pool, store, name))
            self._settling[pool, name] = task
            task.add_done_callback(partial(self._settled, (pool, name)))

    async def _settle_one(self, pool: str, store: VolumeStore, name: str) -> None:
        try:
            await self._threads.long(pool, lambda: store.settle(name))
        except VolumeError as error:
            self._log.warning("not_settled", pool=pool, unfinished=name, fault=str(error))
        except Exception as error:
            self._log.error("not_settled", pool=pool, unfinished=name, fault=repr(error))
        else:
            self._log.info("settled", pool=pool, unfinished=name)
            self._wake.set()  # there may be more than were taken up at once

    def _settled(self, key: tuple[str, str], task: "asyncio.Task[None]") -> None:
        del self._settling[key]

    async def close(self, timeout_s: float) -> None:
        """Have everything end soon, and wait for it."""
        for store in self._stores.values():
            store.stop()
        await self._jobs.close(timeout_s)
        tasks = list(self._settling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _holds(store: VolumeStore, kind: Kind, id_: str) -> bool:
    return (store.volume(id_) if kind is Kind.VOLUME else store.snapshot(id_)) is not None
