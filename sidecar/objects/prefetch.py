"""Fetching what the request names before anybody asks for it: in the background, as far as the cache has room, after everybody else.

With a cache volume, content goes there and a successor goes on where this daemon ends; without one, into memory.
"""

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from sidecar.objects.block_memory import Block
from sidecar.objects.block_source import BlockSource
from sidecar.objects.blocks import Blocks, NoRoom
from sidecar.objects.cache_volume import CacheVolume
from sidecar.objects.prefetch_globs import Glob, parse_globs
from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.store import FaultKind, ObjectInfo, ObjectStore, Page, StoreFault

_LOG = logging.getLogger(__name__)
_MOST_WORKERS = 4
_CONNECTIONS_OF_ONE = 8  # of the store, for each worker
_MOST_LISTED_AHEAD = 10_000
_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0  # before a block, while others read: it gets on even then
_READY_S = 120.0
_LISTING_PAUSE_S = 10.0
_LISTING_TRIES = 6
_SHARE_OF_MEMORY = (3, 4)
_LASTING = frozenset({FaultKind.MISSING, FaultKind.DENIED, FaultKind.REQUEST, FaultKind.UNSUPPORTED})


class PrefetchState(Enum):
    """How far it is."""

    NONE = "none"  # nothing was asked for
    LISTING = "listing"  # totals still grow
    FETCHING = "fetching"
    DONE = "done"
    FULL = "full"  # the cache has no more room
    FAILED = "failed"  # listing does not work, or the cache volume


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchProgress:
    """How far it is: whole objects, bytes, and what failed: blocks, and listings."""

    state: PrefetchState
    objects: int
    objects_total: int
    bytes: int
    bytes_total: int
    errors: int


