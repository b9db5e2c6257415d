"""Calls to a store: attempts until one succeeds, the answer is final, or the time is over."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from sidemount.stores.faults import DOUBTFUL, ERRNO, RETRIED, Counts
from sidemount.stores.http_message import Answer, ExchangeFailed, Request, Sink
from sidemount.stores.http_pool import HttpPool
from sidemount.stores.store import FaultKind, StoreFault
from sidemount.stores.throttle import Throttle

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 4.0
_LONGEST_TOLD_S = (
    10.0  # whoever is asked to wait for an hour asks again earlier, before an application hears of it
)
_MOST_ADAPTIONS = 4

T = TypeVar("T")


class Refusal(NamedTuple):
    """Why an attempt failed. `text` says it to a person; `code` is the store's word. `again`: it may pass, whatever its kind."""

    kind: FaultKind
    text: str
    code: str = ""
    status: int = 0
    pause_s: float = 0.0
    again: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is asked: its name and what it is done to, for messages; the lane of the throttle; how long an attempt may take."""

    name: str
    what: str
    lane: str = ""
    timeout_s: float = 0.0


class Refused(StoreFault):
    """A call that failed. `lost`: an attempt may have been carried out all the same, without our getting its answer."""

    def __init__(self, refusal: Refusal, message: str, *, lost: bool) -> None:
        super().__init__(refusal.number or ERRNO[refusal.kind], refusal.kind, message)
        self.code = refusal.code
        self.status = refusal.status
        self.lost = lost

    def __reduce__(self) -> tuple[object, ...]:
        refusal = Refusal(self.kind, "", self.code, self.status, number=self.errno or 0)
        return _refused, (refusal, self.strerror, self.lost)


def _refused(refusal: Refusal, message: str, lost: bool) -> Refused:
    return Refused(refusal, message, lost=lost)


class Dialect(Protocol):
    """What is different from one protocol of stores to the other."""

    def prepare(self, request: Request) -> Request:
        """Return a request with what proves who asks. Raises StoreFault if there is nothing to prove it with."""
        ...

    def explain(self, request: Request, answer: Answer) -> Refusal | None:
        """Return why an answer is no success, None if it is one."""
        ...

    def adapt(self, refusal: Refusal, answer: Answer) -> bool:
        """Learn from an answer: credentials, clock, region. True if the same call is worth another attempt at once."""
        ...


class Calls:
    """Makes calls of one store, from any thread. Each ends by `retry_timeout_s` plus the time of the attempt that runs then."""

    def __init__(
        self,
        pool: HttpPool,
        dialect: Dialect,
        *,
        timeout_s: float,
        retry_timeout_s: float,
        counts: Counts | None = None,
        throttle: Throttle | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.counts = counts or Counts()
        self.pool = pool
        self.dialect = dialect
        self.timeout_s = timeout_s
        self._retry_timeout_s = retry_timeout_s
        self._throttle = throttle or Throttle()
        self._jitter = jitter
        self._closed = pool.closed

    def call(
        self,
        operation: Operation,
        make: Callable[[], Request],
        read: Callable[[Answer], T],
        *,
        sink: Sink | None = None,
    ) -> T:
        """Return what `read` makes of the answer. `make` is asked before each attempt. Raises StoreFault, mostly Refused.

        `read` raises ExchangeFailed if it can make nothing of the answer.
        """
        end_s = time.monotonic() + self._retry_timeout_s
        attempt = _Attempt(self, operation, make, read, sink)
        pause_s = _FIRST_PAUSE_S
        while True:
            self._wait_for_turn(operation, end_s)
            filled = sink.filled if sink is not None else 0
            refusal = attempt.run()
            if refusal is None:
                self._throttle.succeeded(operation.lane)
                return attempt.value()
            self.counts.failed(refusal.kind)
            if refusal.kind is FaultKind.THROTTLED:
                self._throttle.slow_down(operation.lane, min(refusal.pause_s, _LONGEST_TOLD_S))
            if attempt.is_worth_repeating_at_once(refusal) and time.monotonic() < end_s:
                continue
            if sink is not None and sink.filled > filled:
                pause_s = _FIRST_PAUSE_S  # it goes on, if slowly
            wait_s = max(pause_s * (0.5 + self._jitter() / 2), min(refusal.pause_s, _LONGEST_TOLD_S))
            if not (refusal.again or refusal.kind in RETRIED) or time.monotonic() + wait_s >= end_s:
                raise attempt.refused(refusal)
            if self._closed.wait(wait_s):
                raise attempt.refused(refusal)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """End the waiting of all calls by this pool, and the connections."""
        self.pool.close()

    def _wait_for_turn(self, operation: Operation, end_s: float) -> None:
        wait_s = self._throttle.reserve(operation.lane, end_s - time.monotonic())
        if wait_s is None:
            self.counts.failed(FaultKind.THROTTLED)
            refusal = Refusal(
                FaultKind.THROTTLED, "slowed down by the store, and no turn within the time for retries"
            )
            raise _refused(refusal, f"{operation.name} {operation.what}: {refusal.text}", False)
        if wait_s > 0:
            self._closed.wait(wait_s)


class _Attempt(Generic[T]):
    """The attempts of one call, one after the other."""

    def __init__(
        self,
        calls: Calls,
        operation: Operation,
        make: Callable[[], Request],
        read: Callable[[Answer], T],
        sink: Sink | None,
    ) -> None:
        self._calls = calls
        self._operation = operation
        self._make = make
        self._read = read
        self._sink = sink
        self._timeout_s = operation.timeout_s or calls.timeout_s
        self._made = 0
        self._adapted = 0
        self._lost = False
        self._is_stale = False
        self._answer: Answer | None = None
        self._values: list[T] = []

    def run(self) -> Refusal | None:
        """Make one and return why it failed."""
        calls = self._calls
        self._answer, self._is_stale = None, False
        before = self._sink.filled if self._sink is not None else 0
        request = self._make()
        try:
            request = calls.dialect.prepare(request)
        except StoreFault as fault:
            return Refusal(fault.kind, fault.strerror or "", number=fault.errno or 0)
        calls.counts.asked(again=self._made > 0)
        self._made += 1
        try:
            self._answer = answer = calls.pool.exchange(request, self._timeout_s, self._sink)
            refusal = calls.dialect.explain(request, answer)
            if refusal is None:
                self._values = [self._read(answer)]
        except ExchangeFailed as failure:
            refusal = Refusal(failure.kind, str(failure))
            self._is_stale = failure.stale
            self._lost |= failure.sent
        filled = self._sink.filled - before if self._sink is not None else 0
        calls.counts.moved(filled, request.size)
        if refusal is not None and self._answer is not None:
            self._lost |= refusal.kind in DOUBTFUL
        return refusal

    def value(self) -> T:
        """Return what the last one has brought."""
        return self._values[0]

    def is_worth_repeating_at_once(self, refusal: Refusal) -> bool:
        """Tell whether nothing but a dead connection or something that was learnt by now stood against it."""
        if self._is_stale:
            self._calls.pool.forget_idle()  # the others are as old
        elif self._answer is None or not self._calls.dialect.adapt(refusal, self._answer):
            return False
        self._adapted += 1
        return self._adapted <= _MOST_ADAPTIONS

    def refused(self, refusal: Refusal) -> Refused:
        """Return the fault that ends the call."""
        attempts = f" ({self._made} attempts)" if self._made > 1 else ""
        message = f"{self._operation.name} {self._operation.what}: {refusal.text}{attempts}"
        return _refused(refusal, message, self._lost)
