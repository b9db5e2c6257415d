"""Descriptors that one process keeps for another: files without a name, which nothing else leads to. Bounded."""

import contextlib
import os
import resource
from collections.abc import Iterator

HELD_MAX = 4096
_SHARE = 2  # of the descriptors that this process may have


class HeldDescriptors:
    """Open descriptors by key. A key is its owner's: the number of a node."""

    __slots__ = ("_held", "_most")

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._most = min(HELD_MAX, raise_descriptor_limit() // _SHARE)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield key and descriptor of all that is held now."""
        return iter(tuple(self._held.items()))

    def get(self, key: int) -> int | None:
        """Return a descriptor that stays ours, None if that key has none."""
        return self._held.get(key)

    def hold(self, key: int, descriptor: int) -> bool:
        """Take over a descriptor, instead of the key's earlier one; False, and closed, if there are too many."""
        earlier = self._held.pop(key, None)
        if earlier is not None:
            _close(earlier)
        if len(self._held) >= self._most:
            _close(descriptor)
            return False
        self._held[key] = descriptor
        return True

    def release(self, key: int) -> None:
        """Close the key's descriptor, if it has one."""
        descriptor = self._held.pop(key, None)
        if descriptor is not None:
            _close(descriptor)

    def clear(self) -> None:
        """Close all."""
        for key in list(self._held):
            self.release(key)


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as it may have, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def _close(descriptor: int) -> None:
    # A close reports what a store failed to write; the file has no name, and whoever wrote has been told by fsync.
    with contextlib.suppress(OSError):
        os.close(descriptor)
