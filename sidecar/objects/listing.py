"""A directory's entries as its store's pages tell them, one page ahead of whoever reads.

A position is the number of a page and how many of its entries were given. Which ones those were is recorded: the same page is asked for
again when a position is sought that is not the current one, by this process or a successor, and what was given before is passed
over, whatever has come or gone meanwhile and whichever page it is on now. A page that is read again gets a new number.

A file and a directory of the same name may be far apart in a store's order ("a" < "a-1" < "a/"), so that it is not known at the end
of a page whether the last of its files are hidden: the next page tells, or else a question of its own.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from operator import itemgetter
from typing import NamedTuple

from sidecar.objects.keys import Hidden, above_of, ino_of, name_in
from sidecar.objects.known import Fact
from sidecar.objects.metrics import Metrics
from sidecar.objects.tree import Tree
from sidemount.stores.store import Page

PAGE_AT = 20  # bits of a position that count entries of one page
OWN = "\0"  # the token of the page that the store knows nothing of: dots, and what we have made and it does not have yet
_MOST_RECORDS = 4096
_LONGEST_S = 600.0  # for a page; a store gives up long before
_MARKS = {b".": 1, b"..": 0}  # in place of their inode numbers, which are other entries' as well
_MOST_GIVEN = 16  # records that say which entries were given, not only how many


class Item(NamedTuple):
    """An entry, at its position: `fact` is None for the dots and for what the node table knows better."""

    name: bytes
    path: str
    ino: int
    is_directory: bool
    fact: Fact | None
    position: int


class Record(NamedTuple):
    """A page that was read: where it begins, and the inode numbers of its entries in the order in which they were given."""

    token: str
    given: "array[int]"


class Stream:
    """The entries of one directory, from a position on. For one thread at a time."""

    def __init__(
        self,
        tree: Tree,
        path: str,
        metrics: Metrics,
        own: Callable[[], Iterable[tuple[bytes, str, bool]]],
        ahead: Executor,
        records: dict[int, Record] | None = None,
    ) -> None:
        """`own` are name, path and whether it is a directory of what is there whatever the store says. `records` are a predecessor's."""
        self.records = records or {}
        self._tree = tree
        self._path = path
        self._prefix = tree.prefix(path)
        self._beneath = len(tree.root)  # where paths begin in keys
        self._metrics = metrics
        self._own = own
        self._ahead = ahead
        self._page = max(self.records, default=0)
        self._queue: deque[Item] = deque()
        self._pass_over: frozenset[int] = frozenset()
        self._undecided: list[Item] = []
        own_given = next(
            (record.given for _, record in sorted(self.records.items(), reverse=True) if record.token == OWN),
            (),
        )
        self._own_given = frozenset(own_given)  # what the store may tell of as well
        self._token: str | None = OWN
        self._coming: Future[tuple[Page, float]] | None = None
        self._at = 0
        self._sought = (
            0  # the page of the position that was sought last: the answer may be lost, and that sought again
        )
        self._began = 0.0
        self._count = 0
        self._is_whole = True

    # Reading.

    def is_ready(self, position: int) -> bool:
        """Tell whether reading on from a position asks nobody."""
        return position == self._at != 0 and not self.must_wait

    @property
    def must_wait(self) -> bool:
        """Whether the next entry has to be asked for."""
        return not self._queue and not self._is_at_end

    @property
    def _is_at_end(self) -> bool:
        return self._token is None and not self._undecided

    def seek(self, position: int) -> None:
        """Go to a position; to the beginning always afresh."""
        if position == self._at != 0:
            return
        self._drop_coming()
        self._queue.clear()
        self._undecided.clear()
        self._at = position
        self._is_whole = position == 0
        self._count = 0
        if position == 0:
            self._token, self._pass_over = OWN, frozenset()
            return
        page, count = position >> PAGE_AT, position & (1 << PAGE_AT) - 1
        self._sought = page
        record = self.records.get(page)
        if record is None:  # too long ago; rather twice than not at all
            before = max((known for known in self.records if known < page), default=None)
            self._token = OWN if before is None else self.records[before].token
            self._pass_over = frozenset()
        else:
            self._token, self._pass_over = record.token, frozenset(record.given[:count])

    def peek(self) -> Item | None:
        """Return the next entry without going past it, None at the end. May ask the store."""
        while not self._queue:
            if self._is_at_end:
                if self._is_whole and self._began:
                    self._tree.known.listed(self._path, self._began, self._count)
                return None
            self._fill()
        return self._queue[0]

    def step(self) -> None:
        """Go past the entry that was peeked at."""
        self._at = self._queue.popleft().position

    @property
    def position(self) -> int:
        """The position of the entry that comes next."""
        return self._at

    @property
    def waiting(self) -> int:
        """How many entries can be had without asking."""
        return len(self._queue)

    def close(self) -> None:
        """Ask for nothing more."""
        self._drop_coming()

    # Pages.

    def _fill(self) -> None:
        token = self._token
        if token == OWN:
            self._begin(OWN)
            self._token = "" if self._tree.store.abilities.listing else None
            self._give_own()
        elif token is None:
            self._queue_all(self._decided(None))
        else:
            page, asked_at = self._take(token)
            try:
                decided = self._decided(page)
            except BaseException:
                self._coming = Future()
                self._coming.set_result((page, asked_at))
                raise
            self._token = page.token or None
            if page.token:
                self._coming = self._ahead.submit(self._fetch, page.token)
            self._queue_all(decided)
            self._begin(token)
            self._give(page, asked_at)

    def _begin(self, token: str) -> None:
        self._page += 1
        self.records[self._page] = Record(token, array("Q"))
        old = self._page - _MOST_GIVEN
        record = self.records.get(old)
        if record is not None and record.token != OWN and old != self._sought:
            self.records[old] = Record(record.token, array("Q"))
        if len(self.records) > _MOST_RECORDS:
            del self.records[min(self.records)]

    def _fetch(self, token: str) -> tuple[Page, float]:
        at = self._tree.known.clock()
        store = self._tree.store
        return store.list_page(self._prefix, token=token, most=store.abilities.page_names), at

    def _take(self, token: str) -> tuple[Page, float]:
        coming, self._coming = self._coming, None
        page, at = self._fetch(token) if coming is None else coming.result(_LONGEST_S)
        if not self._began:
            self._began = at
        return page, at

    def _drop_coming(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None
        self._began = 0.0

    def _give_own(self) -> None:
        above = above_of(self._path)
        dots = ((b".", self._path), (b"..", above))
        self._queue_all(Item(name, path, ino_of(path), True, None, 0) for name, path in dots)
        own = [Item(name, path, ino_of(path), is_dir, None, 0) for name, path, is_dir in self._own()]
        self._queue_all(own)
        self._own_given = frozenset(item.ino for item in own)

    def _give(self, page: Page, at: float) -> None:
        """Queue what a page has; the files at its end whose directory may come on the next one wait."""
        items = self._items(page, at)
        directories = {item.name for item in items if item.is_directory}
        last = _last_of(page)
        shown: list[Item] = []
        for item in items:
            if item.is_directory:
                shown.append(item)
            elif item.name in directories:
                self._metrics.hide(Hidden.TWIN, self._prefix, item.path)
            elif page.token and last < self._tree.prefix(item.path) and item.ino not in self._pass_over:
                self._undecided.append(item)
            else:
                shown.append(item)
        self._queue_all(shown)

    def _decided(self, page: Page | None) -> list[Item]:
        """Return which of the files that waited for the next page are shown; None if there is no next page."""
        prefixes = frozenset(() if page is None else page.prefixes) if self._undecided else ()
        shown = []
        for item in self._undecided:
            beneath = self._tree.prefix(item.path)
            if beneath in prefixes:
                is_hidden = True
            elif page is None or not page.token or _last_of(page) > beneath:
                is_hidden = False
            else:
                is_hidden = self._tree.ask(item.path).is_directory
            if is_hidden:
                self._metrics.hide(Hidden.TWIN, self._prefix, item.path)
            else:
                shown.append(item)
        self._undecided = []
        return shown

    def _items(self, page: Page, at: float) -> list[Item]:
        """Return the entries of a page in the store's order. A directory's key there ends with "/"."""
        found: list[tuple[str, Item]] = []  # text is in the order of its bytes in UTF-8
        for info in page.objects:
            if info.key != self._prefix:
                self._add(found, info.key, Fact(info, False, at))
            elif info.size:
                self._metrics.hide(Hidden.MARKER, self._prefix, info.key)
        fact = Fact(None, True, at)
        for prefix in page.prefixes:
            self._add(found, prefix, fact)
        found.sort(key=itemgetter(0))
        return [item for _, item in found]

    def _add(self, found: list[tuple[str, Item]], key: str, fact: Fact) -> None:
        name = name_in(key, self._prefix)
        if isinstance(name, Hidden):
            self._metrics.hide(name, self._prefix, key)
            return
        path = key[self._beneath :].removesuffix("/")
        found.append((key, Item(name, path, ino_of(path), fact.is_directory, fact, 0)))

    def _queue_all(self, items: Iterable[Item]) -> None:
        given, base = self.records[self._page].given, self._page << PAGE_AT
        facts: list[tuple[str, Fact]] = []
        for name, path, ino, is_directory, fact, _ in items:
            mark = _MARKS.get(name, ino)
            given.append(mark)
            if fact is not None:
                facts.append((path, fact))
                if mark in self._own_given:
                    continue
            if mark not in self._pass_over:
                self._queue.append(Item(name, path, ino, is_directory, fact, base | len(given)))
        self._count += len(facts)
        self._tree.known.learn_all(facts)


def _last_of(page: Page) -> str:
    """Return what comes last in a page."""
    objects, prefixes = page.objects, page.prefixes
    return max(objects[-1].key if objects else "", prefixes[-1] if prefixes else "")
