"""EventDesk: what is to be told as Events, gathered, and when each may be written. Pure but for its memory.

Whatever happens, the number of writes is bounded: one Event stands for all occurrences of a reason at a volume, each is written at
most once in a while, and all together share a budget. Warnings come first: a thousand pods that start must not hide one that suffers.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sidemount.host.event_record import EventRecord, Key, Occurrence, key_of

_MOMENTS_MAX = 1024
_Queue = list[tuple[float, Key]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskLimits:
    """Bounds. `pace_s`: between two writes of one Event. `a_second`, `burst`: of all writes. `tries`: before one is given up.

    `waiting`: Events in all, of which a quarter is kept for warnings.
    """

    pace_s: float = 20.0
    a_second: float = 5.0
    burst: float = 50.0
    tries: int = 6
    waiting: int = 10_000
    remembered: int = 20_000


@dataclass(slots=True)
class Pending:
    """What an Event has to be told. `latest` is the last occurrence; `moments_ms` are those of all."""

    latest: Occurrence
    moments_ms: list[int] = field(default_factory=list)
    tries: int = 0
    due_s: float = 0.0


class EventDesk:
    """Take: `offer`. Give: `take`, which `written`, `failed` or `dropped` has to follow."""

    def __init__(self, limits: DeskLimits, now_s: float) -> None:
        self._limits = limits
        self._pending: dict[Key, Pending] = {}
        self._queues: tuple[_Queue, _Queue] = ([], [])  # warnings, all others
        self._records: OrderedDict[Key, tuple[EventRecord, float]] = OrderedDict()
        self._tokens = limits.burst
        self._tokens_at_s = now_s

    def __len__(self) -> int:
        return len(self._pending)

    def offer(self, occurrences: Iterable[Occurrence], now_s: float) -> int:
        """Take occurrences; return how many there was no room for."""
        lost = 0
        for occurrence in occurrences:
            key = key_of(occurrence)
            pending = self._pending.get(key)
            if pending is None:
                if len(self._pending) >= self._room_for(occurrence):
                    lost += 1
                    continue
                pending = self._pending[key] = Pending(latest=occurrence)
                self._put(key, pending, max(now_s, self._earliest_s(key)))
            if occurrence.at_ms >= pending.latest.at_ms:
                pending.latest = occurrence
            if len(pending.moments_ms) < _MOMENTS_MAX:
                pending.moments_ms.append(occurrence.at_ms)
        return lost

    def take(self, now_s: float) -> tuple[Key, Pending, EventRecord | None] | None:
        """Return what may be written now, with what is known of its Event; None if nothing is due or the budget is spent."""
        self._refill(now_s)
        for queue in self._queues if self._tokens >= 1 else ():
            while queue and queue[0][0] <= now_s:
                due_s, key = heapq.heappop(queue)
                pending = self._pending.get(key)
                if pending is not None and pending.due_s == due_s:
                    self._tokens -= 1
                    del self._pending[key]
                    known = self._records.get(key)
                    return key, pending, known[0] if known is not None else None
        return None

    def written(self, key: Key, record: EventRecord, now_s: float) -> None:
        """Note that an Event says so now."""
        self._records[key] = record, now_s
        self._records.move_to_end(key)
        if len(self._records) > self._limits.remembered:
            self._records.popitem(last=False)
        again = self._pending.get(key)  # what came while it was written
        if again is not None:
            self._put(key, again, now_s + self._limits.pace_s)

    def failed(self, key: Key, pending: Pending, now_s: float) -> bool:
        """Keep what could not be written for later, and forget what was known of its Event; False if that was the last try."""
        self._records.pop(key, None)
        pending.tries += 1
        if pending.tries >= self._limits.tries:
            return False
        newer = self._pending.get(key)
        if newer is not None:
            pending.moments_ms = (pending.moments_ms + newer.moments_ms)[:_MOMENTS_MAX]
            pending.latest = max(pending.latest, newer.latest, key=lambda occurrence: occurrence.at_ms)
        elif len(self._pending) >= self._limits.waiting:
            return False
        self._pending[key] = pending
        self._put(key, pending, now_s + min(60.0, 2.0**pending.tries))
        return True

    def _earliest_s(self, key: Key) -> float:
        known = self._records.get(key)
        return known[1] + self._limits.pace_s if known is not None else float("-inf")

    def _room_for(self, occurrence: Occurrence) -> int:
        most = self._limits.waiting
        return most if occurrence.is_warning else most - most // 4

    def _put(self, key: Key, pending: Pending, due_s: float) -> None:
        pending.due_s = due_s
        queue = self._queue_of(pending)
        heapq.heappush(queue, (due_s, key))
        if len(queue) > 4 * len(self._pending) + 64:
            queue[:] = [
                (waiting.due_s, other)
                for other, waiting in self._pending.items()
                if self._queue_of(waiting) is queue
            ]
            heapq.heapify(queue)

    def _queue_of(self, pending: Pending) -> _Queue:
        return self._queues[0 if pending.latest.is_warning else 1]

    def _refill(self, now_s: float) -> None:
        gained = (now_s - self._tokens_at_s) * self._limits.a_second
        self._tokens = min(self._limits.burst, self._tokens + gained)
        self._tokens_at_s = now_s
