"""A daemon's line to its keeper, in a thread of its own: it goes on whatever the serving thread waits for.

The keeper may die and come back at any moment. The daemon serves on meanwhile, and hands its descriptor to the new one.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.daemon_work import Work
from sidemount.host import handover, wire
from sidemount.host.handover import (
    Adopted,
    Bye,
    FromDaemon,
    Heartbeat,
    Hello,
    Message,
    Ready,
    Refusal,
    Refused,
    Serve,
    Stop,
    Stopping,
)
from sidemount.host.logs import EventLog
from sidemount.model.errors import BadMessage, HostFailure

_DIAL_TIMEOUT_S = 5.0
_RETRY_FIRST_S = 0.05
_RETRY_MOST_S = 0.5
_REPORT_EVERY_S = 10.0
_SEND_TIMEOUT_S = 5.0
_STOPPING_HEARTBEAT_S = 0.2


@dataclass(frozen=True, slots=True)
class Order:
    """What the keeper gave: what to serve and the descriptor, -1 for a client that mounts by itself."""

    serve: Serve
    device: int
    connection: socket.socket


def obtain_order(
    run_dir: str, *, takeover: bool, log: EventLog, pause: Callable[[float], bool]
) -> Order | None:
    """Ask the keeper for work until there is some; None if we are told to end before.

    `pause` waits that many seconds and returns whether we were told to end meanwhile. Raises BadMessage if the keeper
    speaks another contract, HostFailure if it refuses who we are.
    """
    pause_s = _RETRY_FIRST_S
    started = reported = time.monotonic()
    while True:
        try:
            return _ask(run_dir, takeover=takeover)
        except _TryAgain as error:
            now = time.monotonic()
            if now - reported >= _REPORT_EVERY_S:
                reported = now
                log.info("waiting_for_keeper", elapsed_s=round(now - started, 1), fault=str(error))
        if pause(pause_s):
            return None
        pause_s = min(_RETRY_MOST_S, pause_s * 2)


class KeeperLink:
    """The line once work is given. `run` is the thread's; everything else may be called from any."""

    def __init__(
        self,
        run_dir: str,
        order: Order,
        work: Work,
        *,
        takeover: bool,
        log: EventLog,
        stop: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> None:
        """`stop` is called, in the link's thread, when the keeper lets the daemon end, or `is_over`: the mount is gone."""
        self._run_dir = run_dir
        self._serve = order.serve
        self._work = work
        self._takeover = takeover
        self._log = log
        self._stop = stop
        self._is_mount_gone = is_over
        self._connection: socket.socket | None = order.connection
        self._descriptor = -1
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._is_stopping = False
        self._is_over = False
        self._farewell: Bye | None = None
        self._refusal: Refused | None = None
        self._retry_at = 0.0
        self._pause_s = _RETRY_FIRST_S
        self._thread = threading.Thread(target=self._run, name="keeper-link", daemon=True)

    @property
    def is_linked(self) -> bool:
        """Tell whether a keeper listens at present."""
        return self._connection is not None

    def start(self, descriptor: int) -> None:
        """Tell the keeper that we serve, and keep the line. `descriptor` is what a new keeper is handed."""
        self._descriptor = descriptor
        self._send(Ready(generation=self._serve.generation))
        self._thread.start()

    def announce_stopping(self) -> None:
        """Tell the keeper that we were told to end; it decides when."""
        self._is_stopping = True
        self._wake()

    def say_bye(self, *, clean: bool, timeout_s: float) -> None:
        """Tell the keeper that we end, and end the line."""
        self._farewell = Bye(clean=clean)
        self._is_over = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._wake_reader.close()
            self._wake_writer.close()

    def _run(self) -> None:
        announced = False
        next_beat = time.monotonic()
        while not self._is_over:
            now = time.monotonic()
            if self._is_stopping and not announced and self._connection is not None:
                announced = self._send(Stopping())
            if self._connection is None and now >= self._retry_at:
                self._reconnect()
                announced = False
            if now >= next_beat:
                self._send(Heartbeat(handled=self._work.handled, in_progress=self._work.in_progress))
                next_beat = now + self._beat_s()
                if self._is_mount_gone():
                    self._stop()
            self._wait(next_beat)
        if self._farewell is not None:
            self._send(self._farewell)
        self._disconnect()

    def _wait(self, until: float) -> None:
        if self._connection is None:
            until = min(until, self._retry_at)
        sources = [self._wake_reader] + ([self._connection] if self._connection is not None else [])
        readable, _, _ = select.select(sources, [], [], max(0.0, until - time.monotonic()))
        if self._wake_reader in readable:
            self._wake_reader.recv(64)
        if self._connection is not None and self._connection in readable:
            self._read()

    def _read(self) -> None:
        if self._connection is None:
            return
        try:
            message, device = _receive(self._connection)
        except (BadMessage, _TryAgain) as error:
            self._log.warning("keeper_lost", fault=str(error))
            self._disconnect()
            return
        if device is not None:
            os.close(device)
        match message:
            case Stop():
                self._log.info("keeper_lets_go")
                self._stop()
            case Adopted():
                self._log.info("keeper_took_descriptor_back", generation=message.generation)
                self._pause_s = _RETRY_FIRST_S
                self._refusal = None
            case Refused():
                self._refused(message)
            case _:
                self._log.warning("message_ignored", kind=type(message).__name__)

    def _refused(self, refused: Refused) -> None:
        if refused != self._refusal:  # asked twice a second, it would fill the log
            self._log.info("keeper_refused", reason=refused.reason.value, detail=refused.detail)
            self._refusal = refused
        self._disconnect()
        if refused.reason is Refusal.STALE and not self._serve.spec.descriptor:
            self._stop()  # our mount is not there any more; only a new client makes a new one

    def _reconnect(self) -> None:
        """Hand the descriptor to whoever keeps the volume now."""
        has_device = self._serve.spec.descriptor
        hello = Hello(
            takeover=self._takeover,
            hands_back=has_device,
            generation=self._serve.generation,
            init=self._serve.init if has_device else b"",
        )
        try:
            self._connection = wire.dial(self._run_dir, timeout_s=_DIAL_TIMEOUT_S)
        except OSError:
            self._postpone()
            return
        self._connection.settimeout(_SEND_TIMEOUT_S)
        self._postpone()
        self._send(hello, self._descriptor if has_device else None)

    def _postpone(self) -> None:
        self._retry_at = time.monotonic() + self._pause_s
        self._pause_s = min(_RETRY_MOST_S, self._pause_s * 2)

    def _send(self, message: FromDaemon, descriptor: int | None = None) -> bool:
        if self._connection is None:
            return False
        try:
            wire.send(self._connection, *handover.encode(message), descriptor)
        except OSError:
            self._disconnect()
            return False
        return True

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _beat_s(self) -> float:
        beat_s = self._serve.heartbeat_ms / 1000
        return min(beat_s, _STOPPING_HEARTBEAT_S) if self._is_stopping else beat_s

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"x")


