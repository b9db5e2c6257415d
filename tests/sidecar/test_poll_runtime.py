"""The runtime's scheduling, with a worker loop like pyfuse3's on a pipe in place of a FUSE descriptor."""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from sidecar.poll_lookout import Found, Lookout
from sidecar.poll_runtime import PollRuntime
from sidemount.model.errors import HostFailure


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


class Workers:
    """Workers as pyfuse3 runs them: one reads, the others wait for the lock; a new one starts when nobody waits."""

    def __init__(self, runtime: PollRuntime, fd: int, most: int = 24) -> None:
        self.runtime, self.fd, self.most = runtime, fd, most
        self.lock = runtime.Lock()
        self.waiting = self.count = 0
        self.served: list[bytes] = []
        self.gate = threading.Event()

    async def main(self) -> None:
        async with self.runtime.open_nursery() as nursery:
            self.count = 1
            nursery.start_soon(self.worker, name="worker")

    async def worker(self) -> None:
        while True:
            self.waiting += 1
            try:
                async with self.lock:
                    await self.runtime.wait_readable(self.fd)
            except self.runtime.ClosedResourceError:
                return
            finally:
                self.waiting -= 1
            request = os.read(self.fd, 1)
            if not self.waiting and self.count < self.most:
                self.count += 1
                self.runtime.start_soon(self.worker, name="worker")
            await self.handle(request)

    async def handle(self, request: bytes) -> None:
        if request == b"s":
            await self.runtime.in_thread(self.gate.wait, 10)
        if request == b"e":
            await self.runtime.in_thread(self.fail)
        if request == b"q":
            self.runtime.notify_closing(self.fd)
        self.served.append(request)

    @staticmethod
    def fail() -> None:
        raise KeyError("from a thread")


def run(workers: Workers) -> None:
    def main() -> Coroutine[Any, Any, None]:
        return workers.main()

    workers.runtime.run(main)


def test_requests_are_served_in_order(pipe: tuple[int, int]) -> None:
    workers = Workers(PollRuntime(), pipe[0])
    os.write(pipe[1], b"abcq")
    run(workers)
    assert workers.served == [b"a", b"b", b"c", b"q"]


def test_a_slow_operation_does_not_hold_up_the_others(pipe: tuple[int, int]) -> None:
    workers = Workers(PollRuntime(), pipe[0])
    os.write(pipe[1], b"sabsc")

    def finish() -> None:
        while len(workers.served) < 3:
            workers.gate.wait(0.01)
        workers.gate.set()
        os.write(pipe[1], b"q")

    other = threading.Thread(target=finish)
    other.start()
    run(workers)
    other.join()
    assert workers.served[:3] == [b"a", b"b", b"c"]
    assert sorted(workers.served[3:]) == [b"q", b"s", b"s"]


def test_no_more_workers_than_allowed(pipe: tuple[int, int]) -> None:
    workers = Workers(PollRuntime(), pipe[0], most=3)
    workers.gate.set()
    os.write(pipe[1], b"s" * 20 + b"q")
    run(workers)
    assert workers.count <= 3
    assert len(workers.served) == 21


def test_what_a_thread_raises_reaches_its_caller_and_ends_the_run(pipe: tuple[int, int]) -> None:
    workers = Workers(PollRuntime(), pipe[0])
    os.write(pipe[1], b"e")
    with pytest.raises(KeyError, match="from a thread"):
        run(workers)


def test_load_does_not_starve_a_finished_slow_operation(pipe: tuple[int, int]) -> None:
    """Requests that keep coming must not keep the answer of a slow one back."""
    workers = Workers(PollRuntime(), pipe[0])
    workers.gate.set()
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            os.write(pipe[1], b"a" * 16)

    def end() -> None:
        while b"s" not in workers.served:
            stop.wait(0.005)
        stop.set()

    os.write(pipe[1], b"s")
    threads = [threading.Thread(target=load), threading.Thread(target=end)]
    for thread in threads:
        thread.start()

    def finish() -> None:
        stop.wait(30)
        os.write(pipe[1], b"q")

    threads.append(threading.Thread(target=finish))
    threads[-1].start()
    run(workers)
    for thread in threads:
        thread.join()
    assert b"s" in workers.served


