"""What is being done at which target: one operation at a time, each carried to its end whether or not its caller waits."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from csi.records import Record
from sidemount.model.errors import OperationPending, shown


@dataclass(frozen=True, slots=True)
class Operation:
    """One of them. `removes`: it ends in nothing being there; `is_own`: nobody has asked for it."""

    volume_id: str
    is_exclusive: bool
    removes: bool
    is_own: bool
    task: "asyncio.Task[None]"


class Operations:
    """The operations under way, by resolved path."""

    def __init__(self) -> None:
        self._under_way: dict[str, Operation] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    def get(self, path: str) -> Operation | None:
        """Return what is being done at a target, None if nothing is."""
        return self._under_way.get(path)

    def of_volume(self, volume_id: str, *, but: str) -> Iterator[Operation]:
        """Return what is being done with a volume at other targets."""
        for path, operation in self._under_way.items():
            if path != but and operation.volume_id == volume_id:
                yield operation

    def refuse_busy(self, path: str) -> None:
        """See that nothing is being done at a target. Raises OperationPending."""
        if path in self._under_way:
            raise OperationPending(f"target_path {shown(path)}: an operation on it is under way")

    async def run(self, record: Record, work: Coroutine[Any, Any, None], *, removes: bool = False) -> None:
        """Carry an operation out to its end, whether or not the caller waits for it."""
        await asyncio.shield(self.begin(record, work, removes=removes))

    def begin(
        self,
        record: Record,
        work: Coroutine[Any, Any, None],
        *,
        removes: bool,
        is_own: bool = False,
    ) -> "asyncio.Task[None]":
        """Begin an operation at the record's target, where none may be under way."""
        path = record.path
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[path] = Operation(record.volume_id, record.mode.is_exclusive, removes, is_own, task)
        self._tasks.add(task)

        def over(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            self._under_way.pop(path, None)
            if not task.cancelled():
                task.exception()  # whoever waits gets it; if nobody does, it was logged

        task.add_done_callback(over)
        return task

    async def close(self, timeout_s: float) -> None:
        """Wait for what is under way, and cancel what is not done by then."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in list(self._tasks):
            task.cancel()
