"""A volume's socket by itself."""

import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidemount.host import wire
from sidemount.host.limited_log import LimitedLog
from sidemount.host.logs import log
from sidemount.host.loop import Loop
from sidemount.host.volume_gate import Gate, Peer


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
        run_for(loop, 0.5)
        (peer,) = desk.probed
        gate.release(peer)
    gate.close()
