"""The memory that blocks are kept in: never more than a bound in all, and used again instead of cleared."""

import mmap
import sys
import threading

BlockBuffer = mmap.mmap | bytearray

_LEAST_BLOCKS = 8  # with fewer, read-ahead and readers would only take buffers from each other
_LEAST_BLOCK_BYTES = 64 << 10


def fitting_block_bytes(block_bytes: int, bound_bytes: int) -> int:
    """Return the size of blocks of which enough fit into a bound: what was asked for, or a power of two below."""
    while block_bytes > _LEAST_BLOCK_BYTES and block_bytes * _LEAST_BLOCKS > bound_bytes:
        block_bytes = 1 << (block_bytes - 1).bit_length() - 1
    return max(block_bytes, _LEAST_BLOCK_BYTES)


class Block:
    """Content in memory. Whoever wants to see it takes `view`, and slices that; None: it is another's by now.

    `is_unread`: it was read ahead, and nobody has asked for it yet. `is_passing`: it was fetched for who reads on and on, `is_passed`: who
    is beyond it by now.
    """

    __slots__ = ("_buffer", "is_passed", "is_passing", "is_unread", "size", "view")

    def __init__(self, buffer: BlockBuffer, size: int) -> None:
        self._buffer = buffer
        self.size = size
        self.is_unread = self.is_passing = self.is_passed = False
        self.view: memoryview | None = memoryview(buffer)[:size]

    def cut(self, size: int) -> None:
        """Be only so long: the content is."""
        self.size = size
        self.view = memoryview(self._buffer)[:size]

    def retire(self) -> BlockBuffer | None:
        """Return the buffer if nobody looks at it any more, for somebody else's use. If somebody does, all stays as it was.

        No lock is needed against one who is about to look: either he finds no view, or we see that he has one.
        """
        self.view = None
        if self._references() > _UNSEEN:
            self.view = memoryview(self._buffer)[: self.size]
            return None
        return self._buffer

    def _references(self) -> int:
        return sys.getrefcount(self._buffer)  # each view is one more


def _references_of_unseen() -> int:
    block = Block(bytearray(1), 1)
    block.view = None
    return block._references()


_UNSEEN = _references_of_unseen()  # how many the interpreter itself counts differs between versions


class BlockMemory:
    """Buffers of whole blocks, each used over and over, and smaller ones. For any thread.

    A bound that is too small for eight of the smallest blocks is taken as one that is not.
    """

    def __init__(self, bound_bytes: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.bound_bytes = max(bound_bytes, block_bytes * _LEAST_BLOCKS)
        self._lock = threading.Lock()
        self._idle: list[mmap.mmap] = []
        self._allocated = 0

    @property
    def allocated_bytes(self) -> int:
        """Return what all buffers take, those that wait for their next use among them."""
        return self._allocated

    @property
    def is_idle(self) -> bool:
        """Tell whether there is a buffer that waits for its next use."""
        return bool(self._idle)

    def take(self, size: int) -> BlockBuffer | None:
        """Return a buffer of that size, not above that of a block. None if there is no room for one, or no memory."""
        with self._lock:
            if size == self.block_bytes and self._idle:
                return self._idle.pop()
            while self._allocated + size > self.bound_bytes and self._idle:
                self._idle.pop().close()
                self._allocated -= self.block_bytes
            if self._allocated + size > self.bound_bytes:
                return None
            try:
                buffer = self._make(size)
            except (MemoryError, OSError):
                return None
            self._allocated += size
            return buffer

    def give_back(self, buffer: BlockBuffer) -> None:
        """Take a buffer that nobody looks at any more."""
        with self._lock:
            if isinstance(buffer, mmap.mmap):
                self._idle.append(buffer)
            else:
                self._allocated -= len(buffer)

    def _make(self, size: int) -> BlockBuffer:
        if size < self.block_bytes:
            return bytearray(size)
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
