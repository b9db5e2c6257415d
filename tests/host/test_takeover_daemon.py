"""When a daemon of several processes is gone: when all of it is, and not before."""

import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sidemount.host import handover, volume_daemon, wire
from sidemount.host.handover import Heartbeat, Hello, Kept, Kill, Stop
from sidemount.host.loop import Loop
from sidemount.host.pidfd import pidfd_open
from sidemount.host.volume_daemon import Daemon, DaemonEvents
from sidemount.host.volume_gate import Introduction, Peer
from sidemount.host.volume_legacy import Legacy
from sidemount.model.errors import HostFailure
from tests.host.keeper_pod import is_alive
from tests.host.mount_node import eventually


class NoGate:
    """Stands in for the gate, of which a daemon needs only this."""

    def hear_out(self, peer: Peer) -> None:
        """Nothing was said."""

    def release(self, peer: Peer) -> None:
        """Close a peer."""
        peer.connection.close()


@dataclass
class Stage:
    """A daemon of a first process and one that serves, and what is told of it."""

    loop: Loop = field(default_factory=Loop)
    told: list[str] = field(default_factory=list)
    patience_s: float = 0.4
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.theirs.settimeout(2)
        self.first = self.process()
        peer = Peer(ours, self.first.pid)
        peer.pidfd = pidfd_open(self.first.pid)
        gate: Any = NoGate()
        self.daemon = Daemon(
            self.loop,
            gate,
            Introduction(peer, Hello(takeover=True), None),
            DaemonEvents(
                gone=lambda: self.told.append("gone"), unkillable=lambda: self.told.append("unkillable")
            ),
            silent_after_s=30,
            patience_s=self.patience_s,
            restart_s=2.0,
        )

    def process(self) -> "subprocess.Popen[bytes]":
        """Start a process."""
        self.processes.append(subprocess.Popen(["sleep", "1000"]))
        return self.processes[-1]

    def serve(self, generation: int) -> "subprocess.Popen[bytes]":
        """Have a process serve."""
        process = self.process()
        self.daemon.succeed(generation, pidfd_open(process.pid))
        return process

    def turn(self, seconds: float = 0.2) -> list[str]:
        """Let the loop run for a while and return all that was told."""
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run()
        return self.told

    def turn_until_told(self) -> list[str]:
        """Let the loop run until anything was told, and return all that was."""
        until = time.monotonic() + 15
        while not self.turn(0.05):
            assert time.monotonic() < until, "nothing is told"
        return self.told

    def heard(self) -> handover.Message:
        """Return what the daemon was told."""
        frame = wire.receive(self.theirs)
        assert frame is not None
        return handover.decode(frame.kind, frame.body)


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A daemon whose first process lives. Its parameter: how long one that is killed may take to end."""
    stage = Stage(patience_s=getattr(request, "param", 0.4))
    yield stage
    stage.daemon.drop()
    stage.theirs.close()
    for process in stage.processes:
        process.kill()
        process.wait(20)
    stage.loop.close()


patient = pytest.mark.parametrize("stage", [30.0], indirect=True, ids=["patient"])


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process, and let nobody reap it yet."""
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_it_is_gone_when_the_only_process_is(stage: Stage) -> None:
    end(stage.first)
    assert stage.turn() == ["gone"]


def test_it_is_not_gone_while_the_process_that_serves_lives(stage: Stage) -> None:
    """Whoever gets the connection too early reads it beside another."""
    serving = stage.serve(1)
    end(stage.first)
    assert stage.turn() == []
    end(serving)
    assert stage.turn() == ["gone"]


def test_a_process_that_outlives_the_first_for_too_long_is_told(stage: Stage) -> None:
    stage.serve(1)
    end(stage.first)
    assert stage.turn(0.7) == ["unkillable"]


def test_the_death_of_one_that_serves_alone_is_no_end(stage: Stage) -> None:
    end(stage.serve(1))
    assert stage.turn() == []
    serving = stage.serve(2)
    end(stage.first)
    end(serving)
    assert stage.turn() == ["gone"]


def test_a_closed_line_ends_nothing(stage: Stage) -> None:
    serving = stage.serve(1)
    stage.daemon.on_closed()
    assert stage.turn(0.5) == []
    end(stage.first)
    end(serving)
    assert stage.turn() == ["gone"]


def test_one_that_said_goodbye_and_hung_up_is_gone_though_its_process_lingers(stage: Stage) -> None:
    stage.daemon.said_bye = True
    stage.daemon.on_closed()
    assert stage.turn(1.3) == ["gone"]


