"""Blocks of objects in memory: found without a lock, fetched once however many wait, the longest unused given up first.

A block belongs to one version of an object and to no other. What is read ahead and not asked for yet is given up last: it is
newer than what the same reader has just left behind, but has been used less recently. What has been left behind is given up first; and
before reading on and on takes more than a modest part of the memory it takes that, unless it comes by for the second time: memory
that was never used costs as much as fetching into it.
"""

import contextlib
import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from sidecar.objects.block_memory import Block, BlockBuffer, BlockMemory
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault

BlockKey = tuple[str, str, int]  # key of the object, its version, number of the block
Load = Callable[[ObjectInfo, int, memoryview], None]

_ROOM_PAUSE_S = 0.01  # a view that is let go of tells nobody
_ROOM_WAIT_S = 5.0


class NoRoom(Exception):
    """All memory is in use."""


def version_of(info: ObjectInfo) -> str:
    """Return what tells one version of an object from another. A store without ETags has only size and time."""
    return info.etag or f"{info.size}@{info.modified_ns}"


class Fetch:
    """A block on its way. Whoever claims it first has to carry it out; everybody else may wait."""

    __slots__ = ("_done", "fault", "info", "is_ahead", "is_claimed", "key", "number", "size", "view")

    def __init__(self, key: BlockKey, info: ObjectInfo, number: int, size: int, *, is_ahead: bool) -> None:
        self.key = key
        self.info = info
        self.number = number
        self.size = size
        self.is_ahead = is_ahead
        self.is_claimed = False
        self.view: memoryview | None = None
        self.fault: Exception | None = None
        self._done = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is done, one way or the other."""
        return self._done.wait(timeout_s)

    def finish(self) -> None:
        """Let go of everybody who waits."""
        self._done.set()


class Blocks:
    """The blocks of one volume. For any thread.

    `load` fills a buffer with a block, or raises. `wait_s` bounds how long anybody waits for somebody else's load. `passing_bytes`: how much
    memory what is read on and on may take before it takes what has been left behind.
    """

    def __init__(self, memory: BlockMemory, load: Load, wait_s: float, passing_bytes: int = 1 << 62) -> None:
        self.block_bytes = memory.block_bytes
        self.evicted = 0
        self.unread_bytes = 0  # read ahead, and given up without anybody having asked for it
        self._memory = memory
        self._load = load
        self._wait_s = wait_s
        self._passing_bytes = passing_bytes
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._found: dict[BlockKey, Block] = {}
        self._used: OrderedDict[BlockKey, None] = OrderedDict()
        self._unread: OrderedDict[BlockKey, None] = OrderedDict()
        self._passed: OrderedDict[BlockKey, None] = OrderedDict()
        self._read_once: OrderedDict[BlockKey, None] = OrderedDict()  # and given up since
        self._fetches: dict[BlockKey, Fetch] = {}
        self._lingering: list[Block] = []

    @property
    def allocated_bytes(self) -> int:
        """Return how much memory there is in blocks, in use or not."""
        return self._memory.allocated_bytes

    @property
    def bound_bytes(self) -> int:
        """Return how much there may be at most."""
        return self._memory.bound_bytes

    def key(self, info: ObjectInfo, number: int) -> BlockKey:
        """Return what a block is found by."""
        return (info.key, version_of(info), number)

    def size(self, info: ObjectInfo, number: int) -> int:
        """Return how long a block is: only the last of an object is shorter than others."""
        return min(self.block_bytes, info.size - number * self.block_bytes)

    # What is there.

    def find(self, key: BlockKey) -> memoryview | None:
        """Return a block's content if it is there. Never waits but for the moment in which a block is first asked for."""
        block = self._found.get(key)
        if block is None:
            return None
        view = block.view
        if view is None:
            return None
        if block.is_unread or block.is_passed:
            self._mark_read(key, block)
        with contextlib.suppress(KeyError):  # given up meanwhile; nobody else gets what there is a view of
            self._used.move_to_end(key)
        return view

    def has(self, key: BlockKey) -> bool:
        """Tell whether a block is there or on its way, which counts as no use of it."""
        return key in self._found or key in self._fetches

    def put(self, info: ObjectInfo, number: int, block: Block) -> None:
        """Keep a block that somebody has got otherwise, unless it is there already."""
        key = self.key(info, number)
        with self._lock:
            if key not in self._found:
                self._keep(key, block, is_unread=False)
                return
        self.give_back(block)

    def forget(self, key: str) -> None:
        """Give up the blocks of an object, whatever its version, as far as nobody looks at them."""
        with self._lock:
            for found in [found for found in self._found if found[0] == key]:
                self._give_up(found)
            self._room.notify_all()

    def pass_by(self, keys: list[BlockKey]) -> None:
        """Give up before others what was read ahead for somebody who reads on and on, and has left it behind."""
        with self._lock:
            for key in keys:
                block = self._found.get(key)
                if block is not None and block.is_passing and not block.is_unread:
                    block.is_passed = True
                    self._used.pop(key, None)
                    self._passed[key] = None

    def let_go(self, keys: list[BlockKey]) -> None:
        """Give up before all others what was read ahead for somebody who will not come for it."""
        with self._lock:
            for key in keys:
                fetch = self._fetches.get(key)
                if fetch is not None:
                    fetch.is_ahead = False
                    if not fetch.is_claimed:
                        fetch.is_claimed = True
                        self._end(fetch, None, NoRoom())
                elif key in self._unread:
                    del self._unread[key]
                    self._used[key] = None
                    self._used.move_to_end(key, last=False)

    # What is not there yet.

    def expect(self, info: ObjectInfo, number: int, *, is_ahead: bool) -> Fetch | None:
        """Return a block's fetch for somebody to `carry_out`; None if the block is there, or somebody else is at it."""
        key = self.key(info, number)
        with self._lock:
            if key in self._found or key in self._fetches:
                return None
            return self._begin(key, info, number, is_ahead=is_ahead)

    def carry_out(self, fetch: Fetch, *, waits: bool) -> bool:
        """Fetch a block, and return True, unless somebody else does. What goes wrong is the fetch's fault.

        `waits`: for room in memory, too.
        """
        with self._lock:
            if fetch.is_claimed:
                return False
            fetch.is_claimed = True
        block: Block | None = None
        fault: Exception | None = NoRoom()
        try:
            room = self._room_for(fetch.size, _ROOM_WAIT_S if waits else 0, passes=self._is_passing(fetch))
            block = Block(room, fetch.size)
            del room
            assert block.view is not None
            self._load(fetch.info, fetch.number, block.view)
            fault = None
        except (OSError, NoRoom, MemoryError) as error:
            fault = copied(error)
        except BaseException:
            fault = StoreFault(errno.EIO, FaultKind.ANSWER, f"{fetch.info.key!r}: not read, by a defect")
            raise
        finally:
            with self._lock:
                self._end(fetch, block, fault)
        return True

    def read(self, info: ObjectInfo, number: int) -> memoryview:
        """Return a block's content: what is there, what somebody else is fetching, or what this call fetches.

        Raises what `load` does; `NoRoom` if all memory is in use and remains so.
        """
        key = self.key(info, number)
        deadline = time.monotonic() + self._wait_s
        while True:
            view = self.find(key)
            if view is not None:
                return view
            with self._lock:
                if key in self._found:
                    continue  # somebody was about to give it up, and has seen that it is in use
                fetch = self._fetches.get(key) or self._begin(key, info, number, is_ahead=False)
            is_mine = self.carry_out(fetch, waits=True)
            if not fetch.wait(max(0.0, deadline - time.monotonic())):
                raise StoreFault(
                    errno.ETIMEDOUT, FaultKind.TIMEOUT, f"{info.key!r}: {os.strerror(errno.ETIMEDOUT)}"
                )
            if fetch.view is not None:
                self.find(key)  # this is a use of it
                return fetch.view
            if fetch.fault is not None and (is_mine or not isinstance(fetch.fault, NoRoom)):
                raise copied(fetch.fault)

    # Memory.

    def take(self, size: int) -> BlockBuffer | None:
        """Return a buffer of up to a block's size, if there is room for one now."""
        try:
            return self._room_for(size, 0)
        except NoRoom:
            return None

    def give_back(self, block: Block) -> None:
        """Take back what will not be kept: now, or as soon as nobody looks at it any more."""
        with self._lock:
            self._drop(block)

    def _is_passing(self, fetch: Fetch) -> bool:
        return fetch.is_ahead and fetch.key not in self._read_once

    def _room_for(self, size: int, wait_s: float, *, passes: bool = False) -> BlockBuffer:
        """Return a buffer, giving up what has been unused for the longest time. Raises NoRoom."""
        deadline = time.monotonic() + wait_s
        with self._lock:
            while True:
                self._drop_lingering()
                if (
                    passes
                    and self._memory.allocated_bytes >= self._passing_bytes
                    and not self._memory.is_idle
                ):
                    self._give_up_of(self._passed)
                buffer = self._memory.take(size)
                if buffer is not None:
                    return buffer
                if self._give_up_oldest():
                    continue
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise NoRoom
                self._room.wait(min(left_s, _ROOM_PAUSE_S))

    # With the lock held.

    def _begin(self, key: BlockKey, info: ObjectInfo, number: int, *, is_ahead: bool) -> Fetch:
        fetch = Fetch(key, info, number, self.size(info, number), is_ahead=is_ahead)
        self._fetches[key] = fetch
        return fetch

    def _end(self, fetch: Fetch, block: Block | None, fault: Exception | None) -> None:
        del self._fetches[fetch.key]
        if block is not None and fault is None:
            fetch.view = block.view
            if fetch.key in self._found:  # an open has brought it meanwhile
                self._drop(block)
            else:
                block.is_passing = self._is_passing(fetch)
                self._keep(fetch.key, block, is_unread=fetch.is_ahead)
        else:
            fetch.fault = fault
            if block is not None:
                self._drop(block)
        fetch.finish()
        self._room.notify_all()

    def _keep(self, key: BlockKey, block: Block, *, is_unread: bool) -> None:
        block.is_unread = is_unread
        (self._unread if is_unread else self._used)[key] = None
        self._found[key] = block

    def _mark_read(self, key: BlockKey, block: Block) -> None:
        with self._lock:
            if self._found.get(key) is block:
                block.is_unread = block.is_passed = False
                self._unread.pop(key, None)
                self._passed.pop(key, None)
                self._used[key] = None

    def _drop(self, block: Block) -> None:
        buffer = block.retire()
        if buffer is None:
            self._lingering.append(block)  # such as a fault's traceback still knows
        else:
            self._memory.give_back(buffer)

    def _drop_lingering(self) -> None:
        if self._lingering:
            lingering, self._lingering = self._lingering, []
            for block in lingering:
                self._drop(block)

    def _give_up_oldest(self) -> bool:
        return any(self._give_up_of(order) for order in (self._passed, self._used, self._unread))

    def _give_up_of(self, order: OrderedDict[BlockKey, None]) -> bool:
        for _ in range(len(order)):
            key, _ = order.popitem(last=False)
            if self._give_up(key):
                return True
            order[key] = None  # in use, so not the oldest
        return False

    def _give_up(self, key: BlockKey) -> bool:
        block = self._found[key]
        buffer = block.retire()
        if buffer is None:
            return False
        del self._found[key]
        self._used.pop(key, None)
        self._unread.pop(key, None)
        self._passed.pop(key, None)
        self.evicted += 1
        if block.is_passed:
            self._read_once[key] = None
            if len(self._read_once) * self.block_bytes > self.bound_bytes:
                self._read_once.popitem(last=False)
        if block.is_unread:
            self.unread_bytes += block.size
        self._memory.give_back(buffer)
        return True


def copied(fault: Exception) -> Exception:
    """Return a fault as if it were new: one is raised in many threads, and a traceback keeps what was looked at from being given up."""
    match fault:
        case StoreFault():
            return StoreFault(fault.errno or errno.EIO, fault.kind, fault.strerror or "")
        case OSError():
            return OSError(fault.errno or errno.EIO, fault.strerror or "")
        case _:
            return type(fault)()
