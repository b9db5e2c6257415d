"""A keeper that does what a test says."""

import os
import socket
from pathlib import Path

from sidemount.host import handover, wire
from sidemount.host.handover import Message


class FakeKeeper:
    """Listens like a keeper."""

    def __init__(self, directory: Path) -> None:
        self.listener = wire.listen(str(directory), uid=os.geteuid())
        self.listener.setblocking(True)
        self.listener.settimeout(10)
        self._lines: list[Line] = []

    def accept(self) -> "Line":
        """Take the next daemon."""
        connection, _ = self.listener.accept()
        connection.settimeout(10)
        self._lines.append(Line(connection))
        return self._lines[-1]

    def close(self) -> None:
        """Be gone."""
        self.listener.close()
        for line in self._lines:
            line.close()


class Line:
    """A keeper's end of the line to one daemon."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def hear(self) -> tuple[Message, int | None]:
        """Return the next message and its descriptor."""
        frame = wire.receive(self.connection)
        assert frame is not None, "the daemon has hung up"
        message = handover.decode(frame.kind, frame.body)
        return message, None if frame.descriptor is None else frame.take_descriptor()

    def hear_until(self, kind: type[Message]) -> Message:
        """Return the next message of a kind; descriptors on the way are closed."""
        while True:
            message, descriptor = self.hear()
            if descriptor is not None:
                os.close(descriptor)
            if isinstance(message, kind):
                return message

    def say(self, message: Message, descriptor: int | None = None) -> None:
        """Send a message."""
        wire.send(self.connection, *handover.encode(message), descriptor)

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