def test_one_that_said_goodbye_is_not_gone_while_another_process_of_it_serves(stage: Stage) -> None:
    stage.serve(1)
    stage.daemon.said_bye = True
    stage.daemon.on_closed()
    assert stage.turn(1.3) == []


def test_the_first_process_is_asked_to_kill_and_a_successor_settles_it(stage: Stage) -> None:
    stage.serve(4)
    stage.daemon.kill()
    assert stage.heard() == Kill(generation=4)
    stage.serve(5)
    assert stage.turn(0.7) == []
    assert is_alive(stage.first.pid)


def test_one_that_is_asked_in_vain_is_told_to_be_unkillable(stage: Stage) -> None:
    stage.serve(4)
    stage.daemon.kill()
    assert stage.turn(0.7) == ["unkillable"]


@patient
def test_a_daemon_of_one_process_is_killed(stage: Stage) -> None:
    stage.daemon.kill()
    assert stage.turn_until_told() == ["gone"]
    assert stage.first.wait(20) == -signal.SIGKILL


@patient
def test_when_the_first_process_is_silent_too_all_are_killed(stage: Stage) -> None:
    serving = stage.serve(1)
    stage.daemon.watchdog.beat(-1000.0, Heartbeat())
    stage.daemon.kill()
    assert stage.turn_until_told() == ["gone"]
    assert (stage.first.wait(20), serving.wait(5)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_descriptors_of_predecessors_are_not_kept(stage: Stage) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for generation in range(1, 40):
        end(stage.serve(generation))
    stage.turn()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_dropped_daemon_is_heard_of_no_more(stage: Stage) -> None:
    serving = stage.serve(1)
    stage.daemon.drop()
    end(stage.first)
    end(serving)
    assert stage.turn() == []


def test_a_stop_is_said(stage: Stage) -> None:
    stage.daemon.stop()
    assert stage.heard() == Stop()


# What is kept for a successor ----------------------------------------------------------------------------


def test_what_is_kept_is_given_and_stays_kept(stage: Stage) -> None:
    legacy = Legacy()
    reader, writer = socket.socketpair()
    assert legacy.keep(7, reader.detach())
    for _ in range(2):
        assert legacy.give(stage.daemon.peer)
        frame = wire.receive(stage.theirs)
        assert frame is not None
        assert handover.decode(frame.kind, frame.body) == Kept(key=7)
        descriptor = frame.take_descriptor()
        with socket.socket(fileno=descriptor) as copy:
            copy.send(b"x")
        assert writer.recv(1) == b"x"
    legacy.clear()
    assert writer.recv(1) == b"", "and is let go in the end"
    writer.close()


def test_only_a_few_are_kept_and_each_key_once() -> None:
    before = len(os.listdir("/proc/self/fd"))
    legacy = Legacy()
    kept = [legacy.keep(key, socket.socket().detach()) for key in range(50)]
    assert kept.count(True) == len(legacy) == 8
    for _ in range(20):
        assert legacy.keep(0, socket.socket().detach())
    eventually(lambda: len(os.listdir("/proc/self/fd")) == before + 8)
    legacy.clear()
    eventually(lambda: len(os.listdir("/proc/self/fd")) == before)


def test_a_file_is_not_kept() -> None:
    """Every child of a keeper would have to close it, and that may wait for whoever serves it."""
    assert not Legacy().keep(0, os.open("/dev/null", os.O_RDONLY))


def test_what_cannot_be_killed_from_here_is_given_the_time_that_kubelet_needs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses signals to another container's processes; kubelet's liveness probe is told instead."""

    def refuse(pidfd: int, number: signal.Signals) -> None:
        raise HostFailure(f"pidfd_send_signal: {pidfd}, {number}", errno=errno.EINVAL)

    monkeypatch.setattr(volume_daemon, "pidfd_send_signal", refuse)
    stage.serve(1)
    stage.daemon.watchdog.beat(-1000.0, Heartbeat())
    assert stage.daemon.kill()
    assert stage.turn(0.8) == []
    assert stage.turn(2.0) == ["unkillable"]


@patient
def test_one_that_can_be_killed_from_here_needs_nobody_else(stage: Stage) -> None:
    stage.serve(1)
    assert not stage.daemon.kill()
    stage.daemon.watchdog.beat(-1000.0, Heartbeat())
    assert not stage.daemon.kill()
    assert stage.turn_until_told() == ["gone"]
