"""A pool that is a prefix in a bucket: `volume_store.VolumeStore` on an object store. A volume is a prefix of its own.

There are no locks: what happens is decided by single objects, of which the store takes one and refuses the other (`bucket_layout`).
"""

import copy
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from csi.bucket_access import BucketAccess
from csi.bucket_emptying import empty_prefix
from csi.bucket_faults import told_of_bucket
from csi.bucket_identity import BucketIdentity
from csi.bucket_layout import MARK_BYTES, data_prefix, id_with, name_of
from csi.bucket_records import BucketRecords, Record
from csi.faults import BeyondRange, NotFound, PoolClosed
from csi.hidden_texts import HiddenTexts
from csi.pool_sources import no_copies
from csi.provision_plan import VOLUME, VolumePlan
from csi.provision_request import CAPACITY_MAX_BYTES, CapacityRange, SnapshotRequest
from csi.volume_copy import Progress
from csi.volume_intents import unfinished_kind, unfinished_name
from csi.volume_state import Kind, SnapshotState, VolumeState
from csi.volume_tree import Stop
from sidemount.host.logs import log
from sidemount.model.errors import OperationPending, shown
from sidemount.stores.store import ObjectStore

T = TypeVar("T")
_ATTEMPTS = 8


class BucketPool:
    """One pool. Safe in several threads, and with several controllers."""

    has_copies = False

    def __init__(
        self,
        source: str,
        access: BucketAccess,
        identity: BucketIdentity,
        observe: Callable[[str], None] = lambda point: None,
    ) -> None:
        """`observe` hears of every change before and after it is made: where a crash may happen."""
        self._source = source
        self._access = access
        self._identity = identity
        self._observe = observe
        self._records = BucketRecords(source)
        self._progress = Progress()
        self._stop = Stop()
        self._secrets = HiddenTexts()

    @property
    def name(self) -> str:
        """Return the URI."""
        return self._source

    @property
    def progress(self) -> Progress:
        """Return that nothing was copied."""
        return self._progress

    def bound(self, secrets: HiddenTexts) -> "BucketPool":
        """Return the same pool, asked with the credentials of a call."""
        if not secrets:
            return self
        found = copy.copy(self)
        found._secrets = secrets
        return found

    def stop(self) -> None:
        """Have removals end at their next page, and nobody wait for the store."""
        self._stop.set()
        self._access.close()

    # Looking -----------------------------------------------------------------------------------------

    def volume(self, id_: str) -> VolumeState | None:
        """Return a volume."""
        if not name_of(id_):
            return None  # and nobody has to be asked
        found = self.named(name_of(id_))
        return found if found is not None and found.id == id_ else None

    def named(self, name_id: str) -> VolumeState | None:
        """Return the volume of a name."""
        with self._opened() as store:
            found = self._read(store, name_id)
            return None if found is None or found.is_gone else found.state

    def snapshot(self, id_: str) -> SnapshotState | None:
        """Return None: there are none."""
        return None

    def ids(self, kind: Kind) -> Sequence[str]:
        """Return the names of what may be there."""
        if kind is not Kind.VOLUME:
            return []
        with self._opened() as store:
            names = self._records.names(store)
            if not names:
                self._identity.check(store)
            return names

    def states(self, kind: Kind, ids: Sequence[str]) -> "dict[str, VolumeState | SnapshotState]":
        """Return what is there of what `ids` has told."""
        if kind is not Kind.VOLUME:
            return {}
        with self._opened() as store:
            return dict(self._records.read_many(store, ids))

    def available_bytes(self) -> int:
        """Return the most that may be asked for: a bucket has no bound."""
        return CAPACITY_MAX_BYTES

    def size_bytes(self) -> int:
        """Return the same."""
        return CAPACITY_MAX_BYTES

    # Changing ----------------------------------------------------------------------------------------

    def make_volume(self, plan: VolumePlan) -> VolumeState:
        """Make a volume, or return the one of that name. It is there as soon as its record is."""
        if plan.content is not None:
            raise no_copies(self._source)
        with self._opened() as store:
            self._identity.check(store)
            for _ in range(_ATTEMPTS):
                found = self._records.read(store, plan.id)
                if found is not None and not found.is_gone:
                    return found.state
                id_ = id_with(plan.id, os.urandom(MARK_BYTES).hex())
                state = replace(plan.state(time.time_ns()), id=id_, context={**plan.context, VOLUME: id_})
                if self._do("record", partial(self._records.make, store, plan.id, state, found)):
                    log("csi.pool").info("made", kind=Kind.VOLUME.value, id=id_, pool=self._source)
                # It is what the record says now: somebody may have been faster, where a store does not know the condition.
        raise OperationPending(f"volume {shown(plan.name)}: others make and remove it", hint="try again")

    def make_snapshot(self, request: SnapshotRequest) -> SnapshotState:
        """Refuse."""
        raise no_copies(self._source)

    def expand(self, id_: str, capacity: CapacityRange) -> VolumeState:
        """Write down what is asked for. There is no limit that it could raise."""
        with self._opened() as store:
            for _ in range(_ATTEMPTS):
                found = self._read(store, name_of(id_)) if name_of(id_) else None
                if found is None or found.is_gone or found.state.id != id_:
                    raise NotFound(f"there is no volume {shown(id_)}")
                has = found.state.capacity_bytes
                if capacity.limit_bytes and has > capacity.limit_bytes:
                    raise BeyondRange(
                        f"volume {shown(id_)} has {has} bytes already, more than limit_bytes {capacity.limit_bytes}; "
                        "a volume is never made smaller"
                    )
                state = replace(found.state, capacity_bytes=max(has, capacity.wanted_bytes))
                if state == found.state or self._do(
                    "record", partial(self._records.change, store, name_of(id_), found, state)
                ):
                    return state
        raise OperationPending(f"volume {shown(id_)}: others change it", hint="try again")

    def remove(self, kind: Kind, id_: str) -> bool:
        """Remove a volume and all that is in it; go on with that if it is gone already."""
        name_id = name_of(id_)
        if kind is not Kind.VOLUME or not name_id:
            return False
        with self._opened() as store:
            found = self._read(store, name_id)
            if found is not None and found.state.id == id_ and not found.is_gone:
                self._do("gone", partial(self._records.mark_gone, store, id_))
                log("csi.pool").info("gone", kind=kind.value, id=id_, pool=self._source)
            elif not self._is_gone(store, found, id_):
                return False
            self._do("unrecord", lambda: self._records.remove(store, id_))
            empty_prefix(store, data_prefix(id_), self._stop, self._observe)
            # A record that something between us and the store only said to be removed would bring the volume back.
            self._do("unrecord", lambda: self._records.remove(store, id_))
            self._do("forget", lambda: self._records.forget_gone(store, id_))
            return True

    # What is left ------------------------------------------------------------------------------------

    def unfinished(self) -> Sequence[str]:
        """Return what is being removed, or was left half removed. Nothing as long as only calls bring credentials."""
        try:
            with self._opened() as store:
                return [unfinished_name(Kind.VOLUME, id_) for id_ in self._records.gone(store)]
        except PoolClosed:
            return []

    def settle(self, name: str) -> None:
        """Go on with a removal."""
        found = unfinished_kind(name)
        if found is not None:
            self.remove(*found)

    # Around ------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[ObjectStore]:
        with told_of_bucket(self._source), self._access.opened(self._secrets) as store:
            yield store

    def _read(self, store: ObjectStore, name_id: str) -> Record | None:
        found = self._records.read(store, name_id)
        if found is None:
            self._identity.check(store)  # before anybody says that it is not there
        return found

    def _is_gone(self, store: ObjectStore, found: Record | None, id_: str) -> bool:
        if found is not None and found.state.id == id_:
            return found.is_gone
        return self._records.is_gone(store, id_)

    def _do(self, step: str, work: Callable[[], T]) -> T:
        self._observe(f"before {step}")
        done = work()
        self._observe(f"after {step}")
        return done
