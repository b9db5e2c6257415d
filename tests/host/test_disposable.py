"""Children that may hang, and how the keeper's loop lives with them."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sidemount.host.disposable import Child, Reporter, start_child
from sidemount.host.jobs import Job, Jobs, Message, Outcome, Room, Work
from sidemount.host.loop import Loop
from sidemount.model.errors import HostFailure
from tests.host.keeper_pod import is_alive
from tests.host.mount_node import eventually


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A loop."""
    loop = Loop()
    yield loop
    loop.close()


def received(child: Child) -> list[tuple[Message, int | None] | None]:
    """Return everything a child says until it ends."""
    child.socket.setblocking(True)
    child.socket.settimeout(10)
    messages = []
    while (message := child.receive()) is not None:
        messages.append(message)
    assert eventually(child.reap)
    child.socket.close()
    return list(messages)


def hang(reporter: Reporter) -> None:
    """Never end."""
    time.sleep(1000)


def test_a_child_reports_and_ends() -> None:
    child = start_child(lambda reporter: reporter.send({"answer": 42}))
    assert received(child) == [({"answer": 42}, None), ({"done": True}, None)]


def test_a_failure_is_told_with_its_errno() -> None:
    def fail(reporter: Reporter) -> None:
        raise HostFailure("statfs train: dead", errno=errno.ENOTCONN)

    assert received(start_child(fail)) == [({"error": "statfs train: dead", "errno": errno.ENOTCONN}, None)]


def test_a_defect_is_told_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    ((message, _),) = [m for m in received(start_child(lambda reporter: [][0])) if m is not None]
    assert message == {"error": "list index out of range", "errno": 0}
    assert capfd.readouterr() == ("", "")