class Prefetch:
    """The prefetch of one volume. Does nothing before `begin`."""

    def __init__(
        self,
        store: ObjectStore,
        settings: ObjectsSettings,
        blocks: Blocks,
        source: BlockSource,
        volume: CacheVolume | None,
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._source = source
        self._volume = volume
        self._globs = parse_globs(settings.prefetch)
        self._root = f"{settings.sub_path}/" if settings.sub_path else ""
        self._most = max(1, min(_MOST_WORKERS, settings.connections // _CONNECTIONS_OF_ONE))
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wanted: deque[ObjectInfo] = deque()
        self._pending: dict[str, int] = {}  # object that is not done → its blocks that are not
        self._current: tuple[ObjectInfo, int] | None = None
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._state = PrefetchState.NONE
        self._is_listed = False
        self._is_closed = False
        self._outcome = PrefetchState.DONE
        self._objects = self._objects_total = self._bytes = self._bytes_total = self._errors = 0

    def begin(self) -> None:
        """Begin, in threads of its own, if there is anything to fetch."""
        if not self._globs or self._threads:
            return
        self._state = PrefetchState.LISTING
        self._working = self._most
        for work in [self._list, *[self._work] * self._most]:
            thread = threading.Thread(target=work, name="prefetch", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no memory for a thread: nobody may have a mount fail for that
                self._stop(PrefetchState.FAILED)
                self._state = PrefetchState.FAILED
                return
            self._threads.append(thread)

    def progress(self) -> PrefetchProgress:
        """Return how far it is."""
        with self._lock:
            return PrefetchProgress(
                state=self._state,
                objects=self._objects,
                objects_total=self._objects_total,
                bytes=self._bytes,
                bytes_total=self._bytes_total,
                errors=self._errors,
            )

    def close(self, timeout_s: float) -> None:
        """Begin nothing more, and wait for what is being fetched."""
        with self._lock:
            self._is_closed = True
            self._stopping.set()
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # What is wanted: one thread.

    def _list(self) -> None:
        try:
            for number, glob in enumerate(self._globs):
                self._list_one(glob, self._globs[:number])
        except StoreFault as fault:
            self._fail(fault)
        finally:
            with self._lock:
                self._is_listed = True
                if self._state is PrefetchState.LISTING:
                    self._state = PrefetchState.FETCHING
                self._changed.notify_all()

    def _list_one(self, glob: Glob, earlier: tuple[Glob, ...]) -> None:
        for info in self._found(glob):
            if self._stopping.is_set():
                return
            name = info.key[len(self._root) :]
            if not info.size or name.endswith("/") or not glob.matches(name):
                continue
            if not any(other.matches(name) for other in earlier):
                self._want(info)

    def _found(self, glob: Glob) -> Iterator[ObjectInfo]:
        if glob.is_key:
            try:
                yield self._store.head(self._root + glob.pattern)
            except StoreFault as fault:
                if fault.kind is not FaultKind.MISSING:
                    raise
            return
        token = ""
        while True:
            page = self._page(self._root + glob.prefix, token)
            yield from page.objects
            token = page.token
            if not token or self._stopping.is_set():
                return

    def _page(self, prefix: str, token: str) -> Page:
        """Return a page of a listing; a store that is away for a minute ends nothing."""
        for left in reversed(range(_LISTING_TRIES)):
            try:
                return self._store.list_page(prefix, delimiter=False, token=token)
            except StoreFault as fault:
                if not left or fault.kind in _LASTING:
                    raise
                self._note_error()
                if self._stopping.wait(_LISTING_PAUSE_S):
                    break
        return Page((), (), "")

    def _want(self, info: ObjectInfo) -> None:
        with self._lock:
            while len(self._wanted) >= _MOST_LISTED_AHEAD and not self._stopping.is_set():
                self._changed.wait(_LONGEST_PAUSE_S)
            self._wanted.append(info)
            self._objects_total += 1
            self._bytes_total += info.size
            self._changed.notify()

    # Fetching: some threads.

    def _work(self) -> None:
        try:
            if self._volume is not None and not self._ready(self._volume):
                self._stop(PrefetchState.FAILED)
            while (piece := self._next()) is not None:
                self._do(*piece)
        except Exception:
            self._stop(PrefetchState.FAILED)
            _LOG.exception("prefetch_failed")
        finally:
            self._leave()

    def _ready(self, volume: CacheVolume) -> bool:
        """Wait until a predecessor has let go of the cache volume, and it is known what is there."""
        deadline = time.monotonic() + _READY_S
        while not volume.wait_ready(_PAUSE_S * 5):
            if self._stopping.is_set() or time.monotonic() >= deadline:
                return False
        return True

    def _next(self) -> tuple[ObjectInfo, int] | None:
        """Return the next block that is wanted; None if there are no more."""
        with self._lock:
            while not self._stopping.is_set():
                if self._current is None and self._wanted:
                    self._current = (self._wanted.popleft(), 0)
                    self._pending[self._current[0].key] = self._count(self._current[0])
                    self._changed.notify_all()
                if self._current is not None:
                    info, number = self._current
                    is_more = number + 1 < self._count(info)
                    self._current = (info, number + 1) if is_more else None
                    return info, number
                if self._is_listed:
                    return None
                self._changed.wait(_LONGEST_PAUSE_S)
            return None

    def _do(self, info: ObjectInfo, number: int) -> None:
        try:
            if not self._fetch(info, number):
                self._stop(PrefetchState.FULL)
                return
        except (OSError, NoRoom, MemoryError):
            self._note_error()
            with self._lock:
                self._pending.pop(info.key, None)  # it will not be whole
            return
        with self._lock:
            self._bytes += self._blocks.size(info, number)
            left = self._pending.pop(info.key, 0) - 1
            if left > 0:
                self._pending[info.key] = left
            elif left == 0:
                self._objects += 1

    def _fetch(self, info: ObjectInfo, number: int) -> bool:
        """Have a block in the cache. False: there is no room for it. Raises StoreFault, NoRoom, MemoryError."""
        size = self._blocks.size(info, number)
        if self._volume is None:
            if self._bytes + size > self._memory_bytes:
                return False
            self._let_others_first()
            self._blocks.read(info, number)
            return True
        key = self._blocks.key(info, number)
        if self._volume.has(key):
            return True
        if not self._volume.index.has_room(size):
            return False
        self._let_others_first()
        buffer = self._blocks.take(size)
        if buffer is None:
            raise NoRoom
        block = Block(buffer, size)
        del buffer
        try:
            assert block.view is not None
            self._source.fetch(info, number * self._blocks.block_bytes, block.view)
            if self._volume.store(key, block.view, replaces=False):
                return True
            if not self._volume.index.has_room(size):
                return False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        finally:
            self._blocks.give_back(block)

    @property
    def _memory_bytes(self) -> int:
        of, parts = _SHARE_OF_MEMORY
        return self._blocks.bound_bytes * of // parts

    def _count(self, info: ObjectInfo) -> int:
        return -(-info.size // self._blocks.block_bytes)

    def _let_others_first(self) -> None:
        until = time.monotonic() + _LONGEST_PAUSE_S
        while self._source.in_progress and time.monotonic() < until:
            if self._stopping.wait(_PAUSE_S):
                return

    def _note_error(self) -> None:
        with self._lock:
            self._errors += 1

    def _fail(self, fault: StoreFault) -> None:
        self._note_error()
        _LOG.warning("prefetch_listing_failed", extra={"fields": {"reason": fault.kind.value}})
        with self._lock:
            self._outcome = PrefetchState.FAILED

    def _stop(self, outcome: PrefetchState) -> None:
        """Have nobody begin anything more."""
        with self._lock:
            self._outcome = outcome
            self._stopping.set()
            self._changed.notify_all()

    def _leave(self) -> None:
        with self._lock:
            self._working -= 1
            if self._working or self._is_closed:
                return
            self._state = self._outcome
            told = {"state": self._state.value, "objects": self._objects, "bytes": self._bytes}
            told |= {"errors": self._errors}
        _LOG.info("prefetch_ended", extra={"fields": told})
