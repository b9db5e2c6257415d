"""Threads for what looks at directories of others. These may be on a filesystem that never answers.

So nobody waits for such a thread without a deadline, not even the process's end, and one place that hangs holds up no other.
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from sidemount.model.errors import NotReady

T = TypeVar("T")
_STUCK_MAX = 16  # threads of a place that did not end in time, before nobody asks it any more
_LONG_MAX = 1000


class PlaceThreads:
    """Runs what may wait for a place."""

    def __init__(self, kind: str, answer_s: float) -> None:
        """`kind` of the places, such as pool. `answer_s`: how long one may take for what is quick."""
        self._kind = kind
        self._answer_s = answer_s
        self._stuck: Counter[str] = Counter()
        self._long: Counter[str] = Counter()

    async def quick(self, place: str, work: Callable[[], T]) -> T:
        """Return what `work` returns. Raises what it raises, or NotReady when the place does not answer."""
        if self._stuck[place] >= _STUCK_MAX:
            raise self._no_answer(place)
        answer = self._start(place, work)
        try:
            async with asyncio.timeout(self._answer_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            if answer.done():  # it came at the last moment, or the work itself has raised it
                return answer.result()
            self._counted(self._stuck, place, answer)
            raise self._no_answer(place, f" within {self._answer_s:g} s") from None

    async def long(self, place: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, however long it takes."""
        if self._long[place] >= _LONG_MAX or self._stuck[place] >= _STUCK_MAX:
            raise self._no_answer(place)
        answer = self._start(place, work)
        self._counted(self._long, place, answer)
        return await asyncio.shield(answer)

    def stuck(self, place: str) -> int:
        """Return how many threads of a place have not ended in time."""
        return self._stuck[place]

    def _no_answer(self, place: str, when: str = "") -> NotReady:
        return NotReady(
            f"{self._kind} {place} does not answer{when}", hint="look at its filesystem, or its store"
        )

    def _start(self, place: str, work: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        answer.add_done_callback(lambda ended: ended.exception())  # whoever waits gets it; maybe nobody does

        def run() -> None:
            try:
                value = work()
                tell: Callable[[], None] = lambda: answer.set_result(value)  # noqa: E731
            except BaseException as error:
                fault = error
                tell = lambda: answer.set_exception(fault)  # noqa: E731
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell)

        threading.Thread(target=run, daemon=True, name=f"{self._kind} {place}").start()
        return answer

    def _counted(self, counter: "Counter[str]", place: str, answer: "asyncio.Future[Any]") -> None:
        """Count a thread until it ends."""
        counter[place] += 1

        def ended(_: object) -> None:
            counter[place] -= 1
            if not counter[place]:
                del counter[place]

        answer.add_done_callback(ended)