def test_an_idle_runtime_wakes_for_a_thread(pipe: tuple[int, int]) -> None:
    """With every worker in a thread nobody polls: the end of one must wake the scheduler."""
    workers = Workers(PollRuntime(), pipe[0], most=1)
    os.write(pipe[1], b"sq")
    threading.Timer(0.05, workers.gate.set).start()
    run(workers)
    assert workers.served == [b"s", b"q"]


def test_no_processor_is_spent_on_looking_for_requests_while_a_thread_works(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_while_it_worked: list[bool] = []

    class Watched(Lookout):
        def wait(self, timeout_ms: int | None) -> Found:
            looked_while_it_worked.append(bool(workers.served) and not workers.gate.is_set())
            return super().wait(timeout_ms)

    monkeypatch.setattr("sidecar.poll_runtime.Lookout", Watched)
    workers = Workers(PollRuntime(), pipe[0])

    def ask() -> None:
        asked = 1
        os.write(pipe[1], b"s")
        while asked < 20:
            os.write(pipe[1], b"a")
            while len(workers.served) < asked:
                time.sleep(0.001)
            asked += 1
        workers.gate.set()
        while len(workers.served) < asked + 5:
            os.write(pipe[1], b"a")
            time.sleep(0.001)
        os.write(pipe[1], b"q")

    other = threading.Thread(target=ask)
    other.start()
    run(workers)
    other.join()
    assert looked_while_it_worked
    assert not any(looked_while_it_worked)


def test_threads_are_as_many_as_allowed_and_end_with_the_run() -> None:
    runtime = PollRuntime(threads=3)
    before = threading.active_count()
    seen: list[int] = []

    async def call() -> None:
        await runtime.in_thread(time.sleep, 0.002)
        seen.append(threading.active_count() - before)

    async def main() -> None:
        for _ in range(20):
            runtime.start_soon(call)

    runtime.run(main)
    assert len(seen) == 20
    assert max(seen) <= 3
    until = time.monotonic() + 20
    while threading.active_count() > before:
        assert time.monotonic() < until
        time.sleep(0.001)


class _Made(Exception):
    def __init__(self, kept: "list[weakref.ref[_Made]]") -> None:
        super().__init__()
        kept.append(weakref.ref(self))


def test_what_came_of_a_call_is_nobodys_once_its_caller_has_let_go_of_it() -> None:
    """It may be a view of a block, which cannot be used for another as long as anybody has it."""
    runtime = PollRuntime()
    kept: list[weakref.ref[_Made]] = []

    def fail() -> None:
        raise _Made(kept)

    async def main() -> None:
        answer = await runtime.in_thread(_Made, kept)
        del answer
        with contextlib.suppress(_Made):
            await runtime.in_thread(fail)
        left.extend(one() is None for one in kept)

    left: list[bool] = []
    runtime.run(main)
    assert left == [True, True]


def test_many_ends_of_threads_at_once_are_all_noticed(pipe: tuple[int, int]) -> None:
    """One wake-up is for all that have come to their ends by then; none may be lost between looking and sleeping."""
    runtime = PollRuntime()
    answers: list[int] = []

    async def ask(number: int) -> None:
        for step in range(200):
            await runtime.in_thread(answers.append, number * 200 + step)

    async def main() -> None:
        for number in range(8):
            runtime.start_soon(ask, number)

    runtime.run(main)
    assert sorted(answers) == list(range(1600))


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_what_no_thread_can_be_had_for_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller is told that there is no memory, and may try again."""
    runtime = PollRuntime()
    done: list[int] = []
    told: list[str] = []

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_thread)
            try:
                await runtime.in_thread(done.append, 1)
            except MemoryError as error:
                told.append(str(error))
        await runtime.in_thread(done.append, 2)

    runtime.run(main)
    assert told == ["can't start new thread"]
    assert done == [2]


def test_what_no_further_thread_can_be_had_for_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = PollRuntime()
    gate = threading.Event()
    done: list[str] = []

    async def slow() -> None:
        await runtime.in_thread(gate.wait, 10)
        done.append("slow")

    async def second() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_thread)
            await runtime.in_thread(done.append, "second")

    async def third() -> None:
        gate.set()

    async def main() -> None:
        for task in (slow, second, third):
            runtime.start_soon(task)

    runtime.run(main)
    assert sorted(done) == ["second", "slow"]


def test_a_worker_that_there_is_no_memory_for_ends_and_the_others_go_on(pipe: tuple[int, int]) -> None:
    """Its process would die of it else, and all that it works on would be suspected."""
    runtime = PollRuntime()
    workers = Workers(runtime, pipe[0])
    prepared: list[bool] = []

    def prepare() -> None:
        prepared.append(not prepared)
        if not prepared[-1]:
            raise HostFailure("no memory for a read buffer")

    runtime.before_first_read = prepare
    threading.Timer(0.05, workers.gate.set).start()
    os.write(pipe[1], b"sabq")
    run(workers)
    assert workers.served == [b"s", b"a", b"b", b"q"]
    assert prepared[0]
    assert not any(prepared[1:])
    assert len(prepared) > 1


def test_without_memory_for_any_worker_nothing_is_served(pipe: tuple[int, int]) -> None:
    runtime = PollRuntime()

    def prepare() -> None:
        raise HostFailure("no memory for a read buffer")

    runtime.before_first_read = prepare
    os.write(pipe[1], b"a")
    with pytest.raises(HostFailure):
        run(Workers(runtime, pipe[0]))


@pytest.mark.parametrize(
    ("for_s", "served"),
    [(30.0, [b"s", b"a", b"b", b"q"]), (-1.0, [b"a", b"b", b"s", b"q"])],
    ids=["now", "over"],
)
def test_nothing_is_read_while_another_is_worked_on_as_long_as_that_is_wanted(
    pipe: tuple[int, int], for_s: float, served: list[bytes]
) -> None:
    runtime = PollRuntime()
    runtime.one_by_one_until = time.monotonic() + for_s
    workers = Workers(runtime, pipe[0])
    os.write(pipe[1], b"sab")

    def let_go() -> None:
        workers.gate.set()
        while b"s" not in workers.served:
            time.sleep(0.001)
        os.write(pipe[1], b"q")

    def wait_for_others() -> None:
        until = time.monotonic() + (0.05 if for_s > 0 else 10)
        while len(workers.served) < 2 and time.monotonic() < until:
            time.sleep(0.001)
        let_go()

    threading.Thread(target=wait_for_others, daemon=True).start()
    run(workers)
    assert workers.served == served
    assert (runtime.one_by_one_until is None) == (for_s < 0)


def test_what_is_due_once_a_handler_is_answered_comes_before_anything_is_read_or_run(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    runtime = PollRuntime()
    events: list[str] = []

    class Answering(Workers):
        async def worker(self) -> None:
            try:
                await super().worker()
            finally:
                events.append("end")

        async def handle(self, request: bytes) -> None:
            if request == b"s":
                await self.runtime.in_thread(self.gate.wait, 10)
            if request == b"x":
                self.runtime.notify_closing(self.fd)
            else:
                self.runtime.once_answered = lambda: events.append(f"due {request.decode()}")
            events.append(f"answer {request.decode()}")

    workers = Answering(runtime, reader)
    os.write(writer, b"s1")

    def go_on() -> None:
        workers.gate.set()
        os.write(writer, b"2x")

    threading.Timer(0.2, go_on).start()
    runtime.run(workers.main)
    answers = [event for event in events if event != "end"]
    for place, event in enumerate(answers):
        if event.startswith("answer") and event != "answer x":
            assert answers[place + 1] == event.replace("answer", "due"), answers
    assert sorted(answers) == ["answer 1", "answer 2", "answer s", "answer x", "due 1", "due 2", "due s"]
    assert runtime.once_answered is None
