"""What is known of names, for a while: from listings, questions and our own changes. Bounded, and never more than a memory of the store.

A fact is as old as the question that it answers, counted from when that was asked. So an answer that was on its way while we changed the same
name does not undo what we know better.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sidecar.objects.keys import above_of, prefix_of
from sidemount.stores.store import ObjectInfo

MOST_FACTS = 1 << 15
_MOST_SIZES = 1024


class Fact(NamedTuple):
    """What a path is: a file with `info`, a directory, or neither. `at`: when that was asked, by the monotonic clock."""

    info: ObjectInfo | None
    is_directory: bool
    at: float

    @property
    def is_there(self) -> bool:
        """Whether there is a file or directory."""
        return self.is_directory or self.info is not None


_UNKNOWN = Fact(
    None, False, float("-inf")
)  # of one name in a directory whose others are known: too old for any use


class Known:
    """Facts of one volume by path. Safe to use from several threads."""

    def __init__(
        self,
        *,
        known_s: float,
        missing_s: float,
        most: int = MOST_FACTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`known_s`, `missing_s`: how long something that is there, or is not, is believed to stay so."""
        self.clock = clock
        self.believes = known_s > 0 and missing_s > 0
        self._known_s = known_s
        self._missing_s = missing_s
        self._most = most
        self._lock = threading.Lock()
        self._facts: OrderedDict[str, Fact] = OrderedDict()
        self._in: dict[str, set[str]] = {}  # the facts' paths by directory
        self._complete: dict[str, float] = {}  # directories of which every name is among the facts
        self._sizes: OrderedDict[str, int] = (
            OrderedDict()
        )  # how many names directories had when they were listed

    def __len__(self) -> int:
        return len(self._facts)

    def get(self, path: str) -> Fact | None:
        """Return what may still be believed of a path, None if it has to be asked."""
        now = self.clock()
        fact = self._facts.get(path)
        if fact is not None:
            return fact if now - fact.at < (self._known_s if fact.is_there else self._missing_s) else None
        listed_at = self._complete.get(above_of(path))
        if listed_at is not None and now - listed_at < self._missing_s:
            return Fact(None, False, listed_at)
        return None

    def newer(self, path: str, than: float) -> Fact | None:
        """Return what was learnt of a path after a time, however long ago that is."""
        fact = self._facts.get(path)
        return fact if fact is not None and fact.at > than else None

    def learn(self, path: str, fact: Fact) -> None:
        """Take a fact, unless a younger one is known."""
        self.learn_all(((path, fact),))

    def learn_all(self, facts: Iterable[tuple[str, Fact]]) -> None:
        """Take facts."""
        with self._lock:
            mine = self._facts
            for path, fact in facts:
                before = mine.get(path)
                if before is None:
                    self._add(path, fact)
                elif before.at <= fact.at:
                    mine[path] = fact
                    mine.move_to_end(path)
            while len(mine) > self._most:
                path = next(iter(mine))
                self._remove(path)
                self._complete.pop(above_of(path), None)

    def listed(self, path: str, at: float, names: int) -> None:
        """Note that every name in a directory has been learnt."""
        self.sized(path, names)
        if names <= self._most // 2:
            with self._lock:
                if len(self._complete) >= self._most:
                    self._complete.clear()
                self._complete[path] = at

    def sized(self, path: str, names: int) -> None:
        """Note how many names a directory has, or that it has more than that."""
        with self._lock:
            self._sizes[path] = names
            self._sizes.move_to_end(path)
            if len(self._sizes) > _MOST_SIZES:
                self._sizes.popitem(last=False)

    def size(self, path: str, unknown: int) -> int:
        """Return how many names a directory had when it was last listed, or `unknown`."""
        return self._sizes.get(path, unknown)

    def files_in(self, path: str) -> list[str]:
        """Return the paths of the files that are known in a directory, in the order of a store's keys."""
        with self._lock:
            facts = self._facts
            files = [found for found in self._in.get(path, ()) if facts[found].info is not None]
        files.sort()
        return files

    def disbelieve(self, path: str, info: ObjectInfo) -> None:
        """Know nothing of a path if what is known is that version, which has turned out to be gone."""
        with self._lock:
            fact = self._facts.get(path)
            if fact is not None and fact.info == info:
                self._remove(path)
                self._complete.pop(above_of(path), None)

    def forget(self, path: str) -> None:
        """Know nothing of a path. The other names of its directory stay as they are known."""
        with self._lock:
            self._remove(path)
            if above_of(path) in self._complete:
                self._add(path, _UNKNOWN)

    def forget_beneath(self, path: str) -> None:
        """Know nothing of a directory and all that lies in it."""
        prefix = prefix_of(path)
        with self._lock:
            for known in [known for known in self._facts if known == path or known.startswith(prefix)]:
                self._remove(known)
            for known in [known for known in self._complete if known == path or known.startswith(prefix)]:
                del self._complete[known]
            self._complete.pop(above_of(path), None)

    # With the lock held.

    def _add(self, path: str, fact: Fact) -> None:
        self._facts[path] = fact
        self._in.setdefault(above_of(path), set()).add(path)

    def _remove(self, path: str) -> None:
        if self._facts.pop(path, None) is None:
            return
        above = above_of(path)
        paths = self._in[above]
        paths.discard(path)
        if not paths:
            del self._in[above]
