"""Errands of the poll runtime: after every answer, before every read."""

import os
import threading
import time

import pytest

from sidecar.poll_runtime import PollRuntime
from tests.sidecar.test_poll_runtime import Workers


class Errand:
    """Notes when it is run, and wants to be run again so often."""

    def __init__(self, workers: Workers, again: int = 0) -> None:
        self.workers = workers
        self.again = again
        self.runs: list[
            tuple[int, bool]
        ] = []  # how much had been served by then, and whether nothing was there to read

    def __call__(self, idle: bool) -> bool:
        self.runs.append((len(self.workers.served), idle))
        self.again -= 1
        return self.again >= 0


def runtime_with(requests: bytes) -> tuple[PollRuntime, Workers, int]:
    runtime = PollRuntime()
    reader, writer = os.pipe()
    os.write(writer, requests)
    return runtime, Workers(runtime, reader), writer


def test_errand_is_run_once_and_before_anything_is_read() -> None:
    runtime, workers, writer = runtime_with(b"abq")
    errand = Errand(workers)
    runtime.errands.append(errand)
    runtime.run(workers.main)
    assert errand.runs == [(0, False)]
    os.close(writer)
    os.close(workers.fd)


def test_errand_of_a_handler_is_run_before_the_next_request_is_read() -> None:
    runtime, workers, writer = runtime_with(b"abcq")
    seen: list[tuple[bytes, list[bytes]]] = []
    handle = workers.handle

    async def handle_with_errand(request: bytes) -> None:
        await handle(request)

        def errand(idle: bool) -> bool:
            seen.append((request, list(workers.served)))
            return False

        runtime.errands.append(errand)

    workers.handle = handle_with_errand  # type: ignore[method-assign]  # the test's own handler
    runtime.run(workers.main)
    assert seen[:3] == [(b"a", [b"a"]), (b"b", [b"a", b"b"]), (b"c", [b"a", b"b", b"c"])]
    os.close(writer)
    os.close(workers.fd)


def test_errand_that_waits_for_quiet_is_told_when_nothing_is_left_to_read() -> None:
    runtime, workers, writer = runtime_with(b"abc")
    ran = threading.Event()
    runs: list[tuple[int, bool]] = []

    def errand(idle: bool) -> bool:
        runs.append((len(workers.served), idle))
        if idle:
            ran.set()
        return not idle

    def finish() -> None:
        assert ran.wait(5)
        os.write(writer, b"q")

    runtime.errands.append(errand)
    finishing = threading.Thread(target=finish)
    finishing.start()
    runtime.run(workers.main)
    finishing.join()
    assert [served for served, idle in runs if idle] == [3]
    assert [served for served, idle in runs if not idle][:4] == [0, 1, 2, 3]
    os.close(writer)
    os.close(workers.fd)


def test_errand_that_is_never_done_does_not_burn_the_processor() -> None:
    runtime, workers, writer = runtime_with(b"a")
    errand = Errand(workers, again=10**6)
    runtime.errands.append(errand)

    def finish() -> None:
        until = time.monotonic() + 20
        time.sleep(0.5)
        while len(errand.runs) <= 20 and time.monotonic() < until:
            time.sleep(0.01)
        os.write(writer, b"q")

    finishing = threading.Thread(target=finish)
    before, began = time.process_time(), time.monotonic()
    finishing.start()
    runtime.run(workers.main)
    finishing.join()
    elapsed_s = time.monotonic() - began
    assert 20 < len(errand.runs) < 1200 * elapsed_s
    assert time.process_time() - before < elapsed_s / 2
    os.close(writer)
    os.close(workers.fd)


@pytest.mark.parametrize("slow", [1, 3])
def test_operation_in_a_thread_holds_up_no_errand(slow: int) -> None:
    runtime, workers, writer = runtime_with(b"s" * slow + b"a")
    errand = Errand(workers)

    def finish() -> None:
        deadline = time.monotonic() + 5
        while b"a" not in workers.served and time.monotonic() < deadline:
            time.sleep(0.001)
        runtime.errands.append(errand)
        os.write(writer, b"b")
        while not errand.runs and time.monotonic() < deadline:
            time.sleep(0.001)
        workers.gate.set()
        while len(workers.served) < slow + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        os.write(writer, b"q")

    finishing = threading.Thread(target=finish)
    finishing.start()
    runtime.run(workers.main)
    finishing.join()
    assert errand.runs
    assert errand.runs[0][0] < slow + 2
    os.close(writer)
    os.close(workers.fd)