def test_a_descriptor_comes_along(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")

    def hand_over(reporter: Reporter) -> None:
        reporter.send({"file": True}, os.open(tmp_path / "file", os.O_RDONLY))

    first = received(start_child(hand_over))[0]
    assert first is not None
    assert first[1] is not None
    assert os.read(first[1], 100) == b"content"
    assert not os.get_inheritable(first[1])
    os.close(first[1])


def test_a_child_holds_no_descriptor_but_those_it_needs(tmp_path: Path) -> None:
    """A child stuck in a mount that held /dev/fuse would keep a connection alive that must end."""
    kept, other = (os.open(tmp_path, os.O_PATH) for _ in range(2))

    def list_them(reporter: Reporter) -> None:
        reporter.send({"open": sorted(map(int, os.listdir("/proc/self/fd")))})

    first = received(start_child(list_them, keep=(kept,)))[0]
    os.close(kept)
    os.close(other)
    assert first is not None
    held = first[0]["open"]
    assert kept in held
    assert other not in held
    assert len(held) == 6  # stdio, the one kept, the socket, the listing itself


def test_a_child_waits_for_its_parent() -> None:
    def wait(reporter: Reporter) -> None:
        reporter.send({"step": 1})
        reporter.wait_for_go()
        reporter.send({"step": 2})

    child = start_child(wait)
    child.socket.setblocking(True)
    assert child.receive() == ({"step": 1}, None)
    child.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        child.receive()
    child.go_on()
    assert received(child)[0] == ({"step": 2}, None)


def test_a_child_whose_parent_is_gone_ends() -> None:
    child = start_child(lambda reporter: reporter.wait_for_go())
    child.socket.close()
    assert eventually(child.reap)


def test_children_of_a_killed_keeper_end_with_it() -> None:
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        child = start_child(hang)
        os.write(writer, str(child.pid).encode())
        time.sleep(1000)
    pid = int(os.read(reader, 20))
    os.close(reader)
    os.close(writer)
    time.sleep(0.1)
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    eventually(lambda: not is_alive(pid))


def run_until(loop: Loop, *, timeout_s: float = 10) -> Callable[[], None]:
    """Return what stops the loop; it is stopped by itself if that is never called."""

    def late() -> None:
        raise AssertionError("the loop was never stopped")

    guard = loop.call_later(timeout_s, late)

    def stop() -> None:
        guard.cancel()
        loop.stop()

    return stop


def work(
    run: Callable[[Reporter], None], ends: list[Outcome], stop: Callable[[], None], **more: object
) -> Work:
    """Return a job's work that notes how it ends."""

    def on_end(outcome: Outcome) -> None:
        ends.append(outcome)
        stop()

    return Work(run=run, on_end=on_end, **{"deadline_s": 5.0, **more})  # type: ignore[arg-type]


def is_free(jobs: Jobs) -> bool:
    """Tell whether a look could be started."""
    jobs.reap()
    return not jobs.is_busy("look")


def test_a_job_that_does_its_work_ends_without_fault(loop: Loop) -> None:
    ends: list[Outcome] = []
    messages: list[Message] = []
    cleaned: list[bool] = []

    def on_message(message: Message, descriptor: int | None, job: Job) -> None:
        messages.append(message)
        job.go_on()

    def run(reporter: Reporter) -> None:
        reporter.send({"n": 1})
        reporter.wait_for_go()
        reporter.send({"n": 2})

    jobs = Jobs(loop)
    started = work(
        run, ends, run_until(loop), on_message=on_message, clean_up=lambda: cleaned.append(not ends)
    )
    assert jobs.start("look", started) is not None
    loop.run()
    assert (ends, messages, cleaned) == ([Outcome()], [{"n": 1}, {"n": 2}], [True])
    assert eventually(lambda: is_free(jobs))


def test_a_late_job_is_given_up_and_the_loop_goes_on(loop: Loop) -> None:
    ends: list[Outcome] = []
    jobs = Jobs(loop)
    jobs.start("look", work(hang, ends, run_until(loop), deadline_s=0.2))
    began = time.monotonic()
    loop.run()
    assert time.monotonic() - began < 20
    assert ends == [Outcome(fault="no answer within 0.2 s", is_late=True)]


def test_only_one_child_of_a_kind_is_ever_there(loop: Loop) -> None:
    """M11: a child that cannot be killed must not be joined by another one every second."""
    ends: list[Outcome] = []
    cleaned: list[str] = []
    jobs = Jobs(loop)
    first = jobs.start("look", work(hang, ends, run_until(loop)))
    assert first is not None
    for kind, may in (("look", False), ("other", True)):
        job = jobs.start(kind, work(hang, ends, loop.stop, clean_up=lambda kind=kind: cleaned.append(kind)))
        assert (job is not None) is may
    assert cleaned == ["look"]
    jobs.cancel("look")
    jobs.cancel("other")
    assert ends == []
    assert eventually(lambda: is_free(jobs))
    assert jobs.start("look", work(hang, ends, loop.stop)) is not None
    jobs.cancel("look")


def is_empty(jobs: Jobs) -> bool:
    """Tell whether all children have ended."""
    jobs.reap()
    return jobs.children == 0


def test_volumes_share_the_room_for_their_children_and_who_hangs_leaves_some(loop: Loop) -> None:
    """Each takes a few megabytes, and a pod may have sixty-four volumes: all at once would end the keeper for its memory."""
    room = Room(4)
    volumes = [Jobs(loop, room) for _ in range(4)]

    def may(volume: int, kind: str) -> bool:
        return volumes[volume].start(kind, work(hang, [], loop.stop)) is not None

    assert (may(0, "show"), may(0, "probe")) == (True, True)
    assert not may(0, "inspect"), "half of the room is its to fill, no more"
    assert may(1, "show")
    assert not may(1, "probe")
    assert may(2, "show")
    assert not may(3, "show"), "there is no room for more than four"
    volumes[0].cancel("probe")
    assert eventually(lambda: may(3, "show"))
    for volume in volumes:
        for kind in ("show", "probe"):
            volume.cancel(kind)
    for volume in volumes:
        assert eventually(partial(is_empty, volume))


def test_a_child_that_is_killed_is_a_fault_not_an_end(loop: Loop) -> None:
    ends: list[Outcome] = []
    jobs = Jobs(loop)

    def suicide(reporter: Reporter) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    jobs.start("look", work(suicide, ends, run_until(loop)))
    loop.run()
    assert ends == [Outcome(fault="its process ended early")]


def test_timers_fire_in_their_order_and_not_when_cancelled(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired: list[str] = []
    now = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)  # all are set at one moment
        loop.call_later(0.05, lambda: fired.append("second"))
        loop.call_later(0.01, lambda: fired.append("first"))
        cancelled = loop.call_later(0.03, lambda: fired.append("never"))
        loop.call_later(0.02, cancelled.cancel)
        loop.call_later(0.1, loop.stop)
    loop.run()
    assert fired == ["first", "second"]


def test_a_callback_may_end_what_another_was_about_to_read(loop: Loop) -> None:
    pipes = [os.pipe() for _ in range(2)]
    reads: list[int] = []

    def read(number: int) -> None:
        reads.append(number)
        for reader, _ in pipes:
            loop.unwatch(reader)
        loop.stop()

    for number, (reader, writer) in enumerate(pipes):
        os.write(writer, b"x")
        loop.watch(reader, lambda number=number: read(number))  # type: ignore[misc]
    loop.run()
    assert len(reads) == 1
    for pipe in pipes:
        for descriptor in pipe:
            os.close(descriptor)
