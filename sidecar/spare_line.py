"""A serving process's line to its first process: orders come, reports go, whatever the serving thread waits for."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidecar.daemon_work import Work
from sidecar.registrar import Registrar
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
    Numbers,
    Predecessor,
    Ready,
    Registered,
    Registers,
    Serve,
    Source,
    Stop,
    Usage,
)
from sidemount.host.readiness import wait_readable
from sidemount.model.errors import BadMessage
from sidemount.model.object_numbers import known_numbers

_LOG = logging.getLogger(__name__)
_CURIOUS_S = 2.0
_LOOK_EVERY_S = 0.01
_SEND_TIMEOUT_S = 5.0
_NUMBERS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a waiting process is told when its turn has come. `kept` are descriptors that outlive it, by key.

    `predecessor` is None if nobody here knows how that has ended: its whole container has. `source` is a descriptor of the source's
    directory, -1 if it is to be opened by its path.
    """

    serve: Serve
    device: int
    kept: dict[int, int]
    predecessor: Predecessor | None = None
    source: int = -1


def wait_for_turn(control: socket.socket) -> Turn | None:
    """Wait until it is this process's turn; None if it never will be. Raises BadMessage."""
    received = receive(control)
    predecessor = None
    if received is not None and isinstance(received[0], Predecessor):
        predecessor = received[0]
        received = receive(control)
    source = -1
    if received is not None and isinstance(received[0], Source) and received[1] is not None:
        source = received[1]
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
    return Turn(serve, device, kept, predecessor, source)


class SpareLine:
    """The line of a process, in a thread that is there before its turn has come. Reports may be made from any thread."""

    def __init__(self, control: socket.socket, work: Work, *, end: Callable[[], None]) -> None:
        """`end` is called in the line's thread when the process is to finish what it works on and end."""
        self._control = control
        self._work = work
        self._end = end
        self._mutex = threading.Lock()
        self._turn = threading.Event()
        self._beat_s = 1.0
        self._generation = 0
        self._process = int.from_bytes(os.urandom(8)) >> 1  # tells our numbers from those of other processes
        self._numbers: Mapping[str, int] | None = None
        self.is_handing_over = False
        self.registrar = Registrar(self._send)
        threading.Thread(target=self._run, name="line", daemon=True).start()

    def begin(self, serve: Serve) -> None:
        """Begin to listen and to beat."""
        self._control.settimeout(_SEND_TIMEOUT_S)
        self._beat_s = serve.heartbeat_ms / 1000
        self._generation = serve.generation
        self._send(Heartbeat())  # a process that is stopped would be given its turn in vain
        self._turn.set()

    def ready(self) -> None:
        """Tell that INIT is answered."""
        self._send(Ready(generation=self._generation))
        self.tell_numbers()  # nothing has been counted yet: what is from now on is news

    def tell_condition(self, *, takeover: bool, state: str) -> None:
        """Tell whether we can be succeeded."""
        self._send(Condition(takeover=takeover, state=state))

    def tell_progress(self) -> None:
        """Tell at once how much has been done."""
        self._send(Heartbeat(handled=self._work.handled, in_progress=self._work.in_progress))
        if self._work.open_handles is not None:
            self._send(Usage(open_handles=len(self._work.open_handles)))

    def tell_numbers(self) -> None:
        """Tell what the filesystem has counted, if it counts and that has changed."""
        if self._work.numbers is None:
            return
        try:
            found = {name: count for name, count in known_numbers(self._work.numbers()).items() if count}
        except Exception:
            self._work.numbers = None  # the line is worth more
            _LOG.error("numbers_lost", exc_info=True)
            return
        if found != self._numbers:
            self._numbers = found
            self._send(Numbers(process=self._process, values=found))

    def fail(self, detail: str, hint: str, *, lasting: bool) -> None:
        """Tell why we cannot serve."""
        self._send(Failed(detail=detail[:4000], hint=hint[:4000], lasting=lasting))

    def say_bye(self, *, clean: bool) -> None:
        """Tell that we end."""
        self.tell_numbers()
        self._send(Bye(clean=clean))

    def _run(self) -> None:
        self._turn.wait()
        now = time.monotonic()
        next_beat, curious_until = now + self._beat_s, now + _CURIOUS_S
        next_numbers = now + _NUMBERS_EVERY_S
        while True:
            # That the first request is answered is told soon: who dies after that has not died in vain.
            is_curious = now < curious_until and not self._work.handled
            until = min(next_beat, now + _LOOK_EVERY_S) if is_curious else next_beat
            if wait_readable(self._control, until - now):
                self._listen()
            now = time.monotonic()
            if now >= next_beat or (is_curious and self._work.handled):
                self.tell_progress()
                next_beat = now + self._beat_s
            if now >= next_numbers:
                self.tell_numbers()
                next_numbers = now + _NUMBERS_EVERY_S

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
            case Registers():
                self.registrar.keeper_registers()
            case Registered():
                self.registrar.take(received[0])

    def _send(self, message: FromDaemon, descriptor: int | None = None) -> None:
        with self._mutex, contextlib.suppress(OSError):
            wire.send(self._control, *handover.encode(message), descriptor)
