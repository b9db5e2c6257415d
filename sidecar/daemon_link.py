"""A daemon's line to its keeper. The keeper may die and come back at any moment; the daemon serves on meanwhile."""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sidemount.host import handover, wire
from sidemount.host.handover import FromDaemon, Hello, Message, Refused
from sidemount.host.logs import EventLog
from sidemount.host.loop import Loop, Timer
from sidemount.model.errors import BadMessage

_DIAL_TIMEOUT_S = 0.5
_RETRY_FIRST_S = 0.05
_RETRY_MOST_S = 0.5
_QUEUE_RETRY_S = 0.01
_QUEUE_MAX = 8192
_FRAMES_AT_ONCE = 256


class LinkOwner(Protocol):
    """Who has the line."""

    def introduce(self) -> tuple[Hello, int | None]:
        """Return who we are now, and the descriptor that we bring back if we serve already."""
        ...

    def on_message(self, message: Message, descriptor: int | None) -> None:
        """Take a message of the keeper's. The descriptor is ours to close."""
        ...

    def on_refused(self, refused: Refused) -> None:
        """Learn that the keeper does not take us now. We go on asking."""
        ...


class KeeperLink:
    """Dials until it is taken, again whenever the line breaks, and never waits for anybody."""

    def __init__(self, loop: Loop, run_dir: str, owner: LinkOwner, log: EventLog) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._owner = owner
        self._log = log
        self._connection: socket.socket | None = None
        self._queue: deque[tuple[FromDaemon, Callable[[], int | None] | None]] = deque()
        self._timer: Timer | None = None
        self._flush: Timer | None = None
        self._pause_s = _RETRY_FIRST_S
        self._fault = ""
        self._heard_at = time.monotonic()

    @property
    def fault(self) -> str:
        """Return why there is no line, "" if there is one."""
        return self._fault

    def alone_s(self, now: float) -> float:
        """Return for how long no keeper has been there, taking us or not."""
        return 0.0 if self._connection is not None else now - self._heard_at

    def dial(self) -> None:
        """Call the keeper now."""
        self._cancel_timer()
        if self._connection is not None:
            return
        try:
            connection = wire.dial(self._run_dir, timeout_s=_DIAL_TIMEOUT_S)
        except OSError as error:
            self._fault = f"no keeper at {self._run_dir}: {error}"
            self._dial_later()
            return
        connection.setblocking(False)
        self._connection = connection
        self._fault = ""
        self._loop.watch(connection, self._read)
        hello, descriptor = self._owner.introduce()
        self._send(hello, descriptor)

    def be_content(self) -> None:
        """Note that the keeper has taken us: the next time the line breaks we call again at once."""
        self._pause_s = _RETRY_FIRST_S

    def tell(
        self,
        message: FromDaemon,
        descriptor: Callable[[], int | None] | None = None,
        *,
        droppable: bool = False,
    ) -> None:
        """Send a message, later if the keeper is slow to read; not at all if there is no line.

        `descriptor` is asked when the message goes out, and None means that it need not go any more.
        """
        if self._connection is None or (droppable and self._queue):
            return
        self._queue.append((message, descriptor))
        self._send_queue()

    def hang_up(self) -> None:
        """Break the line, and call again after a while."""
        if self._connection is not None:
            self._loop.unwatch(self._connection)
            self._connection.close()
            self._connection = None
            self._heard_at = time.monotonic()
            self._queue.clear()
        self._dial_later()

    def hang_up_later(self, delay_s: float) -> None:
        """Break this line after a while, unless the keeper does before."""
        connection = self._connection

        def late() -> None:
            if self._connection is connection:
                self.hang_up()

        self._loop.call_later(delay_s, late)

    def close(self) -> None:
        """Send what is queued if that goes at once, and break the line for good."""
        self._send_queue()
        self.hang_up()
        self._cancel_timer()

    def _send_queue(self) -> None:
        while self._queue and self._connection is not None:
            message, ask = self._queue[0]
            descriptor = ask() if ask is not None else None
            if ask is not None and descriptor is None:
                self._queue.popleft()
                continue
            try:
                wire.send(self._connection, *handover.encode(message), descriptor)
            except BlockingIOError:
                self._flush_later()
                return
            except OSError:
                self._queue.clear()
                self._read()  # what the keeper has said last, and then the end
                return
            self._queue.popleft()

    def _flush_later(self) -> None:
        if len(self._queue) > _QUEUE_MAX:
            self._broken("the keeper reads nothing")
        elif self._flush is None:

            def flush() -> None:
                self._flush = None
                self._send_queue()

            self._flush = self._loop.call_later(_QUEUE_RETRY_S, flush)

    def _send(self, hello: Hello, descriptor: int | None) -> None:
        if self._connection is None:
            return
        try:
            wire.send(self._connection, *handover.encode(hello), descriptor)
        except OSError as error:
            self._broken(error)

    def _read(self) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            if self._connection is None:
                return
            try:
                frame = wire.receive(self._connection)
                if frame is None:
                    self._broken("the keeper has closed the connection")
                    return
                with contextlib.closing(frame):
                    message = handover.decode(frame.kind, frame.body)
                    if handover.carries_descriptor(message) != (frame.descriptor is not None):
                        raise BadMessage(f"{frame.kind.name}: descriptor missing, or one too many")
                    descriptor = None if frame.descriptor is None else frame.take_descriptor()
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the keeper has closed without reading all; what it said before that comes next
            except (OSError, BadMessage) as error:
                self._broken(error)
                return
            self._take(message, descriptor)

    def _take(self, message: Message, descriptor: int | None) -> None:
        if isinstance(message, Refused):
            self._fault = f"{message.reason.value}: {message.detail}"
            self.hang_up()
            self._owner.on_refused(message)
        else:
            self._owner.on_message(message, descriptor)

    def _broken(self, why: object) -> None:
        self._log.warning("keeper_lost", fault=str(why))
        self._fault = str(why)
        self.hang_up()

    def _dial_later(self) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(self._pause_s, self.dial)
        self._pause_s = min(_RETRY_MOST_S, self._pause_s * 2)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
