"""Numbers of open files and directories, and whoever is to remember what they stand for."""

import itertools
import threading
from collections.abc import Callable

from sidecar.takeover import layout
from sidecar.takeover.journal import Step
from sidecar.takeover.layout import HANDLE_WORDS, HANDLES_MAX
from sidecar.takeover.mapping import map_words, reserve

_SLOT_BITS = 20
_SLOT = (1 << _SLOT_BITS) - 1
_LEAST_SLOTS = 128

Handles = dict[int, tuple[int, int]]
"""Node and traits of every open handle. Traits are 64 bits that only the filesystem understands."""


class HandleLedger:
    """Remembers nothing. Safe to use from several threads."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def opened(self, node: int, traits: int, step: Step) -> int:
        """Return a handle that never was one before, and remember it. It is noted in `step` first."""
        return next(self._numbers)

    def changed(self, handle: int, traits: int) -> None:
        """Remember other traits of a handle."""

    def closed(self, handle: int) -> None:
        """Forget a handle."""


class SharedHandleLedger(HandleLedger):
    """Handles in a state file: three numbers each, the handle itself stored last. `give_up` is called if there is no space."""

    def __init__(self, file: int, head: memoryview, give_up: Callable[[str], None]) -> None:
        super().__init__()
        self._file = file
        self._head = head
        self._give_up = give_up
        self._lock = threading.Lock()
        self._words = map_words(file, layout.HANDLES, HANDLES_MAX * HANDLE_WORDS)
        self._free: list[int] = []
        self._slots = 0
        self._is_stopped = False

    def load(self) -> Handles:
        """Return what is in the file and be ready for more."""
        found: Handles = {}
        self._slots = self._head[layout.AT_HANDLES_RESERVED]
        for slot in reversed(range(self._slots)):
            handle, node, traits = self._words[slot * HANDLE_WORDS : slot * HANDLE_WORDS + 3]
            if handle:
                found[handle] = (node, traits)
            else:
                self._free.append(slot)
        self._numbers = itertools.count(self._head[layout.AT_NEXT_HANDLE])
        return found

    def stop(self) -> None:
        """Remember nothing any more."""
        self._is_stopped = True

    def opened(self, node: int, traits: int, step: Step) -> int:
        """Return a handle that never was one before, in no process, and remember it."""
        with self._lock:
            number = next(self._numbers)
            if not self._free and not self._is_stopped:
                self._grow()
            if self._is_stopped:
                return number << _SLOT_BITS | _SLOT
            slot = self._free.pop()
            handle = number << _SLOT_BITS | slot
            step.opens(handle)
            at = slot * HANDLE_WORDS
            self._words[at + 1] = node
            self._words[at + 2] = traits
            self._head[layout.AT_NEXT_HANDLE] = number + 1
            self._words[at] = handle
            return handle

    def changed(self, handle: int, traits: int) -> None:
        """Remember other traits of a handle."""
        slot = handle & _SLOT
        with self._lock:
            if slot < self._slots and self._words[slot * HANDLE_WORDS] == handle:
                self._words[slot * HANDLE_WORDS + 2] = traits

    def closed(self, handle: int) -> None:
        """Forget a handle."""
        slot = handle & _SLOT
        with self._lock:
            if slot < self._slots and self._words[slot * HANDLE_WORDS] == handle:
                self._words[slot * HANDLE_WORDS] = 0
                self._free.append(slot)

    def _grow(self) -> None:
        want = min(max(2 * self._slots, _LEAST_SLOTS), HANDLES_MAX - 1)  # the last one says "not remembered"
        try:
            if want == self._slots:
                raise OverflowError(f"more than {want} open files")
            reserve(self._file, layout.HANDLES, want * HANDLE_WORDS * layout.WORD)
        except (OSError, OverflowError) as error:
            self._give_up(f"the table of handles cannot grow: {error}")
            return
        self._free += reversed(range(self._slots, want))
        self._slots = self._head[layout.AT_HANDLES_RESERVED] = want
