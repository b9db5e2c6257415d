"""Descriptors that several operations use at the same time, and which of them stay open.

Directories are kept open for as long as there is room, because nearly every operation starts from one. Other files are not: a
descriptor would keep the space of a file that somebody else deletes. Nodes that have lost their last name are held open
until they are forgotten, because nothing else leads to them.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

from sidecar.protocol_filesystem import ROOT

_lock = threading.Lock()


class Descriptor:
    """A file descriptor with counted users: `with` it to use it once. Closed by whoever is last after `retire`."""

    __slots__ = ("_fd", "_retired", "_users")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._users = 0
        self._retired = False

    def borrow(self) -> "Descriptor":
        """Count one user, who is to `with` it exactly once."""
        with _lock:
            self._users += 1
        return self

    def __enter__(self) -> int:
        return self._fd

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            self._users -= 1
            close = self._retired and not self._users
        if close:
            os.close(self._fd)

    def retire(self) -> None:
        """Close it as soon as nobody uses it."""
        with _lock:
            if self._retired:
                return
            self._retired = True
            close = not self._users
        if close:
            os.close(self._fd)


class SoleUse(Descriptor):
    """A file descriptor of one user, closed right after. Need not be borrowed, and no lock guards it."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


class Descriptors:
    """Open descriptors of nodes: at most `capacity` directories, and every node that has lost its names."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._mutex = threading.Lock()
        self._directories: OrderedDict[int, Descriptor] = OrderedDict()
        self._nameless: dict[int, Descriptor] = {}

    def __len__(self) -> int:
        return len(self._directories) + len(self._nameless)

    def borrow(self, node: int) -> Descriptor | None:
        """Return a node's descriptor for one use, if one is open."""
        with self._mutex:
            descriptor = self._directories.get(node)
            if descriptor is not None:
                self._directories.move_to_end(node)
            else:
                descriptor = self._nameless.get(node)
            return None if descriptor is None else descriptor.borrow()

    def borrow_nameless(self, node: int) -> Descriptor | None:
        """Return the descriptor of a node that has lost its last name for one use, if one is open."""
        with self._mutex:
            descriptor = self._nameless.get(node)
            return None if descriptor is None else descriptor.borrow()

    def keep_directory(self, node: int, fd: int) -> Descriptor:
        """Keep a directory open and return its descriptor for one use."""
        descriptor = Descriptor(fd).borrow()
        with self._mutex:
            replaced = [self._directories.pop(node, None)]
            self._directories[node] = descriptor
            while len(self._directories) > self._capacity:
                replaced.append(self._directories.popitem(last=False)[1])
        for old in replaced:
            if old is not None:
                old.retire()
        return descriptor

    def keep_nameless(self, node: int, fd: int) -> None:
        """Hold a node open that has lost its last name."""
        with self._mutex:
            replaced = self._nameless.pop(node, None)
            self._nameless[node] = Descriptor(fd)
        if replaced is not None:
            replaced.retire()

    def discard(self, node: int) -> None:
        """Close what is open of a node that has ended."""
        with self._mutex:
            old = (self._directories.pop(node, None), self._nameless.pop(node, None))
        for descriptor in old:
            if descriptor is not None:
                descriptor.retire()

    def shed_directories(self) -> bool:
        """Close every directory that is only kept for speed. Return whether there was any."""
        with self._mutex:
            old = list(self._directories.values())
            self._directories.clear()
        for descriptor in old:
            descriptor.retire()
        return bool(old)

    def shed_nameless(self, spared: Callable[[int], bool] = lambda node: False) -> bool:
        """Let go of files without a name, so that the store can use their space. Return whether there was any.

        The root has no name either, and stays.
        """
        with self._mutex:
            shed = [node for node in self._nameless if node != ROOT and not spared(node)]
            old = [self._nameless.pop(node) for node in shed]
        for descriptor in old:
            descriptor.retire()
        return bool(old)
