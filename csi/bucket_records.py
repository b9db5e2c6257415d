"""The records of a bucket's volumes: which volume has a name, and whether it still exists.

A volume exists from the moment its record is put to the moment an object says that it is gone. Both are one request each.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from csi.bucket_layout import GONE, RECORDS, gone_key, name_of, name_of_record, record_key
from csi.bucket_objects import Small, read_object
from csi.provision_plan import CLASS, VOLUME
from csi.volume_ids import is_id
from csi.volume_state import VolumeState, decode_volume, encode_volume
from sidemount.host.logs import log
from sidemount.model.errors import BadMessage, OperationPending, shown
from sidemount.stores.deleting import is_missing
from sidemount.stores.store import FaultKind, ObjectStore, StoreFault

_AT_ONCE = 16
_MOST_KNOWN = 50_000
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Record:
    """A volume as its record has it, and the version of that. `is_gone`: it is being removed."""

    state: VolumeState
    etag: str
    is_gone: bool


class BucketRecords:
    """Of one pool. Safe in several threads."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Small, VolumeState]] = {}

    def read(self, store: ObjectStore, name_id: str) -> Record | None:
        """Return what a name's record says, None if there is none. Raises StoreFault, BadMessage."""
        found = self._read(store, name_id)
        if found is None:
            return None
        small, state = found
        return Record(state, small.etag, self.is_gone(store, state.id))

    def read_many(self, store: ObjectStore, names: Sequence[str]) -> dict[str, VolumeState]:
        """Return the volumes that exist of these names. What cannot be understood is left out, and the log tells. Raises StoreFault."""
        gone = frozenset(self.gone(store))  # one question for all: few volumes are being removed at any time

        def one(name_id: str) -> VolumeState | None:
            try:
                found = self._read(store, name_id)
            except BadMessage as error:
                log("csi.pool").error("record_unreadable", id=name_id, pool=self._pool, fault=str(error))
                return None
            return None if found is None or found[1].id in gone else found[1]

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="records") as pool:
            found = dict(zip(names, pool.map(one, names), strict=True))
        return {name_id: state for name_id, state in found.items() if state is not None}

    def names(self, store: ObjectStore) -> list[str]:
        """Return the names that have a record. Raises StoreFault."""
        return [name for key in _listed(store, RECORDS) if is_id(name := name_of_record(key))]

    def gone(self, store: ObjectStore) -> list[str]:
        """Return the ids of volumes that are being removed, or were left half removed. Raises StoreFault."""
        return [id_ for key in _listed(store, GONE) if name_of(id_ := key.removeprefix(GONE))]

    def make(self, store: ObjectStore, name_id: str, state: VolumeState, gone: Record | None) -> bool:
        """Put a record where there is none, or the one of a volume that is gone. False: somebody was faster. Raises StoreFault."""
        if gone is None:
            return self._put(store, name_id, state, FaultKind.EXISTS, if_absent=True)
        return self._put(store, name_id, state, FaultKind.CHANGED, if_match=gone.etag)

    def change(self, store: ObjectStore, name_id: str, record: Record, state: VolumeState) -> bool:
        """Put another record in place of that one. False: it is another one by now. Raises StoreFault."""
        return self._put(store, name_id, state, FaultKind.CHANGED, if_match=record.etag)

    def mark_gone(self, store: ObjectStore, id_: str) -> None:
        """Have a volume exist no more. Raises StoreFault."""
        store.put(gone_key(id_), [id_.encode()])

    def remove(self, store: ObjectStore, id_: str) -> None:
        """Remove the record of a volume that is gone. A later volume of the same name keeps its own. Raises StoreFault, BadMessage, OperationPending."""
        for _ in range(_ATTEMPTS):
            found = self.read(store, name_of(id_))
            if found is None or found.state.id != id_:
                return
            try:
                store.delete_version(record_key(name_of(id_)), found.etag)
                return
            except StoreFault as fault:
                if fault.kind is not FaultKind.CHANGED:
                    raise  # changed: there is a later volume of that name by now, or this one has just grown
        raise OperationPending(f"volume {shown(id_)}: others change it", hint="try again")

    def is_gone(self, store: ObjectStore, id_: str) -> bool:
        """Tell whether a volume is being removed, or was left half removed. Raises StoreFault."""
        return not is_missing(store, gone_key(id_))

    def forget_gone(self, store: ObjectStore, id_: str) -> None:
        """Note that nothing is left of a volume. Raises StoreFault."""
        store.delete(gone_key(id_))

    def _read(self, store: ObjectStore, name_id: str) -> tuple[Small, VolumeState] | None:
        with self._lock:
            known = self._known.get(name_id)
        found = read_object(store, record_key(name_id), None if known is None else known[0])
        if found is None:
            with self._lock:
                self._known.pop(name_id, None)
            return None
        if known is not None and known[0] is found:
            return known
        return found, self._decode(name_id, found)

    def _put(
        self,
        store: ObjectStore,
        name_id: str,
        state: VolumeState,
        late: FaultKind,
        *,
        if_absent: bool = False,
        if_match: str = "",
    ) -> bool:
        content = [encode_volume(state).encode()]
        try:
            store.put(record_key(name_id), content, if_absent=if_absent, if_match=if_match)
        except StoreFault as fault:
            if fault.kind in (late, FaultKind.MISSING if if_match else late):
                return False
            raise
        return True

    def _decode(self, name_id: str, found: Small) -> VolumeState:
        try:
            state = decode_volume(found.text, self._pool)
        except BadMessage as error:
            raise BadMessage(f"pool {self._pool}, {record_key(name_id)}: {error.message}") from error
        if (
            name_of(state.id) != name_id
            or state.context.get(VOLUME) != state.id
            or CLASS not in state.context
        ):
            raise BadMessage(f"pool {self._pool}, {record_key(name_id)}: it is of another volume")
        with self._lock:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name_id] = (found, state)
        return state


def _listed(store: ObjectStore, prefix: str) -> list[str]:
    found: list[str] = []
    token = ""
    while True:
        page = store.list_page(prefix, delimiter=False, token=token)
        found += [info.key for info in page.objects]
        token = page.token
        if not token:
            return found
