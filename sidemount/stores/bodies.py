"""Content that is not in memory as a whole: buffers that are read when their turn comes, and how much that is without reading any."""

from collections.abc import Sequence
from typing import overload

from sidemount.stores.store import Buffer


class LazyBody(Sequence[Buffer]):
    """Buffers that are made as they are asked for, each time anew."""

    @property
    def nbytes(self) -> int:
        """How many bytes all of them have. Nothing is read for it."""
        raise NotImplementedError

    def piece(self, index: int) -> Buffer:
        """Return a buffer; there is one."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        if isinstance(index, slice):
            return [self[one] for one in range(len(self))[index]]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.piece(index)


class Framed(LazyBody):
    """Content with something before and something behind it."""

    def __init__(self, head: bytes, content: Sequence[Buffer], tail: bytes) -> None:
        self._head = head
        self._content = content
        self._tail = tail

    @property
    def nbytes(self) -> int:
        """How many bytes all of them have."""
        return len(self._head) + size_of(self._content) + len(self._tail)

    def __len__(self) -> int:
        return len(self._content) + 2

    def piece(self, index: int) -> Buffer:
        """Return a buffer."""
        if index == 0:
            return self._head
        return self._content[index - 1] if index <= len(self._content) else self._tail


def size_of(content: Sequence[Buffer]) -> int:
    """Return how many bytes buffers have, one after the other."""
    if isinstance(content, LazyBody):
        return content.nbytes
    return sum(memoryview(one).nbytes for one in content)
