"""Files and directories as a store's keys make them: what is at a path, what lies in a directory, and what we have changed of it.

Every question is asked in a thread; `known` is what may be answered without.
"""

import threading
from collections import OrderedDict, defaultdict
from concurrent.futures import ThreadPoolExecutor

from sidecar.objects.keys import Hidden, above_of, is_beneath, key_of, name_in, path_of, prefix_of
from sidecar.objects.known import Fact, Known
from sidecar.objects.metrics import Metrics
from sidemount.stores.store import FaultKind, ObjectInfo, ObjectStore, StoreFault

_ASKERS = 8
_MOST_KEPT = 1 << 14
_PAGE_NAMES = 1000
_BUSY_S, _BUSY_ASKED, _MOST_ASKED = 2.0, 4, 4096


class Tree:
    """One volume's names. `root` is the prefix of all its keys: "" or one that ends with "/"."""

    def __init__(self, store: ObjectStore, known: Known, metrics: Metrics, root: str = "") -> None:
        self.store = store
        self.known = known
        self.root = root
        self._metrics = metrics
        self._askers = ThreadPoolExecutor(_ASKERS, thread_name_prefix="ask")
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, None] = (
            OrderedDict()
        )  # directories that are there although no key may say so
        self._asked: dict[
            str, tuple[float, int]
        ] = {}  # directories whose names are asked for: since when, how many
        self._refreshing: dict[str, threading.Lock] = {}
        self._kept_in: defaultdict[str, set[str]] = defaultdict(set)

    def key(self, path: str, *, is_directory: bool = False) -> str:
        """Return the store's key of a path. ENAMETOOLONG."""
        return self.root + key_of(path, is_directory=is_directory)

    def prefix(self, path: str) -> str:
        """Return what the store's keys in a directory begin with."""
        return self.root + prefix_of(path)

    # Questions.

    def find(self, path: str) -> Fact:
        """Return what is at a path, believing what is known."""
        return self.recall(path) or self._refreshed(path) or self.ask(path)

    def recall(self, path: str) -> Fact | None:
        """Return what may be believed of a path, None if it has to be asked."""
        if not path:
            return Fact(None, True, self.known.clock())
        fact = self.known.get(path)
        if fact is not None and not fact.is_there and path in self._kept:
            return Fact(None, True, fact.at)
        return fact

    def ask(self, path: str) -> Fact:
        """Ask the store what is at a path."""
        at = self.known.clock()
        is_directory, info = self._ask(path)
        if is_directory and info is not None:
            self._metrics.hide(Hidden.TWIN, self.prefix(above_of(path)), path)
        if info is not None and not is_directory:
            self.unkeep(path)  # somebody has put a file where we had emptied a directory
        is_directory = is_directory or (info is None and path in self._kept)
        fact = Fact(None if is_directory else info, is_directory, at)
        self.known.learn(path, fact)
        return fact

    def _refreshed(self, path: str) -> Fact | None:
        """Return what a page of the whole directory tells, if so many of its names are asked for that it is worth it.

        Whoever goes through the names of a directory asks for one after the other, and what was listed is soon too old.
        """
        above = above_of(path)
        if self.known.size(above, _PAGE_NAMES) > _PAGE_NAMES or not self.known.believes:
            return None
        with self._lock:
            now = self.known.clock()
            since, asked = self._asked.get(above, (now, 0))
            if now - since > _BUSY_S:
                since, asked = now, 0
            self._asked[above] = (since, asked + 1)
            if len(self._asked) > _MOST_ASKED:
                self._asked.clear()
            if asked < _BUSY_ASKED:
                return None
            lock = self._refreshing.setdefault(above, threading.Lock())
        try:
            with lock:
                fact = self.recall(path)
                if fact is None and self._refresh(above):
                    fact = self.recall(path)
                return fact
        finally:
            with self._lock:
                self._refreshing.pop(above, None)

    def _refresh(self, above: str) -> bool:
        """Learn what one page tells of a whole directory; False if it does not."""
        prefix, at = self.prefix(above), self.known.clock()
        page = self.store.list_page(prefix)
        if page.token:
            self.known.sized(above, _PAGE_NAMES + 1)
            return False
        facts: dict[str, Fact] = {}
        for info in page.objects:
            name = name_in(info.key, prefix)
            if info.key != prefix and isinstance(name, bytes):
                facts[path_of(above, name)] = Fact(info, False, at)
        for key in page.prefixes:
            name = name_in(key, prefix)
            if isinstance(name, bytes):
                facts[path_of(above, name)] = Fact(None, True, at)
        self.known.learn_all(facts.items())
        self.known.listed(above, at, len(facts))
        return True

    def ask_file(self, path: str) -> Fact:
        """Ask for a file that was there: the cheapest question, which does not see a directory."""
        at = self.known.clock()
        info = self._head(self.key(path))
        if info is None:
            return self.ask(path)
        fact = Fact(info, False, at)
        self.known.learn(path, fact)
        return fact

    def keys_in(self, path: str, most: int) -> list[ObjectInfo]:
        """Return up to `most` objects beneath a directory, its own marker among them, in the store's order."""
        found: list[ObjectInfo] = []
        prefix, token = self.prefix(path), ""
        while True:
            page = self.store.list_page(
                prefix, delimiter=False, token=token, most=min(1000, most - len(found))
            )
            found += page.objects
            token = page.token
            if not token or len(found) >= most:
                return found

    def has_names(self, path: str) -> bool:
        """Tell whether anything but its own marker lies in a directory."""
        prefix = self.prefix(path)
        return any(info.key != prefix for info in self.keys_in(path, 2))

    def _ask(self, path: str) -> tuple[bool, ObjectInfo | None]:
        """Return whether keys lie beneath a path, and the object at it: two questions at once.

        One listing of all that begins with the path would do, but some servers go through a whole directory for it.
        """
        key, beneath = self.key(path), self.prefix(path)
        if not self.store.abilities.listing:
            info = self._head(key)
            return info is None and self._head(beneath) is not None, info
        heading = self._askers.submit(self._head, key)
        is_directory = self._any(beneath)
        return is_directory, heading.result()

    def _any(self, prefix: str) -> bool:
        page = self.store.list_page(prefix, delimiter=False, most=1)
        return bool(page.objects or page.prefixes or page.token)

    def _head(self, key: str) -> ObjectInfo | None:
        try:
            return self.store.head(key)
        except StoreFault as fault:
            if fault.kind is FaultKind.MISSING:
                return None
            raise

    def close(self) -> None:
        """Ask nothing any more."""
        self._askers.shutdown(wait=False, cancel_futures=True)

    # Our own changes.

    def changed(self, path: str, info: ObjectInfo) -> None:
        """Note that we have made a file, or a new version of it."""
        self.known.learn(path, Fact(info, False, self.known.clock()))

    def removed(self, path: str) -> None:
        """Note that we have removed a file or directory. The directory that it was in stays."""
        self.unkeep(path)
        self.known.learn(path, Fact(None, False, self.known.clock()))
        self.keep(above_of(path))

    def made_directory(self, path: str) -> None:
        """Note that we have made a directory."""
        self.known.learn(path, Fact(None, True, self.known.clock()))

    def moved_directory(self, old: str, new: str) -> None:
        """Note that we have renamed a directory."""
        self.known.forget_beneath(old)
        self.known.forget_beneath(new)
        with self._lock:
            moved = [path for path in self._kept if is_beneath(path, old)]
        for path in moved:
            self.unkeep(path)
            self.keep(new + path[len(old) :])
        self.removed(old)
        self.made_directory(new)

    # Directories that are there although no key may say so.

    def keep(self, path: str) -> None:
        """Have a directory, and those that it lies in, be there until we remove them."""
        with self._lock:
            while path:
                self._kept[path] = None
                self._kept.move_to_end(path)
                self._kept_in[above_of(path)].add(path)
                path = above_of(path)
            while len(self._kept) > _MOST_KEPT:
                self._drop(next(iter(self._kept)))

    def unkeep(self, path: str) -> None:
        """Have a directory be there only if a key says so."""
        with self._lock:
            self._drop(path)

    def kept_in(self, path: str) -> tuple[str, ...]:
        """Return the paths of such directories that lie directly in a directory."""
        with self._lock:
            return tuple(self._kept_in.get(path, ()))

    def _drop(self, path: str) -> None:
        if path not in self._kept:
            return
        del self._kept[path]
        above = above_of(path)
        self._kept_in[above].discard(path)
        if not self._kept_in[above]:
            del self._kept_in[above]