class _TryAgain(Exception):
    """The keeper is not there, or has no work yet."""


def _ask(run_dir: str, *, takeover: bool) -> Order:
    try:
        connection = wire.dial(run_dir, timeout_s=_DIAL_TIMEOUT_S)
    except OSError as error:
        raise _TryAgain(f"no keeper at {run_dir}: {error}") from error
    try:
        connection.settimeout(_SEND_TIMEOUT_S)
        try:
            wire.send(connection, *handover.encode(Hello(takeover=takeover)))
        except OSError as error:
            raise _TryAgain(str(error)) from error
        message, device = _receive(connection)
        match message:
            case Serve():
                return Order(message, -1 if device is None else device, connection)
            case Refused(reason=Refusal.IDENTITY | Refusal.PROTOCOL):
                raise HostFailure(f"the keeper refuses us ({message.reason.value}): {message.detail}")
            case Refused():
                raise _TryAgain(f"{message.reason.value}: {message.detail}")
            case _:
                raise BadMessage(f"the keeper answers {type(message).__name__}")
    except BaseException:
        connection.close()
        raise


def _receive(connection: socket.socket) -> tuple[Message, int | None]:
    """Return the keeper's next message, and its descriptor. Raises BadMessage, _TryAgain at the end of the line."""
    try:
        frame = wire.receive(connection)
    except OSError as error:
        raise _TryAgain(f"the keeper does not answer: {error}") from error
    if frame is None:
        raise _TryAgain("the keeper has closed the connection")
    try:
        message = handover.decode(frame.kind, frame.body)
        if handover.carries_descriptor(message) != (frame.descriptor is not None):
            raise BadMessage(f"{frame.kind.name}: descriptor missing, or one too many")
        return message, None if frame.descriptor is None else frame.take_descriptor()
    finally:
        frame.close()
