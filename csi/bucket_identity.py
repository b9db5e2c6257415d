"""Whether a pool in a bucket is the one it was: an object with its id, so that an empty bucket, or another server, is no empty pool (ADR 45)."""

import re
import secrets
import threading
from collections.abc import Callable

from csi.bucket_layout import MARKER, RECORDS
from csi.bucket_objects import read_object
from csi.pool_memory import PoolMemory
from sidemount.host.logs import log
from sidemount.model.errors import NotReady
from sidemount.stores.store import FaultKind, ObjectStore, StoreFault

_ID = re.compile(r"[A-Za-z0-9-]{1,64}\Z")


class BucketIdentity:
    """The id that a pool has had since it was first used. Safe in several threads, and with several controllers."""

    def __init__(
        self, pool: str, state_dir: str = "", is_named: Callable[[str], bool] = lambda pool: False
    ) -> None:
        """The id is remembered in `state_dir`, if there is one. `is_named` tells whether somebody knows of volumes in a pool."""
        self._pool = pool
        self._memory = PoolMemory(state_dir, pool)
        self._is_named = is_named
        self._mutex = threading.Lock()
        self._id = ""

    def check(self, store: ObjectStore) -> None:
        """See that the pool is there, and the same as ever. To be asked before anything is said not to be there. Raises NotReady, StoreFault."""
        # The store is asked without the lock: one thread that waits for it would hold up all others.
        expected = self._id or self._memory.recall()
        found = self._read(store) or self._first(store, expected)
        if expected and found != expected:
            raise NotReady(
                f"at {self._pool} is another pool than before: its id is {found}, not {expected}",
                hint=f"correct its class's endpoint{self._memory.way_out()}",
            )
        with self._mutex:
            if self._id != found:
                self._memory.keep(found)
                self._id = found

    def _first(self, store: ObjectStore, expected: str) -> str:
        if expected:
            raise NotReady(
                f"pool {self._pool} is not there: it has no object {MARKER}",
                hint=f"correct its class's endpoint{self._memory.way_out()}",
            )
        page = store.list_page(RECORDS, delimiter=False, most=1)
        if self._is_named(self._pool) and not page.objects and not page.token:
            raise NotReady(
                f"pool {self._pool} is not there: PersistentVolumes name it, but it holds no volume",
                hint=f"correct its class's endpoint; for a pool that is new, put an object {MARKER} with an id of your own",
            )
        id_ = secrets.token_hex(16)
        try:
            store.put(MARKER, [id_.encode()], if_absent=True)
        except StoreFault as fault:
            if fault.kind is not FaultKind.EXISTS:
                raise
        log("csi.pool").info("pool_found", pool=self._pool)
        return self._read(store) or id_

    def _read(self, store: ObjectStore) -> str:
        """Return the id, "" if there is none. NotReady if something else is there."""
        found = read_object(store, MARKER)
        if found is None:
            return ""
        text = found.text.strip()
        if not _ID.match(text):
            raise NotReady(f"pool {self._pool}: its object {MARKER} holds no id")
        return text
