"""Blocks on the cache volume: kept when a daemon ends, and found by its successor.

Only the holder of a lock writes and removes files; the lock ends with its process. So while a predecessor is still dying, the
successor reads and counts nothing, and a bound is never exceeded because two have counted. Nobody waits for a write:
one thread does them, and what it cannot keep up with is not kept.
"""

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import threading
import time
from collections import deque

from sidecar.objects.blocks import BlockKey
from sidecar.objects.cache_file import identity, read_block, read_part, room_of, write_block
from sidecar.objects.cache_index import TEMPORARY, CacheIndex, number_of, path_of, scan

_LOG = logging.getLogger(__name__)
_FILES = "blocks"
_LOCK = "blocks.lock"
_LOCK_PAUSE_S = 0.2
_FAULT_PAUSE_S = 5.0
_AGAIN_S = 30.0
_CLOSE_S = 5.0
_LOG_EVERY_S = 60.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class CacheVolume:
    """The cache volume of one mount. For any thread. Nothing here raises: a volume that does not work is none.

    `queue_bytes`: how much may wait to be written.
    """

    def __init__(self, directory: str, bound_bytes: int, block_bytes: int, queue_bytes: int) -> None:
        self.index = CacheIndex(bound_bytes)
        self.faults = 0
        self.dropped = 0
        self.evicted = 0
        self.written_bytes = 0
        self._directory = os.path.join(directory, _FILES)
        self._lock_path = os.path.join(directory, _LOCK)
        self._block_bytes = block_bytes
        self._queue_bytes = queue_bytes
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._queue: deque[tuple[BlockKey, memoryview]] = deque()
        self._queued_bytes = 0
        self._temporary = itertools.count()
        self._quiet_until_s = 0.0
        self._logged_s = -_LOG_EVERY_S
        self._is_ready = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cache-volume", daemon=True)
        with contextlib.suppress(RuntimeError):  # no memory for a thread: nothing is ever written
            self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Tell whether it is known what is there, so that something may be added."""
        return self._is_ready.is_set()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until it is."""
        return self._is_ready.wait(timeout_s)

    def load(self, key: BlockKey, content: memoryview) -> bool:
        """Fill a buffer with a whole block. False: it is not there, or not right."""
        of = identity(key, self._block_bytes)
        number = number_of(of)
        if self.is_ready and number not in self.index:
            return False
        try:
            if read_block(path_of(self._directory, number), of, content):
                self.index.use(number)
                return True
            self._note_fault("is not what was written")
        except FileNotFoundError:
            pass
        except OSError as error:
            self._note_fault(os.strerror(error.errno or errno.EIO))
        self._discard(number)
        return False

    def load_part(self, key: BlockKey, offset: int, content: memoryview) -> bool:
        """Fill a buffer with a part of a block that has been found right before. False: read the whole."""
        of = identity(key, self._block_bytes)
        number = number_of(of)
        if not self.index.is_verified(number):
            return False
        with contextlib.suppress(OSError):
            return read_part(path_of(self._directory, number), of, offset, content)
        return False

    def has_unverified(self, key: BlockKey) -> bool:
        """Tell whether a block is there of which no part may be read before the whole was: a predecessor has written it."""
        number = number_of(identity(key, self._block_bytes))
        return number in self.index and not self.index.is_verified(number)

    def has(self, key: BlockKey) -> bool:
        """Tell whether a block is there, right or not, as far as is known."""
        return number_of(identity(key, self._block_bytes)) in self.index

    def offer(self, key: BlockKey, content: memoryview) -> None:
        """Have a block written when there is time. Keeps the view until then; does not wait."""
        if not self.is_ready or self.has(key):
            return
        with self._lock:
            if not self._is_ready.is_set():
                return  # since a moment ago: nobody would take it out of the queue
            if self._queued_bytes + len(content) > self._queue_bytes or self._closing.is_set():
                self.dropped += 1
                return
            self._queue.append((key, content))
            self._queued_bytes += len(content)
            self._wanted.notify()

    def store(self, key: BlockKey, content: memoryview, *, replaces: bool = True) -> bool:
        """Write a block now, in place of what has been unused for the longest time if it `replaces`. False: it is not there."""
        of = identity(key, self._block_bytes)
        number = number_of(of)
        if number in self.index:
            return True
        if not self.is_ready or time.monotonic() < self._quiet_until_s:
            self.dropped += 1
            return False
        victims = self.index.reserve(len(content), replaces=replaces)
        if victims is None:
            self.dropped += 1
            return False
        if not self._remove(victims):
            self.index.release(room_of(len(content)))
            self._quiet_until_s = time.monotonic() + _FAULT_PAUSE_S
            return False
        try:
            self._write(number, of, content)
        except (OSError, MemoryError) as error:
            self.index.release(room_of(len(content)))
            code = _code(error)
            self._note_fault(os.strerror(code))
            self._quiet_until_s = time.monotonic() + _FAULT_PAUSE_S
            if code in _FULL:  # others fill the volume, too
                self._remove(self.index.shrink(self.index.taken_bytes // 16))
            return False
        self.index.add(number, room_of(len(content)))
        self.written_bytes += len(content)
        return True

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Write nothing more, and let another have the volume."""
        with self._lock:
            self._closing.set()
            self._wanted.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _write(self, number: int, of: bytes, content: memoryview) -> None:
        path = path_of(self._directory, number)
        temporary = f"{self._directory}/{TEMPORARY}{os.getpid()}-{next(self._temporary)}"
        try:
            write_block(temporary, path, of, content)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write_block(temporary, path, of, content)

    def _remove(self, victims: list[tuple[int, int]]) -> bool:
        before = self.faults
        for number, room in victims:
            try:
                os.unlink(path_of(self._directory, number))
            except FileNotFoundError:
                pass
            except OSError as error:  # its room stays counted: it is taken
                self._note_fault(os.strerror(error.errno or errno.EIO))
                continue
            self.index.release(room)
            self.evicted += 1
        return self.faults == before

    def _discard(self, number: int) -> None:
        if self.is_ready:  # else it is not ours to remove
            room = self.index.remove(number)
            with contextlib.suppress(OSError):
                os.unlink(path_of(self._directory, number))
            self.index.release(room)

    def _note_fault(self, what: str) -> None:
        self.faults += 1
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            _LOG.warning("cache_volume_failed", extra={"fields": {"reason": what, "faults": self.faults}})

    # The thread.

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._work()
            except (OSError, MemoryError) as error:
                self._note_fault(os.strerror(_code(error)))
                self._closing.wait(_AGAIN_S)

    def _work(self) -> None:
        """Write what is offered. Raises OSError if it cannot be found out what is there, MemoryError."""
        lock = self._take_over()
        try:
            while (offered := self._next()) is not None:
                self.store(*offered)
                with self._lock:
                    self._queued_bytes -= len(offered[1])
                del offered  # or the block could not be given up as long as we wait
        finally:
            with self._lock:
                self._is_ready.clear()
                self._queue.clear()
                self._queued_bytes = 0
            os.close(lock)

    def _take_over(self) -> int:
        """Wait until nobody else writes, find out what is there, and return the lock. Raises OSError."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while not _locked(lock):
                if self._closing.wait(_LOCK_PAUSE_S):
                    return lock
            for piece in scan(self._directory, lambda: not self._closing.wait(0.001)):
                self.index.fill(piece)
            excess = self.index.taken_bytes - self.index.bound_bytes
            self._remove(self.index.shrink(excess))
        except BaseException:
            os.close(lock)
            raise
        if not self._closing.is_set():
            self._is_ready.set()
        return lock

    def _next(self) -> tuple[BlockKey, memoryview] | None:
        with self._lock:
            while not self._queue:
                if self._closing.is_set():
                    return None
                self._wanted.wait(60.0)
            return None if self._closing.is_set() else self._queue.popleft()


def _code(error: OSError | MemoryError) -> int:
    return errno.ENOMEM if isinstance(error, MemoryError) else error.errno or errno.EIO


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
