"""SecondLook: reads again, before a refusal, what may only be late. One read an object, however many ask.

This is the only way in which an admission leads to a call of the API server, so everything here is bounded: how long, how many
at once, how many a second, and how soon the same again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidemount.host.cluster_reader import ClusterReader, ReadFailed, Trouble
from sidemount.host.live_kinds import KINDS, LIMIT_RANGE, NAMESPACE, LiveKind, read_fact
from sidemount.host.live_store import LiveStore
from sidemount.host.logs import log
from sidemount.model.errors import NotReady, VolumeError
from sidemount.model.facts import NamespaceFacts
from webhook.gate import is_enabled
from webhook.outcome import Doubt

_log = log("webhook.second_look")
_KINDS = {kind.name: kind for kind in KINDS}
_PAGE = 500
_KNOWN_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLimits:
    """Bounds. `settled_s`: how long an answer counts as fresh. `failed_s`: how soon a failed read is tried again.

    `share` of the time that an admission has left, and at most `longest_s`, is spent on looking.
    """

    settled_s: float = 1.0
    failed_s: float = 0.25
    longest_s: float = 3.0
    share: float = 0.5
    at_once: int = 8
    a_second: float = 50.0
    burst: float = 100.0


class SecondLook:
    """Settles doubts. `start` runs a coroutine in the task group that ends with the service."""

    def __init__(
        self,
        reader: ClusterReader,
        store: LiveStore,
        start: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        limits: LookLimits,
    ) -> None:
        self._reader = reader
        self._store = store
        self._start = start
        self._limits = limits
        self._clock = store.clock
        self._settled: dict[Doubt, float] = {}
        self._failed: dict[Doubt, tuple[float, str]] = {}
        self._reading: dict[Doubt, asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(limits.at_once)
        self._tokens = limits.burst
        self._tokens_at = self._clock()
        self.reads = 0

    def unsettled(self, doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
        """Return the doubts that a read could settle: those of which nothing fresh is known."""
        now = self._clock()
        return tuple(
            [
                doubt
                for doubt in doubts
                if self._settled.get(doubt, now) <= now and not self._is_without_fact(doubt)
            ]
        )

    def _is_without_fact(self, doubt: Doubt) -> bool:
        kind = _KINDS[doubt.kind]
        return bool(doubt.name) and self._store.is_without_fact(kind, kind.key(doubt.namespace, doubt.name))

    async def settle(self, doubts: Sequence[Doubt], left_s: float) -> None:
        """Look at what is doubted. Raises NotReady if it could not be learned."""
        within_s = min(self._limits.longest_s, left_s * self._limits.share)
        tasks = {self._task(doubt) for doubt in doubts}
        _, late = await asyncio.wait(tasks, timeout=max(0.0, within_s))
        now = self._clock()
        for doubt in doubts:
            if self._settled.get(doubt, 0.0) > now:
                continue
            if doubt in self._reading and late and self._can_trust_watch(doubt):
                # The watch had all this time to tell of it.
                continue
            why = (
                self._failed[doubt][1] if doubt in self._failed else "the API server does not answer in time"
            )
            what = f"{doubt.kind} {'/'.join(part for part in (doubt.namespace, doubt.name) if part)}".rstrip()
            raise NotReady(
                f"{what} is not known to the webhook, and cannot be read: {why}",
                hint="try again; the webhook asks the API server again at once",
            )

    def _can_trust_watch(self, doubt: Doubt) -> bool:
        """A list of everything may take longer than there is time; one object never should."""
        return not doubt.name and self._store.states[doubt.kind].is_live

    def _task(self, doubt: Doubt) -> asyncio.Task[None]:
        task = self._reading.get(doubt)
        if task is None:
            task = self._start(self._look(doubt))
            self._reading[doubt] = task
            task.add_done_callback(lambda _: self._reading.pop(doubt, None))
        return task

    async def _look(self, doubt: Doubt) -> None:
        """Read one object, or all of a kind. Raises nothing: who asked looks at what is settled."""
        failed = self._failed.get(doubt)
        if failed is not None and failed[0] > self._clock():
            return
        try:
            async with asyncio.timeout(self._limits.longest_s), self._at_once:
                await self._take_token()
                self.reads += 1
                await self._read(_KINDS[doubt.kind], doubt)
        except TimeoutError:
            self._fail(doubt, Trouble.TIMEOUT, "the API server does not answer in time")
        except ReadFailed as error:
            if error.trouble is Trouble.FORBIDDEN:
                # Then the watch alone decides.
                self._settle(doubt)
            else:
                self._fail(doubt, error.trouble, str(error))
        except Exception:
            _log.error("second_look_failed", kind=doubt.kind, exc_info=True)
            self._fail(doubt, Trouble.INTERNAL, "an error of the webhook, see its log")
        else:
            self._settle(doubt)

    async def _read(self, kind: LiveKind, doubt: Doubt) -> None:
        if not doubt.name:
            await self._read_all(kind)
            return
        key = kind.key(doubt.namespace, doubt.name)
        self._store.begin_read(kind, key)
        try:
            found = await self._reader.get(kind.path(key))
            if kind is NAMESPACE and found is not None and _is_open(found):
                # What was made with it must not be late either: the API server holds our containers to it.
                await self._read_limits(doubt.name)
        except BaseException:
            self._store.abandon_read(kind, key)
            raise
        self._store.end_read(kind, key, found)

    async def _read_limits(self, namespace: str) -> None:
        """Take over the LimitRanges of a namespace that the watch has not told of; without the right to, nothing."""
        await self._take_token()
        self.reads += 1
        try:
            page = await self._reader.page(LIMIT_RANGE.within(namespace), limit=_PAGE, token="")
        except ReadFailed as error:
            if error.trouble is not Trouble.FORBIDDEN:
                raise
        else:
            self._store.lend(LIMIT_RANGE, page.items)

    async def _read_all(self, kind: LiveKind) -> None:
        """Take over what a list holds and we have not; what is gone is left to the watch."""
        token = ""
        while True:
            page = await self._reader.page(kind.collection, limit=_PAGE, token=token)
            self._store.lend(kind, page.items)
            token = page.token
            if not token:
                return

    async def _take_token(self) -> None:
        """Wait for leave to make one more read."""
        while True:
            now = self._clock()
            earned = (now - self._tokens_at) * self._limits.a_second
            self._tokens, self._tokens_at = min(self._limits.burst, self._tokens + earned), now
            if self._tokens >= 1:
                self._tokens -= 1
                return
            await asyncio.sleep((1 - self._tokens) / self._limits.a_second)

    def _settle(self, doubt: Doubt) -> None:
        self._failed.pop(doubt, None)
        self._settled[doubt] = self._clock() + self._limits.settled_s
        _forget_old(self._settled)

    def _fail(self, doubt: Doubt, trouble: Trouble, why: str) -> None:
        self._store.states[doubt.kind].errors[trouble] += 1
        self._failed[doubt] = (self._clock() + self._limits.failed_s, why)
        _forget_old(self._failed)


def _is_open(manifest: Mapping[str, Any]) -> bool:
    try:
        fact = read_fact(NAMESPACE, manifest)
    except VolumeError:
        return False
    return isinstance(fact, NamespaceFacts) and is_enabled(fact)


def _forget_old(known: dict[Doubt, Any]) -> None:
    while len(known) > _KNOWN_MAX:
        del known[next(iter(known))]
