"""What the drafts of one volume share: the store, the threads, the bounds and the counts."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sidecar.objects.settings import ObjectsSettings
from sidecar.objects.staging import Staging
from sidecar.objects.upload_leftovers import UploadLeftovers
from sidecar.objects.upload_pool import UploadPool, Window
from sidemount.stores.store import ObjectStore

_SMALL = 1 << 20  # contents up to this size are not counted
_LARGEST = 32 << 20  # whatever the size of parts: what is larger is read as it is sent


class Workshop:
    """`part_bytes` is the size of parts, `copy_least` the least that can be copied as one, 0 if nothing can.

    Memory: as many contents as parts are uploaded at once, each no larger than `largest_buffer`, and small ones.
    """

    def __init__(self, store: ObjectStore, settings: ObjectsSettings, leftovers: UploadLeftovers) -> None:
        can = store.abilities
        self.store = store
        self.leftovers = leftovers
        self.largest_part = can.part_bytes[1]
        self.part_bytes = max(min(settings.part_bytes, self.largest_part), can.part_bytes[0])
        self.largest_buffer = min(4 * self.part_bytes, _LARGEST)  # parts of large objects are larger
        self.largest_put = min(self.part_bytes, can.largest_put_bytes)
        self.copy_least = can.part_bytes[0] if can.uploads and can.copy_part else 0
        self.largest_whole = min(can.largest_put_bytes, max(self.part_bytes, settings.staging_bytes))
        self.stall_s = 2.0 * (settings.request_timeout_s + settings.retry_timeout_s)
        self.pool = UploadPool(settings.uploading)
        self.window = Window(2 * settings.uploading * self.part_bytes, self.stall_s)
        self.staging = Staging(settings.staging_bytes)
        self._counts: Counter[str] = Counter()
        self._count_lock = threading.Lock()
        self._room = threading.BoundedSemaphore(settings.uploading)
        self._buffers: list[bytearray] = []
        self._usual = min(self.part_bytes, self.largest_buffer)

    def count(self, what: str, amount: int = 1) -> None:
        """Count something."""
        with self._count_lock:
            self._counts[what] += amount

    def counts(self) -> dict[str, int]:
        """Return what was counted."""
        with self._count_lock:
            return dict(self._counts)

    @contextmanager
    def buffer(self, size: int) -> Iterator[memoryview]:
        """Have memory for a block, up to `largest_buffer`. Raises ETIMEDOUT when none has become free for long."""
        if size <= _SMALL:
            yield memoryview(bytearray(size))
            return
        if not self._room.acquire(timeout=self.stall_s):
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        try:
            try:
                whole = self._buffers.pop()
            except IndexError:
                whole = bytearray(self._usual)
            if len(whole) < size:
                whole = bytearray(size)
            yield memoryview(whole)[:size]
            if len(whole) == self._usual:
                self._buffers.append(whole)
        finally:
            self._room.release()
