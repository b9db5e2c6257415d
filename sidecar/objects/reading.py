"""The reading side of an `objects` volume: what is cached, what is read ahead, what is fetched before anybody asks."""

import time
from dataclasses import dataclass

from sidecar.objects.block_costs import BlockCosts
from sidecar.objects.block_heat import BlockHeat
from sidecar.objects.block_memory import BlockMemory, fitting_block_bytes
from sidecar.objects.block_source import BlockSource
from sidecar.objects.blocks import Blocks
from sidecar.objects.cache_volume import CacheVolume
from sidecar.objects.file_heat import FileHeat
from sidecar.objects.known import Known
from sidecar.objects.next_files import NextFiles
from sidecar.objects.prefetch import Prefetch, PrefetchProgress
from sidecar.objects.read_ahead import Shares
from sidecar.objects.read_ahead_threads import ReadAheadThreads
from sidecar.objects.reader import Reader, ReaderParts
from sidecar.objects.reading_at_open import ReadingAtOpen
from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.store import ObjectInfo, ObjectStore

__all__ = ["ReadStatistics", "Reader", "Reading"]

_MOST_THREADS = 16
_CLOSE_S = 2.0
_WAIT_MARGIN_S = 10
_PASSING_BYTES = 128 << 20  # of memory, for what is read on and on, once; or, if that is more,
_PASSING_BLOCKS = 64  # four for each thread that fetches: more would only wait for the threads
_THREADS_FOR_FILES = 4  # one in so many
_QUEUE_SHARE = 4  # of the memory, for what waits to be written to the cache volume


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStatistics:
    """What reading has come to since the daemon began. Requests: `hits` were answered from memory at once.

    `exact_reads`: requests that were answered by a GET of just that range. `whole_files`: which were begun to be fetched as they were read
    at random. `read_ahead_unused_bytes`: fetched and given up before anybody asked. `stale`: reads of a version that is gone. `volume_*`: the
    cache volume.
    """

    hits: int
    hit_bytes: int
    misses: int
    exact_reads: int
    whole_files: int
    whole_files_bytes: int
    store_reads: int
    store_bytes: int
    stale: int
    memory_bytes: int
    memory_bound_bytes: int
    memory_evicted: int
    read_ahead_unused_bytes: int
    volume_bytes: int
    volume_bound_bytes: int
    volume_read_bytes: int
    volume_written_bytes: int
    volume_evicted: int
    volume_dropped: int
    volume_faults: int
    prefetch: PrefetchProgress


class Reading:
    """Reads of one volume. `cache_dir` is a directory of our own on the cache volume, "" if there is none.

    Threads begin with the first work for them, but for the one of the cache volume: make this after the last fork.
    """

    def __init__(self, store: ObjectStore, settings: ObjectsSettings, cache_dir: str) -> None:
        block_bytes = fitting_block_bytes(settings.block_bytes, settings.memory_cache_bytes)
        memory = BlockMemory(settings.memory_cache_bytes, block_bytes)
        self._volume = (
            CacheVolume(cache_dir, settings.disk_cache_bytes, block_bytes, memory.bound_bytes // _QUEUE_SHARE)
            if cache_dir and settings.disk_cache_bytes
            else None
        )
        costs = BlockCosts(block_bytes)
        self._source = BlockSource(store, self._volume, block_bytes, costs)
        wait_s = settings.request_timeout_s + settings.retry_timeout_s + _WAIT_MARGIN_S
        passing_bytes = min(memory.bound_bytes, max(_PASSING_BYTES, _PASSING_BLOCKS * block_bytes))
        self._blocks = Blocks(memory, self._source.load, wait_s, passing_bytes)
        in_memory = memory.bound_bytes // block_bytes
        threads = max(1, min(_MOST_THREADS, settings.connections // 2))
        self._threads = ReadAheadThreads(threads)
        shares = Shares(settings.read_ahead_blocks, passing_bytes // block_bytes)
        at_once = max(1, threads // _THREADS_FOR_FILES)
        self._files = FileHeat(
            self._blocks, self._source, self._volume, costs, shares, self._threads, at_once
        )
        self._parts = ReaderParts(
            self._blocks, self._source, shares, self._threads, BlockHeat(in_memory, costs), self._files
        )
        self._at_open = ReadingAtOpen(store, self._blocks, self._source, self._volume)
        self._prefetch = Prefetch(store, settings, self._blocks, self._source, self._volume)

    def begin(self) -> None:
        """Begin to fetch what the request wants to have fetched before anybody asks."""
        self._prefetch.begin()

    def open(self, key: str, info: ObjectInfo) -> Reader:
        """Return a reader of that version of an object. Asks nobody."""
        return Reader(self._parts, info)

    def fetch_at_open(self, key: str, known: ObjectInfo | None) -> ObjectInfo:
        """Return the version of an object that is there now, in one round trip that brings what it begins with, too.

        Raises StoreFault: MISSING if nothing is there.
        """
        return self._at_open.fetch(key, known)

    def next_files(self, known: Known, open_s: float, root: str) -> NextFiles:
        """Return what reads ahead across files."""
        return NextFiles(self._blocks, self._threads, known, open_s, root)

    def forget(self, key: str) -> None:
        """Believe nothing of an object any more. Readers keep what they have."""
        self._at_open.forget(key)

    def statistics(self) -> ReadStatistics:
        """Return what reading has come to."""
        volume = self._volume
        return ReadStatistics(
            hits=self._parts.hits,
            hit_bytes=self._parts.hit_bytes,
            misses=self._parts.misses,
            exact_reads=self._parts.exact_reads,
            whole_files=self._files.files,
            whole_files_bytes=self._files.fetched_bytes,
            store_reads=self._source.store_reads,
            store_bytes=self._source.store_bytes,
            stale=self._source.stale,
            memory_bytes=self._blocks.allocated_bytes,
            memory_bound_bytes=self._blocks.bound_bytes,
            memory_evicted=self._blocks.evicted,
            read_ahead_unused_bytes=self._blocks.unread_bytes,
            volume_bytes=volume.index.taken_bytes if volume else 0,
            volume_bound_bytes=volume.index.bound_bytes if volume else 0,
            volume_read_bytes=self._source.volume_bytes,
            volume_written_bytes=volume.written_bytes if volume else 0,
            volume_evicted=volume.evicted if volume else 0,
            volume_dropped=volume.dropped if volume else 0,
            volume_faults=volume.faults if volume else 0,
            prefetch=self._prefetch.progress(),
        )

    def close(self) -> None:
        """End all threads, as far as they do not wait for the store: those end by themselves, or with the process."""
        enders = [self._prefetch.close, self._threads.close]
        for end in enders:  # both are told before either is waited for
            end(0.0)
        deadline = time.monotonic() + _CLOSE_S
        if self._volume is not None:
            enders.append(self._volume.close)  # it takes what they are about to give it
        for end in enders:
            end(max(0.0, deadline - time.monotonic()))
