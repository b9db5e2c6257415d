"""What the controller is doing: one operation a volume or snapshot, which goes on when its caller does not wait any more.

A pool may not answer for ever, so its methods run in threads that nobody waits for without a deadline, not even the process's end.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sidemount.host.logs import log
from sidemount.model.errors import NotReady, OperationPending

T = TypeVar("T")
_STUCK_MAX = 64  # threads that a pool holds up before nobody asks it any more

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Job:
    """An operation under way. `asked`: what it is, so that the same one asked for again can be told from another."""

    asked: object
    task: "asyncio.Task[Any]"


class Jobs:
    """The operations under way, by what they are on."""

    def __init__(self, wait_s: float) -> None:
        """A caller waits for `wait_s`; then it has to ask again."""
        self._wait_s = wait_s
        self._jobs: dict[Key, _Job] = {}

    def has(self, key: Key) -> bool:
        """Tell whether something is under way there."""
        return key in self._jobs

    async def run(self, key: Key, asked: object, work: Callable[[], Awaitable[T]]) -> T:
        """Return what the operation does; the same one under way is joined. Raises OperationPending: another one is, or it takes long."""
        job = self._jobs.get(key)
        if job is not None and job.asked != asked:
            raise OperationPending(f"{' '.join(key)}: another operation on it runs", hint="try again")
        if job is None:
            job = _Job(asked, asyncio.ensure_future(_awaited(work)))
            self._jobs[key] = job
            job.task.add_done_callback(lambda task: self._ended(key, task))
        done, _ = await asyncio.wait({job.task}, timeout=self._wait_s)
        if not done:
            raise OperationPending(
                f"{' '.join(key)}: it takes longer than {self._wait_s:g} s", hint="it goes on; ask again"
            )
        result: T = job.task.result()
        return result

    async def close(self, timeout_s: float) -> None:
        """Wait for what is under way."""
        tasks = {job.task for job in self._jobs.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def _ended(self, key: Key, task: "asyncio.Task[Any]") -> None:
        del self._jobs[key]
        # Whoever asked may be gone.
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            log("csi.controller").info("operation_failed", on=" ".join(key), fault=str(fault))


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


class PoolThreads:
    """Runs what may wait for a pool."""

    def __init__(self, answer_s: float) -> None:
        """`answer_s`: how long a pool may take for what is quick."""
        self._answer_s = answer_s
        self._under_way: dict[str, int] = {}

    async def quick(self, pool: str, work: Callable[[], T]) -> T:
        """Return what `work` returns. Raises what it raises, or NotReady when the pool does not answer."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await self.long(pool, work)
        except TimeoutError:
            raise NotReady(
                f"pool {pool} does not answer within {self._answer_s:g} s", hint="look at its filesystem"
            ) from None

    async def long(self, pool: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, however long it takes."""
        if self._under_way.get(pool, 0) >= _STUCK_MAX:
            raise NotReady(f"pool {pool} does not answer", hint="look at its filesystem")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._under_way[pool] = self._under_way.get(pool, 0) + 1

        def tell(result: Callable[[], None]) -> None:
            self._under_way[pool] -= 1
            if not answer.done():
                result()

        def run() -> None:
            try:
                value = work()
                result: Callable[[], None] = lambda: answer.set_result(value)  # noqa: E731
            except BaseException as error:
                fault = error
                result = lambda: answer.set_exception(fault)  # noqa: E731
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell, result)

        threading.Thread(target=run, daemon=True, name=f"pool {pool}").start()
        return await answer
