"""Opening an object: what is there now, and how it begins, in one round trip.

An object of up to one block is fetched whole: its content costs hardly more than the question. Of a larger one the first
128 KiB come with the answer: enough for whoever looks at how it begins, and for the kernel's first request, while a whole block would be
wasted on everybody who reads anywhere else.
"""

import threading
from collections import OrderedDict

from sidecar.objects.block_memory import Block
from sidecar.objects.block_source import BlockSource
from sidecar.objects.blocks import Blocks, version_of
from sidecar.objects.cache_volume import CacheVolume
from sidecar.objects.reader import START
from sidemount.stores.store import FaultKind, ObjectInfo, ObjectStore, StoreFault

_START_BYTES = 128 << 10
_REMEMBERED = 20_000


class ReadingAtOpen:
    """Asks the store at an open. For any thread."""

    def __init__(
        self, store: ObjectStore, blocks: Blocks, source: BlockSource, volume: CacheVolume | None
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._source = source
        self._volume = volume
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, str] = OrderedDict()  # key → version; the kernel may have its pages

    def fetch(self, key: str, known: ObjectInfo | None) -> ObjectInfo:
        """Return the version that is there now. What was got of it is in the cache. Raises StoreFault, MISSING if nothing is there."""
        try:
            info = self._ask(key, known)
        except StoreFault as fault:
            if fault.kind is FaultKind.MISSING:
                self.forget(key)
            raise
        with self._lock:
            self._opened[key] = version_of(info)
            self._opened.move_to_end(key)
            if len(self._opened) > _REMEMBERED:
                self._opened.popitem(last=False)
        return info

    def forget(self, key: str) -> None:
        """Believe nothing of an object any more."""
        with self._lock:
            self._opened.pop(key, None)
        self._blocks.forget(key)

    def _ask(self, key: str, known: ObjectInfo | None) -> ObjectInfo:
        size = self._wanted(known)
        buffer = self._blocks.take(size) if size else None
        if buffer is None:
            return self._head(key)
        unless = known.etag if known is not None and self._need_not_come(known) else ""
        block = Block(buffer, size)
        del buffer
        try:
            with self._source.busy():
                assert block.view is not None
                got = self._store.get(key, 0, block.view, unless=unless)
        except BaseException:
            self._blocks.give_back(block)
            raise
        if got.info is None:
            self._blocks.give_back(block)
            return known if known is not None and unless else self._head(key)
        self._keep(got.info, block, got.size)
        return got.info

    def _head(self, key: str) -> ObjectInfo:
        with self._source.busy():
            return self._store.head(key)

    def _wanted(self, known: ObjectInfo | None) -> int:
        """Return how much to ask for. Of nothing nothing can be had: whether it has become something, a HEAD tells as well."""
        if known is None:
            return self._blocks.block_bytes
        return known.size if known.size <= self._blocks.block_bytes else self._start_bytes

    @property
    def _start_bytes(self) -> int:
        return min(_START_BYTES, self._blocks.block_bytes)

    def _need_not_come(self, known: ObjectInfo) -> bool:
        """Tell whether content would come for nothing: it is cached, or the kernel has had it and may still have."""
        numbers = (0,) if known.size <= self._blocks.block_bytes else (0, START)
        keys = [self._blocks.key(known, number) for number in numbers]
        if any(self._blocks.has(key) for key in keys):
            return True
        if self._volume is not None and self._volume.has(keys[0]):
            return True
        return known.size > _START_BYTES and self._opened.get(known.key) == version_of(known)

    def _keep(self, info: ObjectInfo, block: Block, size: int) -> None:
        if not size:
            self._blocks.give_back(block)
            return
        self._source.count_opened(size)
        is_whole = size == min(info.size, self._blocks.block_bytes)
        block = self._fitting(block, size)
        if is_whole and self._volume is not None and block.view is not None:
            self._volume.offer(self._blocks.key(info, 0), block.view)
        self._blocks.put(info, 0 if is_whole else START, block)

    def _fitting(self, block: Block, size: int) -> Block:
        """Return a block that takes no more memory than its content: many small files are opened."""
        buffer = self._blocks.take(size) if size < block.size else None
        if buffer is None:
            block.cut(size)
            return block
        smaller = Block(buffer, size)
        assert smaller.view is not None
        assert block.view is not None
        smaller.view[:] = block.view[:size]
        self._blocks.give_back(block)
        return smaller
