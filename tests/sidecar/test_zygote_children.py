"""Forked processes: what they have, how they are told things, how many wait, and how they are mourned."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial

import pytest

from sidecar.zygote_children import Child, fork_child, how_ended, receive
from sidecar.zygote_spares import Spares
from sidemount.host import handover, logs, wire
from sidemount.host.handover import Bye, HandOver, Stop
from sidemount.host.loop import Loop
from sidemount.host.pidfd import has_exited
from sidemount.model.errors import BadMessage
from tests.host.mount_node import eventually

LOG = logs.log("test")


def echo(control: socket.socket) -> int:
    """Answer every order with a Bye, and end at the end of the line."""
    while (received := receive(control)) is not None:
        if received[1] is not None:
            os.close(received[1])
        wire.send(control, *handover.encode(Bye(clean=isinstance(received[0], Stop))))
    return 7


def wait_for(child: Child) -> int:
    """Reap a child and return its status."""
    return os.waitpid(child.pid, 0)[1]


def test_a_child_hears_answers_and_ends_with_its_code() -> None:
    child = fork_child(echo)
    assert child.send(Stop())
    child.control.setblocking(True)
    assert receive(child.control) == (Bye(clean=True), None)
    child.control.shutdown(socket.SHUT_WR)
    assert how_ended(wait_for(child)) == "exit code 7"
    assert has_exited(child.pidfd)
    assert receive(child.control) is None
    child.close()


def test_a_killed_child_is_known_by_its_signal() -> None:
    child = fork_child(echo)
    child.kill()
    assert how_ended(wait_for(child)) == "signal 9 (SIGKILL)"
    assert not child.send(HandOver()), "sent to the dead"
    child.close()


def test_a_child_that_raises_ends_and_does_not_become_a_second_parent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(control: socket.socket) -> int:
        raise MemoryError

    child = fork_child(fail)
    assert how_ended(wait_for(child)) == "exit code 1"
    child.close()
    capfd.readouterr()


def test_a_child_that_does_not_read_holds_nobody_up_for_long() -> None:
    def sleep(control: socket.socket) -> int:
        time.sleep(60)
        return 0

    child = fork_child(sleep)
    began = time.monotonic()
    while child.send(Stop()):
        assert time.monotonic() - began < 30
    assert time.monotonic() - began < 10
    child.kill()
    wait_for(child)
    child.close()


def test_junk_from_a_child_is_our_error() -> None:
    def babble(control: socket.socket) -> int:
        control.send(b"junk")
        return 0

    child = fork_child(babble)
    child.control.setblocking(True)
    with pytest.raises(BadMessage):
        receive(child.control)
    wait_for(child)
    child.close()


def test_nothing_is_left_of_a_child() -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        child = fork_child(echo)
        child.kill()
        wait_for(child)
        child.close()
    assert set(os.listdir("/proc/self/fd")) <= before  # what others have left may be closed by now


def test_it_is_seen_whether_a_child_is_stopped() -> None:
    child = fork_child(echo)
    assert not child.is_stopped()
    os.kill(child.pid, signal.SIGSTOP)
    eventually(child.is_stopped)
    os.kill(child.pid, signal.SIGCONT)
    eventually(lambda: not child.is_stopped())
    child.kill()
    wait_for(child)
    assert not child.is_stopped()
    child.close()


# Those that wait ------------------------------------------------------------------------------------------


class Nursery:
    """Spares in a loop that is turned by hand."""

    def __init__(self, count: int) -> None:
        self.loop = Loop()
        self.forked: list[Child] = []
        self.fails = 0
        self.spares = Spares(self.loop, count, echo, LOG, fork=self._fork)

    def _fork(self, main: object) -> Child:
        if self.fails:
            self.fails -= 1
            raise OSError(11, "no more processes")
        self.forked.append(fork_child(echo))
        return self.forked[-1]

    def turn(self, seconds: float) -> None:
        """Let the loop run for a while."""
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run()

    def turn_until(self, waiting: int) -> None:
        """Let the loop run until so many wait."""
        until = time.monotonic() + 15
        while len(self.spares) < waiting:
            assert time.monotonic() < until, f"{len(self.spares)} wait"
            self.turn(0.02)

    def close(self) -> None:
        """End all."""
        self.spares.close()
        for child in self.forked:
            try:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        self.loop.close()


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Spares of which two should wait."""
    nursery = Nursery(2)
    yield nursery
    nursery.close()


def test_as_many_wait_as_should_and_no_more(nursery: Nursery) -> None:
    for _ in range(5):
        nursery.spares.refill(0)
    nursery.turn_until(2)
    nursery.turn(0.3)
    assert (len(nursery.spares), len(nursery.forked)) == (2, 2)


def test_one_is_taken_at_once_though_none_waits(nursery: Nursery) -> None:
    child = nursery.spares.take()
    assert child is nursery.forked[0]
    child.close()


def test_the_one_that_has_waited_longest_is_taken_and_replaced(nursery: Nursery) -> None:
    nursery.spares.refill(0)
    nursery.turn_until(2)
    child = nursery.spares.take()
    assert child is nursery.forked[0]
    nursery.spares.refill(0)
    nursery.turn_until(2)
    child.close()


def test_one_that_dies_while_it_waits_is_replaced(nursery: Nursery) -> None:
    nursery.spares.refill(0)
    nursery.turn_until(2)
    dead = nursery.forked[0]
    os.kill(dead.pid, signal.SIGKILL)
    os.waitpid(dead.pid, 0)
    assert nursery.spares.lose(dead.pid)
    assert not nursery.spares.lose(dead.pid)
    assert not nursery.spares.lose(1)
    nursery.turn_until(2)


def test_waiting_ones_that_all_die_are_not_replaced_as_fast_as_that_goes(nursery: Nursery) -> None:
    deaths = 0
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        nursery.spares.refill(0)
        nursery.turn(0.06)
        for child in nursery.forked:
            if child.control.fileno() >= 0:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                deaths += nursery.spares.lose(child.pid)
    assert deaths < 60


def test_a_fork_that_fails_is_tried_again(nursery: Nursery) -> None:
    nursery.fails = 1
    nursery.spares.refill(0)
    nursery.turn(0.3)
    assert len(nursery.spares) == 0
    nursery.turn_until(2)


def test_none_wait_after_the_end(nursery: Nursery) -> None:
    nursery.spares.refill(0)
    nursery.turn_until(2)
    waiting = list(nursery.forked)
    nursery.spares.close()
    for child in waiting:
        eventually(partial(os.waitpid, child.pid, 0))
    nursery.spares.refill(0)
    nursery.turn(0.2)
    assert len(nursery.forked) == 2
