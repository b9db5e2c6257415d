"""Which inherited nodes the kernel does not know any more, although their lookup counts say that it does.

A count is never too low: it is raised before the kernel is told. But it is too high by what a killed process had counted and not
told, and by what it was told to take back and had not yet taken. So an inherited node may never reach zero. Whether the kernel knows a node
can be asked; but it also comes to know one a moment after it was told. So a node is only given up if the kernel does not
know it and nobody was told of it for a while. Should that ever be wrong, the kernel gets ESTALE and looks the name up again.
"""

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from sidecar.takeover.layout import SLOT
from sidecar.takeover.ledger import ROOT

QUIET_S = 10.0
_AT_ONCE = 64
_PAUSE_S = 0.02
_TICK_S = 1.0


class Counted(Protocol):
    """The node table, as far as counts go."""

    def count_of(self, node: int) -> int:
        """Return how often the kernel has looked a node up, 0 if there is none."""
        ...

    def give_up(self, node: int, count: int) -> None:
        """End a node that the kernel does not know, if its count is still that."""
        ...


class Leftovers:
    """The nodes whose counts may be too high: all that there were when a process took over. `ids` and `counts` are by slot."""

    def __init__(
        self,
        ids: Sequence[int],
        counts: Sequence[int],
        *,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet_s = quiet_s
        self._clock = clock
        self._lock = threading.Lock()
        self._untouched = array("Q", ids)  # nodes of which the kernel has taken nothing back since, by slot
        self._counts = array("Q", counts)
        self._begin = clock() + quiet_s
        self._sweep: Iterator[int] = iter(range(len(self._untouched)))
        self._suspects: dict[int, tuple[int, float]] = {}  # in the order of their times

    def forgot(self, node: int, left: int) -> None:
        """Note that the kernel has taken back lookups of an inherited node, and what is left of them."""
        with self._lock:
            self._suspects.pop(node, None)
            slot = node & SLOT
            if slot < len(self._untouched) and self._untouched[slot] == node:
                self._untouched[slot] = 0  # it is looked at as a suspect from now on
            if left:
                self._suspects[node] = (left, self._clock() + self._quiet_s)

    def ask(self, table: Counted, knows: Callable[[int], bool]) -> bool:
        """Ask the kernel for one node, and give it up if it does not know it. Return whether there was any to ask for."""
        while (candidate := self._candidate()) is not None:
            node, count = candidate
            # A count that has changed was raised, or comes back with the forget that lowered it.
            if table.count_of(node) == count:
                if not knows(node):
                    table.give_up(node, count)
                return True
        return False

    def _candidate(self) -> tuple[int, int] | None:
        """Return the next node that has been let be for a while, and its count then."""
        now = self._clock()
        with self._lock:
            for node, (left, due) in self._suspects.items():
                if now < due:
                    break
                del self._suspects[node]
                return node, left
            if now < self._begin:
                return None
            for slot in self._sweep:
                if self._untouched[slot] > ROOT:
                    return self._untouched[slot], self._counts[slot]
            self._untouched = self._counts = array("Q")
            return None


def sweep(leftovers: Leftovers, table: Counted, knows: Callable[[int], bool]) -> None:
    """Ask for ever. For a thread of its own: the kernel's answer may have to wait for a request that is being served."""
    asked = 0
    while True:
        if not leftovers.ask(table, knows):
            time.sleep(_TICK_S)
        elif (asked := asked + 1) % _AT_ONCE == 0:
            time.sleep(_PAUSE_S)
