"""Whether somebody reads the files of a directory one after the other in the order of its names, and which come next. Nothing here waits.

Several processes at once read in that order only roughly, so a file is in turn if it is near the place that the walk has come to.
Whoever reads here and there is no walk: what is fetched ahead for one has to be read more often than not, or it ends.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto

from sidemount.stores.store import ObjectInfo

_PROVEN_FILES = 4
_MOST_PROVEN_FILES = 256
_LOOKED_AT_FILES = 64  # or twice as many as are needed: the first ones say nothing about the next any more
_NEAR_FILES = 24
_AT_ONCE = 8
_CREDIT = 6
_MOST_CREDIT = 12
_JUMP = 3
_LEAST_WINDOW, _MOST_WINDOW = 16, 64
_FILES_OF_A_FETCHER = 8  # of the window, for each that fetches
_FEW_FETCHERS = 2
_SLOW_S = 0.003  # a store that answers sooner keeps few threads busy; more would only take the processor from each other
_WEIGHT = 0.2


class Wanted(Enum):
    """What a walk needs next."""

    NOTHING = auto()
    NAMES = auto()
    FETCHING = auto()


class Ahead:
    """A file that is fetched ahead of a walk. `is_ours`: for that walk, and not by somebody else."""

    __slots__ = ("index", "info", "is_ours", "is_there")

    def __init__(self, info: ObjectInfo, index: int) -> None:
        self.info = info
        self.index = index
        self.is_there = self.is_ours = False


class Walk:
    """One directory. For one thread at a time.

    `ahead_bytes` are fetched and have not been read; `abandoned` is what will not be. `fetchers` is how many threads are at it,
    `wanted_fetchers` how many there should be: more when a file was asked for that had not come yet.
    """

    def __init__(self, most_fetchers: int) -> None:
        self.fetchers = 0
        self.wanted_fetchers = 1
        self.used_s = 0.0  # when it was last read
        self.hits = 0
        self.ahead_bytes = 0
        self.abandoned: list[Ahead] = []
        self._fetch_s = 0.0
        self._most_fetchers = most_fetchers
        self._needed = _PROVEN_FILES
        self._ahead: OrderedDict[str, Ahead] = OrderedDict()
        self._names: list[str] | None = None
        self._look_anew()

    def _look_anew(self) -> None:
        self._names = None
        self._is_named = False
        self._rises = self._falls = 0
        self._lowest = self._highest = ""
        self._at = self._next = 0
        self._credit = _CREDIT

    def note(self, path: str) -> Wanted:
        """Take note of a file that is read for the first time since it was opened."""
        if self._names is not None:
            if not self._is_at_end(self._names, path):
                return self._go_on(self._names, path)
            self._needed = _PROVEN_FILES
            self.abandon()
            self._look_anew()
        if self._rises + self._falls >= max(_LOOKED_AT_FILES, 2 * self._needed):
            self._look_anew()
        if path > self._highest:
            self._rises += 1
            self._highest = path
            self._lowest = self._lowest or path
        else:
            self._falls += 1
        if self._is_named or self._rises < self._needed or self._rises <= self._falls:
            return Wanted.NOTHING
        self._is_named = True
        return Wanted.NAMES

    def begin(self, names: list[str]) -> bool:
        """Take all names in their order, and tell whether those that were read follow each other in it."""
        if not self._is_named or self._names is not None:
            return False  # it has been looked anew meanwhile
        first, last = bisect_left(names, self._lowest), bisect_left(names, self._highest)
        if last - first >= self._rises + self._falls + _AT_ONCE or last >= len(names):
            self.end()
            return False
        self._names = names
        self._at, self._next = last, last + 1
        return True

    def end(self) -> None:
        """Look anew, and longer than last time."""
        self._needed = min(2 * self._needed, _MOST_PROVEN_FILES)
        self.abandon()
        self._look_anew()

    def abandon(self) -> None:
        """Give up what is ahead."""
        self.abandoned += self._ahead.values()
        self._ahead.clear()
        self.ahead_bytes = 0

    def take(self, find: Callable[[str], ObjectInfo | None]) -> Ahead | None:
        """Return the next file to fetch, None if enough is ahead. `find` tells of a path what is worth it."""
        names = self._names or []
        while self._next < min(len(names), self._at + 1 + self._window):
            path = names[self._next]
            info = find(path)
            self._next += 1
            if info is not None:
                found = self._ahead[path] = Ahead(info, self._next - 1)
                self.ahead_bytes += info.size
                return found
        return None

    def took(self, seconds: float) -> None:
        """Take note of how long a fetch took."""
        self._fetch_s += (seconds - self._fetch_s) * _WEIGHT

    def _is_at_end(self, names: list[str], path: str) -> bool:
        """Tell whether a walk has come to its end, and this is the beginning of another."""
        return self._next >= len(names) and path not in self._ahead

    @property
    def _window(self) -> int:
        return min(_MOST_WINDOW, max(_LEAST_WINDOW, self.wanted_fetchers * _FILES_OF_A_FETCHER))

    def _go_on(self, names: list[str], path: str) -> Wanted:
        is_late = self._move_to(names, path)
        if self._credit <= 0:
            self.end()
            return Wanted.NOTHING
        if self._next >= len(names) and not self._ahead:
            self._needed = _PROVEN_FILES
            self._look_anew()
            return Wanted.NOTHING
        if is_late:
            most = self._most_fetchers if self._fetch_s > _SLOW_S else _FEW_FETCHERS
            self.wanted_fetchers = max(self.wanted_fetchers, min(2 * self.wanted_fetchers, most))
        is_low = self._next <= self._at + self._window // 2 and self._next < len(names)
        return Wanted.FETCHING if is_low and self.fetchers < self.wanted_fetchers else Wanted.NOTHING

    def _move_to(self, names: list[str], path: str) -> bool:
        """Be where that file is, and tell whether it should have been ahead by now, and is not there."""
        index = bisect_left(names, path)
        found = self._ahead.pop(path, None)
        is_late = index >= self._next
        if found is not None:
            self.hits += found.is_ours
            self.ahead_bytes -= found.info.size
            self._credit = min(self._credit + 1, _MOST_CREDIT)
            is_late = not found.is_there
        elif abs(index - self._at) > _NEAR_FILES or index == len(names) or names[index] != path:
            self._credit -= _JUMP
        if abs(index - self._at) <= _MOST_WINDOW:
            self._at = max(self._at, index)
        self._next = max(self._next, self._at + 1)
        self._pass_over()
        return is_late

    def _pass_over(self) -> None:
        """Give up what the walk has gone past: nobody comes back for it."""
        while self._ahead:
            path, first = next(iter(self._ahead.items()))
            if first.index >= self._at - _NEAR_FILES:
                return
            del self._ahead[path]
            self.abandoned.append(first)
            self.ahead_bytes -= first.info.size
            self._credit -= 1
