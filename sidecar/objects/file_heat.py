"""Files that are read here and there so often that it is cheaper to have them as a whole.

Whoever rents and does not know for how long does best to buy when he has paid the price in rent: he never pays more than twice what he
could have known. Here rent is reads of parts, and the price is what fetching the rest of the file costs; half of it is enough, as
who has stopped reading is not fetched for to the end. A file goes into memory if there is room for it beside others, else to the cache
volume, block by block, by the threads of the read-ahead and behind what they have to do.
"""

import contextlib
import threading
import time
from collections import OrderedDict, deque

from sidecar.objects.block_costs import BlockCosts
from sidecar.objects.block_memory import Block
from sidecar.objects.block_source import BlockSource
from sidecar.objects.blocks import Blocks, version_of
from sidecar.objects.cache_volume import CacheVolume
from sidecar.objects.read_ahead import Shares
from sidecar.objects.read_ahead_threads import ReadAheadThreads
from sidemount.stores.store import ObjectInfo

FileKey = tuple[str, str]
"""Key of the object, its version."""

_REMEMBERED = 1024
_LOOK_EVERY = 16  # reads of parts: to count what is missing of a file takes a while
_IDLE_S = 2.0  # after which nobody is taken to read a file any more
_HELD_S = 10.0  # after which its room is another's
_SHARE = (3, 4)  # of memory and of the cache volume
_PRICE = 1 / 2


class HotFile:
    """A version of an object that is open. `used_s`: when it was last read other than on and on.

    `is_wanted`: as a whole. `is_for_volume`: memory has no room for it.
    """

    __slots__ = ("info", "is_for_volume", "is_wanted", "next", "noted", "paid", "used_s")

    def __init__(self, info: ObjectInfo) -> None:
        self.info = info
        self.used_s = 0.0
        self.is_wanted = self.is_for_volume = False
        self.next = 0  # block
        self.noted = 0
        self.paid = 0.0  # in small reads

    @property
    def wants_blocks(self) -> bool:
        """Tell whether who misses a part of a block may as well fetch the block, as it would be fetched anyway."""
        return self.is_wanted and not self.is_for_volume


