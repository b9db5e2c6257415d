"""What the controller is doing: one operation a volume or snapshot, which goes on when its caller does not wait any more.

What it does in a pool runs in threads of its own (`csi.place_threads`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sidemount.host.logs import log
from sidemount.model.errors import OperationPending

T = TypeVar("T")

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Job:
    """An operation under way. `asked`: what it is, so that the same one asked for again can be told from another."""

    asked: object
    task: "asyncio.Task[Any]"
    began_s: float


class Jobs:
    """The operations under way, by what they are on."""

    def __init__(self, wait_s: float) -> None:
        """A caller waits for `wait_s`; then it has to ask again."""
        self._wait_s = wait_s
        self._jobs: dict[Key, _Job] = {}

    def kinds(self) -> list[str]:
        """Return the kind of everything that something is under way on."""
        return [kind for kind, _ in self._jobs]

    def oldest_s(self) -> float:
        """Return for how long the oldest operation has been under way; 0 if there is none."""
        now = time.monotonic()
        return max((now - job.began_s for job in self._jobs.values()), default=0.0)

    def has(self, key: Key) -> bool:
        """Tell whether something is under way there."""
        return key in self._jobs

    async def run(self, key: Key, asked: object, work: Callable[[], Awaitable[T]]) -> T:
        """Return what the operation does; the same one under way is joined. Raises OperationPending: another one is, or it takes long."""
        job = self._jobs.get(key)
        if job is not None and job.asked != asked:
            raise OperationPending(f"{' '.join(key)}: another operation on it runs", hint="try again")
        if job is None:
            job = _Job(asked, asyncio.ensure_future(_awaited(work)), time.monotonic())
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
