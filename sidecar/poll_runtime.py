"""A runtime for pyfuse3 that pays no event loop per request.

pyfuse3 takes its event loop from the module global `pyfuse3.trio`; its own asyncio support replaces that global, and so
does this. Under trio or asyncio about 28 of the 33 µs of user time that a request costs are the loop's (task scheduling and re-arming
epoll). Here a worker that waits for a request simply polls the descriptor, and a handler that never has to wait runs to its end with no
scheduling at all. A handler that does wait (`in_thread`) is parked, and another worker goes on reading: slow operations never hold up others.

One thread, no cancellation, no timers: whatever needs those belongs into a thread of its own.
"""

import contextlib
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

import pyfuse3

from sidecar.poll_lookout import Lookout
from sidecar.takeover.errand import Errands
from sidemount.host.readiness import wait_readable
from sidemount.model.errors import HostFailure

T = TypeVar("T")
_ERRAND_MS = 1


class ClosedResourceError(Exception):
    """The descriptor is about to be closed: what pyfuse3 expects from a waiter then."""


class _Suspend(Awaitable[None]):
    """Give control back to the scheduler; resumed when the task is put into the ready queue again."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


_SUSPEND = _Suspend()


class _Done(Awaitable[None]):
    """Nothing to wait for: a worker goes on at once. Costs less than a coroutine that does nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return _NOTHING_TO_YIELD  # type: ignore[return-value]  # an iterator is all that `await` needs


_NOTHING_TO_YIELD = iter(())
_DONE = _Done()


class _Task:
    __slots__ = ("coroutine", "has_read", "name")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self.coroutine = coroutine
        self.name = name
        self.has_read = False


class _Call:
    """What a thread is to do for a task. It leaves a result, or what was raised."""

    __slots__ = ("args", "error", "function", "result", "task")

    def __init__(self, task: _Task, function: Callable[..., Any], args: tuple[object, ...]) -> None:
        self.task = task
        self.function = function
        self.args = args
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function(*self.args)
        except BaseException as error:
            self.error = error