class FileHeat:
    """The files of one volume that are read at random. For any thread. `at_once`: blocks that may be on their way."""

    def __init__(
        self,
        blocks: Blocks,
        source: BlockSource,
        volume: CacheVolume | None,
        costs: BlockCosts,
        shares: Shares,
        threads: ReadAheadThreads,
        at_once: int,
    ) -> None:
        self.files = 0
        self.fetched_bytes = 0
        self._blocks = blocks
        self._source = source
        self._volume = volume
        self._costs = costs
        self._shares = shares
        self._threads = threads
        self._at_once = at_once
        self._lock = threading.Lock()
        self._known: OrderedDict[FileKey, HotFile] = OrderedDict()
        self._granted: list[HotFile] = []
        self._wanted: deque[HotFile] = deque()
        self._steps = 0

    def file(self, info: ObjectInfo) -> HotFile:
        """Return what is known of a version of an object, for all who have it open."""
        key = (info.key, version_of(info))
        with self._lock:
            file = self._known.pop(key, None) or HotFile(info)
            self._known[key] = file
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            return file

    def note_part(self, file: HotFile, size: int) -> None:
        """Take note of a part that the store was asked for, and fetch the rest of its file if as much has been paid for parts."""
        with self._lock:
            file.paid += self._costs.of(size)
            file.noted += 1
            if file.is_wanted or file.noted % _LOOK_EVERY or not self._fits(file):
                return
        if not self._is_worth_it(file):
            return
        with self._lock:
            if file.is_wanted or not self._fits(file):  # since a moment ago
                return
            file.is_wanted = True
            file.next = 0
            file.used_s = time.monotonic()
            self.files += 1
            self._wanted.append(file)
            if file not in self._granted:
                self._granted.append(file)
            missing = self._at_once - self._steps
            self._steps = self._at_once
        for _ in range(missing):
            self._go_on()

    def _go_on(self) -> None:
        if not self._threads.submit(self._step):
            with self._lock:
                self._steps -= 1
                if not self._steps:
                    self._end_all()

    def _step(self) -> None:
        """Fetch one block and get in line again: behind what readers who read on and on are about to need."""
        while True:
            with self._lock:
                found = self._next()
                if found is None:
                    self._steps -= 1
                    return
            if not self._has(*found):
                break
        file, number = found
        is_there = False
        try:
            with contextlib.suppress(OSError, MemoryError):
                is_there = self._keep(file, number) if file.is_for_volume else self._fetch(file, number)
        finally:
            if not is_there:
                with self._lock:
                    self._end(file)
            self._go_on()

    def _fetch(self, file: HotFile, number: int) -> bool:
        """Have a block in memory. False: that is not possible."""
        fetch = self._blocks.expect(file.info, number, is_ahead=False)
        if fetch is None or not self._blocks.carry_out(fetch, waits=False):
            return True  # somebody else does
        if fetch.fault is None:
            self._count_fetched(fetch.size)
        return fetch.fault is None

    def _keep(self, file: HotFile, number: int) -> bool:
        """Have a block on the cache volume. False: that is not possible. Raises StoreFault."""
        key, volume = self._blocks.key(file.info, number), self._volume
        if volume is None:
            return False
        view = self._blocks.find(key)
        if view is not None:
            return volume.store(key, view)
        if self._blocks.has(key):
            return True  # on its way for a reader, and offered to the volume then
        size = self._blocks.size(file.info, number)
        buffer = self._blocks.take(size)
        if buffer is None:
            return False
        block = Block(buffer, size)
        del buffer
        try:
            assert block.view is not None
            self._source.fetch(file.info, number * self._blocks.block_bytes, block.view)
            self._count_fetched(size)
            return volume.store(key, block.view)
        finally:
            self._blocks.give_back(block)

    def _count_fetched(self, size: int) -> None:
        with self._lock:
            self.fetched_bytes += size

    def _has(self, file: HotFile, number: int) -> bool:
        key = self._blocks.key(file.info, number)
        if file.is_for_volume and self._volume is not None:
            return self._volume.has(key)
        return self._blocks.has(key)

    def _is_worth_it(self, file: HotFile) -> bool:
        """Tell whether enough has been paid for what is missing. Looks at many blocks, so nobody waits for it."""
        paid = file.paid * self._at_once
        left = 0
        for number in range(self._count(file)):
            left += not self._has(file, number)
            if left * self._costs.ratio * _PRICE > paid:
                return False
        return left > 0

    # With the lock held.

    def _next(self) -> tuple[HotFile, int] | None:
        while self._wanted:
            file = self._wanted[0]
            is_read = time.monotonic() - file.used_s <= _IDLE_S
            if is_read and file.next < self._count(file) and self._fits(file):
                file.next += 1
                return file, file.next - 1
            self._end(file)
        return None

    def _end(self, file: HotFile) -> None:
        if file.is_wanted:
            file.is_wanted = False
            file.paid = 0.0  # what is asked for anew is paid for anew
            self._wanted.remove(file)

    def _end_all(self) -> None:
        for file in list(self._wanted):
            self._end(file)

    def _fits(self, file: HotFile) -> bool:
        """Tell whether there is room for a file beside those that are there already, and all who read on and on; and note where."""
        now_s = time.monotonic()
        self._granted = [one for one in self._granted if now_s - one.used_s <= _HELD_S or one is file]
        of, parts = _SHARE
        memory = self._blocks.bound_bytes * of // parts
        memory -= self._shares.given(now_s) * self._blocks.block_bytes
        is_for_volume = not self._has_room(file, memory, on_volume=False)
        file.is_for_volume = is_for_volume  # at once: others read it without the lock
        volume = self._volume
        return not is_for_volume or (
            volume is not None
            and volume.is_ready
            and self._has_room(file, volume.index.bound_bytes * of // parts, on_volume=True)
        )

    def _has_room(self, file: HotFile, room_bytes: int, *, on_volume: bool) -> bool:
        others = (one for one in self._granted if one.is_for_volume == on_volume and one is not file)
        return sum(self._room(one) for one in others) + self._room(file) <= room_bytes

    def _room(self, file: HotFile) -> int:
        return self._count(file) * self._blocks.block_bytes

    def _count(self, file: HotFile) -> int:
        return -(-file.info.size // self._blocks.block_bytes)
