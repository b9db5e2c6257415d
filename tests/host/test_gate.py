"""A volume's socket by itself."""

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidemount.host import wire
from sidemount.host.handover import Bye, Heartbeat, Hello, Message, Stop, Stopping, encode
from sidemount.host.limited_log import LimitedLog
from sidemount.host.logs import log
from sidemount.host.loop import Loop
from sidemount.host.volume_gate import Gate, Introduction, Peer


class Desk:
    """A keeper that notes who asks."""

    def __init__(self) -> None:
        self.probed: list[Peer] = []

    def on_probe(self, peer: Peer) -> None:
        self.probed.append(peer)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


@pytest.fixture
def loop() -> Iterator[Loop]:
    """The keeper's loop."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def no_more_descriptors() -> Iterator[None]:
    """Every descriptor that this process may have is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def run_for(loop: Loop, seconds: float) -> float:
    """Run the loop for that long and return the CPU time that it took, in seconds."""
    loop.call_later(seconds, loop.stop)
    began = time.process_time()
    loop.run()
    return time.process_time() - began


def run_until_one(loop: Loop, peers: list[Peer]) -> Peer:
    """Run the loop until there is a peer, and return it."""
    until = time.monotonic() + 15
    while not peers:
        assert time.monotonic() < until, "nobody was noted"
        run_for(loop, 0.05)
    (peer,) = peers
    return peer


def test_a_keeper_out_of_descriptors_neither_spins_nor_forgets_who_waits(
    loop: Loop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    desk: Any = Desk()
    gate = Gate(loop, str(tmp_path), os.geteuid(), desk, LimitedLog(log("keeper")))
    guest = wire.dial(str(tmp_path), timeout_s=5)
    wire.send(guest, wire.Kind.PROBE)
    request.getfixturevalue("no_more_descriptors")
    assert run_for(loop, 1.0) < 0.5
    assert desk.probed == []
    with socket.socket(fileno=guest.detach()):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft + 64, hard))
        gate.release(run_until_one(loop, desk.probed))
    gate.close()


def test_the_last_words_of_who_has_ended_are_heard_before_its_end(loop: Loop, tmp_path: Path) -> None:
    """A daemon says goodbye and exits; both are there to be read when the keeper looks, and its end may come first."""
    heard: list[object] = []

    class Listener(Desk):
        def on_introduction(self, introduction: Introduction) -> None:
            peers.append(introduction.peer)

        def on_message(self, peer: Peer, message: Message, descriptor: int | None) -> None:
            heard.append(message)

        def on_closed(self, peer: Peer) -> None:
            heard.append("closed")

    peers: list[Peer] = []
    desk: Any = Listener()
    gate = Gate(loop, str(tmp_path), os.geteuid(), desk, LimitedLog(log("keeper")))
    with contextlib.closing(wire.dial(str(tmp_path), timeout_s=5)) as guest:
        wire.send(guest, *encode(Hello(takeover=True)))
        peer = run_until_one(loop, peers)
        for message in (Heartbeat(), Stopping(), Bye(clean=True)):
            wire.send(guest, *encode(message))
        gate.hear_out(peer)
        assert heard == [Heartbeat(), Stopping(), Bye(clean=True)]
        assert peer.send(Stop())  # which the guest does not read any more: its end is a reset then
        wire.send(guest, *encode(Bye(clean=False)))
    gate.hear_out(peer)
    assert heard[3:] == [Bye(clean=False), "closed"]
    gate.hear_out(peer)
    assert len(heard) == 5
    if peer.pidfd is not None:
        os.close(peer.pidfd)
    gate.close()