class PollRuntime:
    """Runs pyfuse3's workers. Stands in for the modules `trio`, `trio.lowlevel` and `trio.from_thread`.

    `threads` bounds how many slow operations run at once. `errands` are run before every read, when all that handlers have
    returned has been answered (see `sidecar.takeover.errand`). `one_by_one_until` is a time before which no request is read while
    another is worked on. `before_first_read` is called for each worker right before
    it reads for the first time: libfuse makes its buffer then. If it raises HostFailure, that worker reads nothing. `once_answered` is called
    once, when what the running handler returns has been answered, before anything else is run or read.
    """

    ClosedResourceError = ClosedResourceError

    def __init__(self, threads: int = 16) -> None:
        self.lowlevel = self
        self.from_thread = self
        self.errands: Errands = deque()
        self.before_first_read: Callable[[], None] = _nothing
        self.once_answered: Callable[[], None] | None = None
        self.one_by_one_until: float | None = None
        self._in_threads = 0
        self._ready: deque[_Task] = deque()
        self._finished: deque[_Task] = deque()  # by other threads; append and popleft are atomic
        self._locks: list[_ReadLock] = []
        self._current: _Task
        self._live = 0
        self._closing = False
        self._sleeps = False  # whoever finishes work for a task has to wake us
        self._waking = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._wake, select.POLLIN)
        self._look_out = Lookout(self._poller.poll).wait
        self._polled: int | None = None
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads_most = threads
        self._threads = 0

    def run(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run `main` and everything it starts to the end. Raises what any of them raises."""
        previous = pyfuse3.__dict__["trio"]
        vars(pyfuse3)["trio"] = self
        try:
            self.start_soon(main, name="main")
            while self._live:
                self._step(self._next())
        finally:
            vars(pyfuse3)["trio"] = previous
            self._end_threads()
            with self._waking:
                os.close(self._wake)
                self._wake = -1

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Return `function(*args)`, run in a thread, while other requests are served. MemoryError if there is none for a thread."""
        call = _Call(self._current, function, args)
        if self._in_threads >= self._threads < self._threads_most:
            self._start_thread()
        self._in_threads += 1
        self._calls.put(call)
        await _SUSPEND  # always: we are resumed exactly once, even if the thread was quicker
        self._in_threads -= 1
        error, call.error = call.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it knows this frame, and what is in it
        result: T = call.result
        return result

    def _start_thread(self) -> None:
        """Start a thread. If it cannot be had, others do the work; MemoryError if there are none."""
        thread = threading.Thread(target=self._work, name=f"slow_{self._threads}")
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise MemoryError(str(error)) from error
        else:
            self._threads += 1

    def _work(self) -> None:
        """Be a thread. It keeps nothing of a call while it waits for the next one: that may be a view of a block."""
        while (call := self._calls.get()) is not None:
            call.run()
            task = call.task
            del call
            self._resume_from_thread(task)
            del task

    def _end_threads(self) -> None:
        """Have every thread end after what it does now, and drop what none has begun."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()
        for _ in range(self._threads):
            self._calls.put(None)
        self._threads = 0

    # What pyfuse3 calls.

    def Lock(self) -> "_ReadLock":
        lock = _ReadLock(self)
        self._locks.append(lock)
        return lock

    def open_nursery(self) -> "_Nursery":
        return _Nursery(self)

    def start_soon(
        self, function: Callable[..., Coroutine[Any, Any, Any]], *args: object, name: str = ""
    ) -> None:
        self._live += 1
        self._ready.append(_Task(function(*args), name))

    def current_task(self) -> _Task:
        return self._current

    def current_trio_token(self) -> str:
        return "poll"

    def notify_closing(self, fd: int) -> None:
        self._closing = True
        os.eventfd_write(self._wake, 1)

    def wait_readable(self, fd: int) -> Awaitable[None]:
        """Wait for a request. The worker whose turn it is polls right here, unless others are ready to run."""
        if self._polled != fd:
            self._poller.register(fd, select.POLLIN)
            self._polled = fd
        if (
            self._ready
            or self.errands
            or not self._current.has_read
            or self._closing
            or self.one_by_one_until
        ):
            return self._wait_in_turn(fd)
        self._sleeps = True  # as `_poll` does; each request comes along here
        found = self._poller.poll(0 if self._finished else None) if self._in_threads else self._look_out(None)
        self._sleeps = False
        if self._finished or len(found) > 1 or found[0][0] != fd:
            self._collect(is_woken=any(descriptor != fd for descriptor, _ in found))
            return self._wait_in_turn(fd)
        return _DONE

    async def _wait_in_turn(self, fd: int) -> None:
        if self.one_by_one_until is not None:
            await self._finish_what_is_begun(self.one_by_one_until)
        if self._ready:  # whoever a thread has woken goes first, or load would starve it
            await self.pause()
        idle = False
        while True:
            if self._closing:
                raise ClosedResourceError
            readable = False
            wait_ms = self._run_errands(idle)
            found = self._poll(0 if self._ready else wait_ms)
            idle = not found and not self._ready
            for descriptor, _ in found:
                readable = readable or descriptor == fd
            if self._finished or len(found) > readable:
                self._collect(is_woken=len(found) > readable)
                idle = False
            if readable:
                if not self._current.has_read:
                    self._prepare_first_read()
                return
            if not idle:
                await self.pause()

    def _prepare_first_read(self) -> None:
        """Have a worker's buffer prepared. One that there is no memory for ends, as long as others are there to go on."""
        try:
            self.before_first_read()
        except HostFailure as error:
            if self._live > 1:
                raise ClosedResourceError from error
            raise
        self._current.has_read = True

    async def _finish_what_is_begun(self, until: float) -> None:
        """Wait until every handler that a thread works for has answered, but not past that time."""
        while self._in_threads and (left_s := until - time.monotonic()) > 0:
            if not self._ready:
                self._sleep(left_s)
            if self._closing:
                raise ClosedResourceError
            await self.pause()
        if time.monotonic() >= until:
            self.one_by_one_until = None

    def _run_errands(self, idle: bool) -> int | None:
        """Run what is due, and return how long a poll may wait before it is due again."""
        for _ in range(len(self.errands)):
            errand = self.errands.popleft()
            if errand(idle):
                self.errands.append(errand)
        return _ERRAND_MS if self.errands else None

    async def pause(self) -> None:
        """Let every other ready task run once."""
        self._ready.append(self._current)
        await _SUSPEND

    # Scheduling.

    def _next(self) -> _Task:
        while True:
            if self._ready:
                return self._ready.popleft()
            for lock in self._locks:
                if (task := lock.hand_on()) is not None:
                    return task
            self._sleep(None)

    def _step(self, task: _Task) -> None:
        self._current = task
        try:
            task.coroutine.send(None)
        except StopIteration:
            self._live -= 1
        if self.once_answered is not None:
            self.has_answered()

    def _poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        """Poll; not for any time if a thread has come to its end, of which there is nothing to be read then."""
        self._sleeps = True  # before looking: whoever has finished work later than that wakes us
        if self._in_threads or timeout_ms == 0:  # threads have more use for the processor than looking has
            found = self._poller.poll(0 if self._finished else timeout_ms)
        else:
            found = self._look_out(timeout_ms)
        self._sleeps = False
        return found

    def _sleep(self, timeout_s: float | None) -> None:
        """Wait for the end of a thread."""
        self._sleeps = True
        is_woken = not self._finished and wait_readable(self._wake, timeout_s)
        self._sleeps = False
        self._collect(is_woken=is_woken)

    def _collect(self, *, is_woken: bool) -> None:
        if is_woken:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        while self._finished:
            self._ready.append(self._finished.popleft())

    def _resume_from_thread(self, task: _Task) -> None:
        self._finished.append(task)
        if not self._sleeps:
            return  # it looks before it sleeps again
        with self._waking:
            # Once for all that are finished by then. A slow operation may outlast us; its number may be another file's by then.
            if self._sleeps and self._wake >= 0:
                self._sleeps = False
                os.eventfd_write(self._wake, 1)

    def has_answered(self) -> None:
        """Call what is to be called once a handler's answer is there."""
        call, self.once_answered = self.once_answered, None
        if call is not None:
            call()

    def park(self) -> _Task:
        """Return the running task, for whoever will make it ready again."""
        return self._current


class _ReadLock:
    """pyfuse3's read lock. It is handed on only when nobody else can run, so that a busy worker keeps it without a switch."""

    __slots__ = ("_held", "_runtime", "_waiting")

    def __init__(self, runtime: PollRuntime) -> None:
        self._runtime = runtime
        self._held = False
        self._waiting: deque[_Task] = deque()

    def __aenter__(self) -> Awaitable[None]:
        if self._runtime.once_answered is not None:
            self._runtime.has_answered()
        if self._held:
            return self._acquire()
        self._held = True
        return _DONE

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        self._held = False
        return _DONE

    async def _acquire(self) -> None:
        while self._held:
            self._waiting.append(self._runtime.park())
            await _SUSPEND
        self._held = True

    def hand_on(self) -> _Task | None:
        """Return the next waiter if the lock is free."""
        return self._waiting.popleft() if self._waiting and not self._held else None


class _Nursery:
    """The runtime itself ends only when all tasks have: a nursery has nothing to wait for."""

    __slots__ = ("start_soon",)

    def __init__(self, runtime: PollRuntime) -> None:
        self.start_soon = runtime.start_soon

    async def __aenter__(self) -> "_Nursery":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _nothing() -> None:
    """Prepare nothing."""
