"""Reading ahead across files: whoever reads the small files of a directory in the order of its names finds the next ones in memory.

Only versions that an open would believe without asking are fetched, and each as that version: so what an open sees is the same as
without this. Where every open asks (`openTimeout` 0) the answer to the open brings the content, and nothing could come earlier.
"""

import threading
import time
from collections import OrderedDict
from functools import partial

from sidecar.objects.blocks import Blocks, Fetch
from sidecar.objects.keys import above_of
from sidecar.objects.known import Fact, Known
from sidecar.objects.read_ahead_threads import ReadAheadThreads
from sidecar.objects.walk import Ahead, Walk, Wanted
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault

_SMALL_BYTES = 1 << 20
_MOST_BYTES = 32 << 20
_SHARE = 8  # of the memory
_MOST_FETCHERS = 8
_MOST_WALKS = 64
_AT_A_TIME = 8  # files; to get in line for each would wake another thread each time
_IDLE_S = 10.0  # after which what is ahead of a reader is another's room
_SOON_S = 1.0  # what is not believed any more by then is fetched for nothing
_GONE = frozenset({FaultKind.CHANGED, FaultKind.MISSING, FaultKind.RANGE})


class NextFiles:
    """The walks through one volume's directories. For any thread.

    `open_s`: how long an open believes what is known. `root`: what every key begins with.
    """

    def __init__(
        self, blocks: Blocks, threads: ReadAheadThreads, known: Known, open_s: float, root: str
    ) -> None:
        self._blocks = blocks
        self._threads = threads
        self._known = known
        self._believed_s = open_s - _SOON_S
        self._root = len(root)
        self._small_bytes = min(_SMALL_BYTES, blocks.block_bytes)
        self._most_bytes = min(_MOST_BYTES, blocks.bound_bytes // _SHARE)
        self._lock = threading.Lock()
        self._walks: OrderedDict[str, Walk] = OrderedDict()
        self._is_closed = False
        self._files = self._bytes = self._hits = self._unused = self._unused_bytes = 0

    def note(self, info: ObjectInfo) -> None:
        """Take note of a file that is read for the first time since it was opened. Waits for nobody."""
        if self._believed_s <= 0:
            return
        path = info.key[self._root :]
        directory = above_of(path)
        with self._lock:
            walk = self._walk(directory)
            wanted = walk.note(path)
            abandoned = self._settle(walk)
            if wanted is not Wanted.NOTHING:
                walk.fetchers += 1
        self._let_go(abandoned)
        if wanted is Wanted.NAMES:
            self._submit(walk, partial(self._begin, walk, directory))
        elif wanted is Wanted.FETCHING:
            self._submit(walk, partial(self._fetch, walk))

    def numbers(self) -> dict[str, int]:
        """Return what it has come to: what was fetched ahead, how many of those were read, and what for nothing."""
        with self._lock:
            return {
                "files": self._files,
                "bytes": self._bytes,
                "hits": self._hits,
                "unused": self._unused,
                "unused_bytes": self._unused_bytes,
            }

    def close(self) -> None:
        """Fetch nothing more."""
        self._is_closed = True

    def _submit(self, walk: Walk, work: partial[None]) -> None:
        if not self._threads.submit(work):
            with self._lock:
                walk.fetchers -= 1

    def _begin(self, walk: Walk, directory: str) -> None:
        """Find out which names follow, and fetch the first of them."""
        names = self._known.files_in(directory)
        with self._lock:
            is_walk = walk.begin(names)
        if is_walk:
            self._fetch(walk)
        else:
            with self._lock:
                walk.fetchers -= 1

    def _fetch(self, walk: Walk) -> None:
        """Fetch some files and get in line again, until enough is ahead: others read on and on, and have the same threads."""
        is_more = False
        try:
            for _ in range(_AT_A_TIME):
                is_more = self._fetch_one(walk)
                if not is_more:
                    return
        finally:
            if is_more:
                self._submit(walk, partial(self._fetch, walk))
            else:
                with self._lock:
                    walk.fetchers -= 1

    def _fetch_one(self, walk: Walk) -> bool:
        """Fetch the next file, and tell whether to go on."""
        one = None if self._is_closed else self._take(walk)
        if one is None:
            return False
        began_s = time.monotonic()
        is_useful = self._load(one)
        walk.took(time.monotonic() - began_s)
        if not is_useful:
            with self._lock:
                walk.end()
                abandoned = self._settle(walk)
            self._let_go(abandoned)
        return is_useful

    def _take(self, walk: Walk) -> Ahead | None:
        with self._lock:
            abandoned = [] if self._is_room() else self._abandon_idle(walk)
            found = walk.take(self._worth) if self._is_room() else None
        self._let_go(abandoned)
        return found

    def _worth(self, path: str) -> ObjectInfo | None:
        fact = self._fact(path)
        if fact is None or fact.info is None or not 0 < fact.info.size <= self._small_bytes:
            return None
        return fact.info

    def _fact(self, path: str) -> Fact | None:
        fact = self._known.newer(path, 0.0)
        return None if fact is None or self._known.clock() - fact.at >= self._believed_s else fact

    def _load(self, one: Ahead) -> bool:
        """Have a file in memory. False if that is no use: there is no room, or the store has other worries."""
        fetch = self._blocks.expect(one.info, 0, is_ahead=True)
        one.is_ours = fetch is not None  # from now on: it may be read before this is over
        if fetch is not None and not self._fetched(one, fetch):
            return False
        one.is_there = True
        return True

    def _fetched(self, one: Ahead, fetch: Fetch) -> bool:
        """Carry a fetch out, unless somebody else does, and tell whether the store has answered."""
        if not self._blocks.carry_out(fetch, waits=False):
            one.is_ours = False
            return True
        if fetch.fault is None:
            with self._lock:
                self._files += 1
                self._bytes += fetch.size
            return True
        one.is_ours = False
        if not (isinstance(fetch.fault, StoreFault) and fetch.fault.kind in _GONE):
            return False
        self._known.disbelieve(one.info.key[self._root :], one.info)
        return True

    def _let_go(self, abandoned: list[ObjectInfo]) -> None:
        if abandoned:
            self._blocks.let_go([self._blocks.key(info, 0) for info in abandoned])

    # With the lock held.

    def _is_room(self) -> bool:
        return sum(one.ahead_bytes for one in self._walks.values()) < self._most_bytes

    def _abandon_idle(self, walk: Walk) -> list[ObjectInfo]:
        """Give up what is ahead of those who have stopped reading: no other walk would ever have room."""
        found: list[ObjectInfo] = []
        now_s = time.monotonic()
        for one in self._walks.values():
            if one is not walk and now_s - one.used_s > _IDLE_S:
                one.abandon()
                found += self._settle(one)
        return found

    def _walk(self, directory: str) -> Walk:
        walk = self._walks.get(directory)
        if walk is None:
            walk = self._walks[directory] = Walk(_MOST_FETCHERS)
            if len(self._walks) > _MOST_WALKS:
                _, oldest = self._walks.popitem(last=False)
                oldest.end()
                walk.abandoned += oldest.abandoned
        self._walks.move_to_end(directory)
        walk.used_s = time.monotonic()
        return walk

    def _settle(self, walk: Walk) -> list[ObjectInfo]:
        """Count what a walk has come to, and return what it gives up."""
        self._hits += walk.hits
        walk.hits = 0
        abandoned, walk.abandoned = walk.abandoned, []
        unused = [one.info.size for one in abandoned if one.is_ours]
        self._unused += len(unused)
        self._unused_bytes += sum(unused)
        return [one.info for one in abandoned]
