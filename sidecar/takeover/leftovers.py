"""Which inherited nodes the kernel does not know any more, although their lookup counts say that it does.

A count is never too low: it is raised before the kernel is told. But it is too high by what a killed process had counted and not
told, and by what it was told to take back and had not yet taken. So an inherited node may never reach zero. Whether the kernel knows a node
can be asked; but it also comes to know one a moment after it was told. So a node is only given up if the kernel does not
know it and nobody was told of it for a while. Should that ever be wrong, the kernel gets ESTALE and looks the name up again.

Asking costs a system call. It is paid for by new nodes, one question each, so a table that does not grow costs nothing.
"""

import time
from array import array
from collections.abc import Callable, Iterator, Sequence

from sidecar.takeover.layout import SLOT
from sidecar.takeover.ledger import ROOT, Counts

QUIET_S = 10.0


class Leftovers:
    """The nodes whose counts may be too high: all that there were when a process took over.

    `ids` and `counts` are by slot. `is_known` asks the kernel for a node; it must not raise.
    """

    def __init__(
        self,
        ids: Sequence[int],
        counts: Sequence[int],
        is_known: Callable[[int], bool],
        *,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_known = is_known
        self._quiet_s = quiet_s
        self._clock = clock
        self._never = array("Q", ids)  # nodes not forgotten since, by slot
        self._counts = array("Q", counts)
        self._begin = clock() + quiet_s
        self._sweep: Iterator[int] | None = iter(range(len(self._never)))
        self._suspects: dict[int, tuple[int, float]] = {}  # in the order of their times

    def forgot(self, node: int, left: int) -> None:
        """Note that the kernel has taken back lookups of an inherited node, and what is left of them."""
        self._suspects.pop(node, None)
        if self._sweep is not None:
            slot = node & SLOT
            if slot < len(self._never) and self._never[slot] == node:
                self._never[slot] = 0  # it is looked at as a suspect from now on
        if left:
            self._suspects[node] = (left, self._clock() + self._quiet_s)

    def find(self, lookups: Counts) -> int | None:
        """Ask the kernel for one node at most, and return it if it can be given up."""
        if self._suspects:
            node = next(iter(self._suspects))
            left, due = self._suspects[node]
            if self._clock() >= due:
                del self._suspects[node]
                return self._unknown(node, left, lookups)
        if self._sweep is None or self._clock() < self._begin:
            return None
        for slot in self._sweep:
            node = self._never[slot]
            if node > ROOT:
                return self._unknown(node, self._counts[slot], lookups)
        self._sweep = None
        self._never = self._counts = array("Q")
        return None

    def _unknown(self, node: int, count: int, lookups: Counts) -> int | None:
        # A count that has changed since was raised, or will come back with the forget that lowered it.
        if lookups[node & SLOT] != count or self._is_known(node):
            return None
        return node
