"""Reading one open file: one version of one object, and no other."""

import threading
import time
from functools import partial

from sidecar.objects.block_heat import BlockHeat
from sidecar.objects.block_memory import Block
from sidecar.objects.block_source import BlockSource
from sidecar.objects.blocks import BlockKey, Blocks, NoRoom, version_of
from sidecar.objects.file_heat import FileHeat
from sidecar.objects.read_ahead import Advice, Shares, Streams
from sidecar.objects.read_ahead_threads import ReadAheadThreads
from sidemount.stores.store import ObjectInfo

START = -1  # number of what an open has fetched of a large object: less than its first block

_WHOLE_BYTES = 128 << 10  # a block this small is fetched whole: that costs what a part of it does
_BORROWED_BYTES = 64 << 10  # to have memory cleared and given by the system costs more than to take a block's
_EMPTY = memoryview(b"")


class ReaderParts:
    """What the readers of a volume share."""

    def __init__(
        self,
        blocks: Blocks,
        source: BlockSource,
        shares: Shares,
        threads: ReadAheadThreads,
        heat: BlockHeat,
        files: FileHeat,
    ) -> None:
        self.blocks = blocks
        self.source = source
        self.shares = shares
        self.threads = threads
        self.heat = heat
        self.files = files
        self.hits = 0
        self.hit_bytes = 0
        self.misses = 0
        self.exact_reads = 0
        self.lock = threading.Lock()


class Reader:
    """An open file. `read_now` is for the serving thread alone, everything else for any.

    Of a version that is not in the store any more it has what is cached; the rest is ESTALE.
    """

    def __init__(self, parts: ReaderParts, info: ObjectInfo) -> None:
        self.info = info
        self._parts = parts
        self._blocks = parts.blocks
        self._block_bytes = parts.blocks.block_bytes
        self._version = version_of(info)
        self._streams = Streams(parts.shares, self._block_bytes, info.size)
        self._file = parts.files.file(info)

    def read_now(self, offset: int, size: int) -> memoryview | None:
        """Return what is in memory; None if anything has to be waited for. The view is of the cache itself."""
        size = min(size, self.info.size - offset)
        if size <= 0:
            return _EMPTY
        found = self._find(offset, size)
        self._follow(self._streams.note(offset, size))
        if found is None:
            return None
        self._parts.hits += 1
        self._parts.hit_bytes += size
        return found

    def read(self, offset: int, size: int) -> memoryview | bytes:
        """Return content; fewer bytes than asked for only at the end of the object. Raises StoreFault, MemoryError."""
        size = min(size, self.info.size - offset)
        if size <= 0:
            return b""
        with self._parts.lock:
            self._parts.misses += 1
        advice = self._streams.note(offset, size)
        self._follow(advice)
        found = self._find(offset, size)
        if found is not None:
            return found
        first, last = self._numbers(offset, size)
        if not (
            advice.is_sequential or self._file.wants_blocks or self._wants_blocks(offset, size, first, last)
        ):
            return self._read_exactly(offset, size)
        try:
            if first == last:
                start = offset - first * self._block_bytes
                return self._blocks.read(self.info, first)[start : start + size]
            return self._assemble(offset, size)
        except NoRoom:  # everybody else's answers are still under way, and have been for long
            return self._read_exactly(offset, size)

    def close(self) -> None:
        """Let go of what was read ahead. Views that were returned stay what they are."""
        for abandoned in self._streams.close():
            self._blocks.let_go([self._key(number) for number in abandoned])

    def _key(self, number: int) -> BlockKey:
        return (self.info.key, self._version, number)

    def _numbers(self, offset: int, size: int) -> tuple[int, int]:
        return offset // self._block_bytes, (offset + size - 1) // self._block_bytes

    def _find(self, offset: int, size: int) -> memoryview | None:
        first, last = self._numbers(offset, size)
        start = offset - first * self._block_bytes
        view = self._blocks.find(self._key(first))
        if view is None and last == 0:
            view = self._blocks.find(self._key(START))
            if view is not None and start + size > len(view):
                return None
        if view is None:
            return None
        if first == last:
            return view[start : start + size]
        parts = [view[start:]]
        for number in range(first + 1, last + 1):
            view = self._blocks.find(self._key(number))
            if view is None:
                return None
            parts.append(view)
        parts[-1] = parts[-1][: offset + size - last * self._block_bytes]
        return memoryview(b"".join(parts))

    def _assemble(self, offset: int, size: int) -> memoryview:
        """Copy from one block after the other: to wait for one while another cannot be given up could go round in a circle."""
        content = memoryview(bytearray(size))
        done = 0
        while done < size:
            number, start = divmod(offset + done, self._block_bytes)
            part = self._blocks.read(self.info, number)[start : start + size - done]
            content[done : done + len(part)] = part
            done += len(part)
            del part
        return content

    def _read_exactly(self, offset: int, size: int) -> memoryview:
        with self._parts.lock:
            self._parts.exact_reads += 1
        if size < _BORROWED_BYTES or size > self._block_bytes:
            return self._filled(offset, memoryview(bytearray(size)))
        buffer = self._blocks.take(self._block_bytes)
        if buffer is None:
            return self._filled(offset, memoryview(bytearray(size)))
        block = Block(buffer, size)
        del buffer
        try:
            assert block.view is not None
            return self._filled(offset, block.view)
        finally:
            self._blocks.give_back(block)  # as soon as nobody looks at the answer any more

    def _filled(self, offset: int, content: memoryview) -> memoryview:
        if self._parts.source.read(self.info, offset, content):
            self._parts.files.note_part(self._file, len(content))
        return content

    def _wants_blocks(self, offset: int, size: int, first: int, last: int) -> bool:
        """Tell whether to fetch whole blocks for a request that seems to be alone."""
        block_size = self._blocks.size(self.info, first)
        if first != last:
            return size * 4 >= (last - first + 1) * self._block_bytes * 3
        return (
            block_size <= _WHOLE_BYTES
            or size * 4 >= block_size * 3
            or (offset == 0 and self.info.size <= self._block_bytes)
            or self._parts.source.has_unread(self._key(first))
            or self._parts.heat.note(self._key(first))
        )

    def _follow(self, advice: Advice) -> None:
        if not advice.is_sequential:
            self._file.used_s = time.monotonic()
        if advice.abandoned:
            self._blocks.let_go([self._key(number) for number in advice.abandoned])
        if advice.passed:
            self._blocks.pass_by([self._key(number) for number in advice.passed])
        for number in advice.ahead:
            fetch = self._blocks.expect(self.info, number, is_ahead=True)
            if fetch is None:
                continue
            work = partial(self._blocks.carry_out, fetch, waits=False)
            if not self._parts.threads.submit(work):
                self._blocks.let_go([self._key(number)])
                return
