"""A serving process's line to its first process: orders come, reports go, whatever the serving thread waits for."""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.daemon_work import Work
from sidecar.zygote_children import receive
from sidemount.host import handover, wire
from sidemount.host.handover import (
    Bye,
    Condition,
    Failed,
    FromDaemon,
    HandOver,
    Heartbeat,
    Kept,
    Ready,
    Serve,
    Stop,
)
from sidemount.model.errors import BadMessage

_EARLY_BEATS_S = (0.01, 0.05, 0.2)  # soon after it serves: who dies later than that has done something
_SEND_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a waiting process is told when its turn has come. `kept` are descriptors that outlive it, by key."""

    serve: Serve
    device: int
    kept: dict[int, int]


def wait_for_turn(control: socket.socket) -> Turn | None:
    """Wait until it is this process's turn; None if it never will be. Raises BadMessage."""
    received = receive(control)
    if received is None:
        return None
    serve, device = received
    if not isinstance(serve, Serve) or device is None:
        raise BadMessage(f"{type(serve).__name__}: not an order to serve")
    kept: dict[int, int] = {}
    while len(kept) < serve.kept:
        received = receive(control)
        if received is None:
            return None
        message, descriptor = received
        if not isinstance(message, Kept) or descriptor is None:
            raise BadMessage(f"{type(message).__name__}: not a descriptor that was kept")
        kept[message.key] = descriptor
    return Turn(serve, device, kept)


class SpareLine:
    """The line of a process whose turn has come. Reports may be made from any thread."""

    def __init__(self, control: socket.socket, turn: Turn, work: Work, *, end: Callable[[], None]) -> None:
        """`end` is called in the line's thread when the process is to finish what it works on and end."""
        self._control = control
        self._serve = turn.serve
        self._work = work
        self._end = end
        self._mutex = threading.Lock()
        self._early: list[float] = []
        self._wake_reader, self._wake_writer = socket.socketpair()
        self.is_handing_over = False
        control.settimeout(_SEND_TIMEOUT_S)

    def start(self) -> None:
        """Begin to listen and to beat."""
        threading.Thread(target=self._run, name="line", daemon=True).start()

    def ready(self) -> None:
        """Tell that INIT is answered."""
        now = time.monotonic()
        self._early = [now + delay_s for delay_s in _EARLY_BEATS_S]
        self._send(Ready(generation=self._serve.generation))
        self._wake_writer.send(b"x")

    def tell_condition(self, *, takeover: bool, state: str) -> None:
        """Tell whether we can be succeeded."""
        self._send(Condition(takeover=takeover, state=state))

    def fail(self, detail: str, hint: str, *, lasting: bool) -> None:
        """Tell why we cannot serve."""
        self._send(Failed(detail=detail[:4000], hint=hint[:4000], lasting=lasting))

    def say_bye(self, *, clean: bool) -> None:
        """Tell that we end."""
        self._send(Bye(clean=clean))

    def _run(self) -> None:
        beat_s = self._serve.heartbeat_ms / 1000
        next_beat = 0.0
        while True:
            now = time.monotonic()
            if now >= next_beat:
                self._send(Heartbeat(handled=self._work.handled, in_progress=self._work.in_progress))
                self._early = [due for due in self._early if due > now]
                next_beat = min([now + beat_s, *self._early])
            sources = (self._control, self._wake_reader)
            readable, _, _ = select.select(sources, [], [], max(0.0, next_beat - now))
            if self._control in readable:
                self._listen()
            if self._wake_reader in readable:
                self._wake_reader.recv(16)
                next_beat = 0.0

    def _listen(self) -> None:
        received = receive(self._control)
        if received is None:
            os._exit(0)  # nobody is there to continue after us, or to tell the keeper
        match received[0]:
            case Stop():
                self._end()
            case HandOver():
                self.is_handing_over = True
                self._end()

    def _send(self, message: FromDaemon) -> None:
        with self._mutex, contextlib.suppress(OSError):
            wire.send(self._control, *handover.encode(message))
