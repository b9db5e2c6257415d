"""Where blocks come from: the cache volume if it has them, else the store; and never another version than the one asked for."""

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sidecar.objects.block_costs import BlockCosts
from sidecar.objects.blocks import BlockKey, version_of
from sidecar.objects.cache_volume import CacheVolume
from sidemount.stores.store import FaultKind, ObjectInfo, ObjectStore, StoreFault

_GONE = frozenset({FaultKind.CHANGED, FaultKind.MISSING, FaultKind.RANGE})


class BlockSource:
    """Reads of one volume's objects. For any thread; every call may wait."""

    def __init__(
        self, store: ObjectStore, volume: CacheVolume | None, block_bytes: int, costs: BlockCosts
    ) -> None:
        self.in_progress = 0
        self.store_bytes = 0
        self.store_reads = 0
        self.volume_bytes = 0
        self.stale = 0
        self._store = store
        self._volume = volume
        self._block_bytes = block_bytes
        self._costs = costs
        self._lock = threading.Lock()

    def load(self, info: ObjectInfo, number: int, content: memoryview) -> None:
        """Fill a buffer with a block. Raises StoreFault, ESTALE if that version is gone."""
        key = (info.key, version_of(info), number)
        if self._volume is not None and self._volume.load(key, content):
            self._count(0, len(content))
            return
        self.get(info, number * self._block_bytes, content)
        if self._volume is not None:
            self._volume.offer(key, content)

    def read(self, info: ObjectInfo, offset: int, content: memoryview) -> bool:
        """Fill a buffer with any part of an object. Return whether the store was asked. Raises as `load` does."""
        number, start = divmod(offset, self._block_bytes)
        if self._volume is not None and start + len(content) <= self._block_bytes:
            key = (info.key, version_of(info), number)
            if self._volume.load_part(key, start, content):
                self._count(0, len(content))
                return False
        self.get(info, offset, content)
        return True

    def has_unread(self, key: BlockKey) -> bool:
        """Tell whether the cache volume has a block that has to be read as a whole before parts of it may."""
        return self._volume is not None and self._volume.has_unverified(key)

    def get(self, info: ObjectInfo, offset: int, content: memoryview) -> None:
        """Fill a buffer from the store, for somebody who waits for it."""
        with self.busy():
            self.fetch(info, offset, content)

    def fetch(self, info: ObjectInfo, offset: int, content: memoryview) -> None:
        """Fill a buffer from the store."""
        began_s = time.monotonic()
        try:
            got = self._store.get(info.key, offset, content, etag=info.etag)
        except StoreFault as fault:
            if fault.kind in _GONE:
                raise self._gone(info) from fault
            raise
        if got.info is None or version_of(got.info) != version_of(info):
            raise self._gone(info)
        if got.size != len(content):
            raise StoreFault(
                errno.EIO, FaultKind.TRUNCATED, f"{info.key!r}: {got.size} bytes of {len(content)}"
            )
        self._costs.note(got.size, time.monotonic() - began_s)
        self._count(got.size, 0)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a call of the store as one that somebody waits for."""
        with self._lock:
            self.in_progress += 1
            self.store_reads += 1
        try:
            yield
        finally:
            with self._lock:
                self.in_progress -= 1

    def count_opened(self, size: int) -> None:
        """Count what came with the answer to an open."""
        self._count(size, 0)

    def _count(self, store_bytes: int, volume_bytes: int) -> None:
        with self._lock:
            self.store_bytes += store_bytes
            self.volume_bytes += volume_bytes

    def _gone(self, info: ObjectInfo) -> StoreFault:
        with self._lock:
            self.stale += 1
        return StoreFault(errno.ESTALE, FaultKind.CHANGED, f"{info.key!r}: {os.strerror(errno.ESTALE)}")
