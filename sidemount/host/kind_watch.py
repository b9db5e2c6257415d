"""KindWatch: one kind of objects, listed once and then watched for as long as the process runs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from random import random
from typing import Any, Protocol

from sidemount.host.backoff import Backoff
from sidemount.host.cluster_reader import ClusterReader, ReadFailed, Trouble, decode, refusal_of
from sidemount.host.live_kinds import Key, LiveKind, version_of
from sidemount.host.logs import log

_log = log("kind_watch")
_PAGE = 250
_AT_ONCE = 50
_WITHOUT = frozenset({Trouble.FORBIDDEN, Trouble.NOT_FOUND})

# A watch that fails this often in a row on the server's side is not going to work from where it stands.
_WATCHES_MAX = 3
_DENIALS_MAX = 5  # an API server that has just started may deny for a moment what it has granted before
_SERVERS_FAULT = frozenset({Trouble.SERVER, Trouble.MALFORMED, Trouble.TOO_LARGE, Trouble.INTERNAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Waits between tries. `without_s`: how often to ask again for an optional kind that may not be read."""

    longest_s: float = 30.0
    without_s: float = 60.0
    steady_s: float = 1.0


class WatchState(Protocol):
    """How well one kind is followed."""

    is_live: bool
    is_synced: bool
    trouble: str
    errors: Counter[Trouble]


class WatchStore(Protocol):
    """Takes over what lists and watches tell: `sidemount.host.live_store.LiveStore`, which says what each method means."""

    @property
    def states(self) -> Mapping[str, WatchState]: ...
    def heard(self, kind: LiveKind) -> None: ...
    def give_up(self, kind: LiveKind, why: str) -> None: ...
    def begin_list(self, kind: LiveKind) -> Any: ...
    def read_listed(self, kind: LiveKind, manifest: Mapping[str, Any], listing: Any) -> None: ...
    def end_list(self, kind: LiveKind, listing: Any) -> None: ...
    def read(self, kind: LiveKind, manifest: Mapping[str, Any], into: Any) -> Key | None: ...
    def read_deleted(self, kind: LiveKind, manifest: Mapping[str, Any], into: dict[Key, Any]) -> None: ...
    def apply(self, kind: LiveKind, changes: Mapping[Key, Any]) -> None: ...


class KindWatch:
    """Keeps one kind of a store equal to the server's. `run` never ends by itself, whatever the server does."""

    def __init__(
        self,
        kind: LiveKind,
        reader: ClusterReader,
        store: WatchStore,
        pace: Pace,
        random: Callable[[], float] = random,
    ) -> None:
        self._kind = kind
        self._reader = reader
        self._store = store
        self._state = store.states[kind.name]
        self._pace = pace
        self._random = random
        self._backoff = Backoff(random, longest_s=pace.longest_s)
        self._version = ""  # empty: list first
        self._failed_watches = 0
        self._denials = 0

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                continue
            except ReadFailed as error:
                failed = error
            except Exception as error:
                _log.error("watch_failed", kind=self._kind.name, exc_info=True)
                failed = ReadFailed(Trouble.INTERNAL, f"an unforeseen {type(error).__name__}")
            finally:
                self._state.is_live = False
            await asyncio.sleep(self._after(failed))

    def _after(self, failed: ReadFailed) -> float:
        """Take note of a failure; return how long to wait."""
        trouble, state = failed.trouble, self._state
        state.errors[trouble] += 1
        if state.trouble != trouble.value:
            _log.warning("facts_not_followed", kind=self._kind.name, trouble=trouble.value, error=str(failed))
        state.trouble = trouble.value
        if trouble in _SERVERS_FAULT:
            self._failed_watches += 1
        if trouble is Trouble.EXPIRED or self._failed_watches >= _WATCHES_MAX:
            self._version = ""
            self._failed_watches = 0
        self._denials = self._denials + 1 if trouble in _WITHOUT else 0
        is_denied = self._denials >= (_DENIALS_MAX if state.is_synced else 1)
        if is_denied and self._kind.is_optional:
            self._version = ""
            self._store.give_up(self._kind, str(failed))
            return self._pace.without_s * (0.5 + self._random() / 2)
        return self._backoff.next_s(failed.retry_after_s)

    def _went_well(self) -> None:
        self._backoff.reset()
        self._failed_watches = 0
        self._denials = 0

    def _opened(self) -> None:
        self._state.is_live = True
        if self._state.trouble:
            _log.info("facts_followed_again", kind=self._kind.name)
        self._state.trouble = ""

    async def _list(self) -> None:
        """Take over the whole list, page by page; only facts are held, never the pages."""
        listing = self._store.begin_list(self._kind)
        token, limit = "", _PAGE
        while True:
            try:
                page = await self._reader.page(self._kind.collection, limit=limit, token=token)
            except ReadFailed as error:
                if error.trouble is not Trouble.TOO_LARGE or limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            for start in range(0, len(page.items), _AT_ONCE):
                for item in page.items[start : start + _AT_ONCE]:
                    if isinstance(item, dict):
                        self._store.read_listed(self._kind, item, listing)
                await asyncio.sleep(0)  # admissions go first
            if not page.token:
                break
            token = page.token
        self._store.end_list(self._kind, listing)
        self._version = page.version

    async def _watch(self) -> None:
        """Follow from the last version until the server ends it. Raises ReadFailed."""
        for_s = int(self._reader.limits.watch_s * (1 + self._random()))
        loop = asyncio.get_running_loop()
        began, has_told = loop.time(), False
        async with aclosing(self._reader.watch(self._kind.collection, self._version, for_s)) as stream:
            async for lines in stream:
                if not self._state.is_live:
                    self._opened()
                self._store.heard(self._kind)
                if lines and self._take(lines):
                    has_told = True
                    self._went_well()
        if not has_told and loop.time() - began < self._pace.steady_s:
            raise ReadFailed(Trouble.UNREACHABLE, "the watch ended as soon as it began")
        self._went_well()

    def _take(self, lines: list[bytes]) -> bool:
        """Take over events; what came before a bad one counts. Return whether there was any. Raises ReadFailed."""
        changes: dict[Key, Any] = {}
        version = self._version
        try:
            for line in lines:
                if line.strip():
                    version = self._event(decode(line), changes) or version
        finally:
            self._store.apply(self._kind, changes)
            has_told = version != self._version
            self._version = version
        return has_told

    def _event(self, event: Any, changes: dict[Key, Any]) -> str:
        """Add an event's change; return its resourceVersion. Raises ReadFailed."""
        told = event.get("object") if isinstance(event, dict) else None
        if not isinstance(told, dict):
            raise ReadFailed(Trouble.MALFORMED, "an event has no object")
        version = version_of(told)
        if not version and event.get("type") != "ERROR":
            raise ReadFailed(Trouble.MALFORMED, "an event has no resourceVersion")
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                self._store.read(self._kind, told, changes)
            case "DELETED":
                self._store.read_deleted(self._kind, told, changes)
            case "BOOKMARK":
                pass
            case "ERROR":
                code = told.get("code")
                raise refusal_of(code if isinstance(code, int) else 500, told)
            case _:
                raise ReadFailed(Trouble.MALFORMED, "an event is of no known type")
        return version
