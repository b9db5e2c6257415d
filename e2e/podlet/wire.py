"""JSON lines over a stream socket between podlet's client and its node: requests, answers and tidings."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

Message = dict[str, object]


class Wire:
    """One end. Sending is safe from any thread; receiving belongs to one."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message. Raises OSError when the other end is gone."""
        line = json.dumps(message).encode() + b"\n"  # ASCII: lone surrogates of odd bytes survive as escapes
        with self._lock:
            self._end.sendall(line)

    def messages(self) -> Iterator[Message]:
        """Yield what arrives until the other end closes."""
        with self._end.makefile("rb") as stream:
            for line in stream:
                yield json.loads(line)

    def close(self) -> None:
        """Close both directions, waking the reader."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()
