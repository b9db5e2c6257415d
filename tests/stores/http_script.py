"""A server that answers each request with the next step of a script, on loopback, in threads of this process."""

import contextlib
import http.client
import io
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple


class Asked(NamedTuple):
    """A request that has come. Names of headers are in lower case. `connection` counts connections from 1."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int


Step = Callable[[Asked, socket.socket], bool]
"""Answers; tells whether the connection stays open."""


def say(
    status: int,
    body: bytes = b"",
    *,
    keep: bool = True,
    size: int | None = None,
    also: Mapping[str, str] | None = None,
    **headers: str,
) -> Step:
    """Answer. `size`: what Content-Length claims. Underscores in names of headers, and of those in `also`, stand for hyphens."""

    def step(asked: Asked, sock: socket.socket) -> bool:
        lines = [f"HTTP/1.1 {status} Told", f"Content-Length: {len(body) if size is None else size}"]
        lines += [
            f"{name.replace('_', '-')}: {value}" for name, value in (headers | dict(also or {})).items()
        ]
        content = b"" if asked.method == "HEAD" else body
        sock.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content)
        return keep

    return step


def raw(content: bytes, *, keep: bool = False) -> Step:
    """Send these bytes."""

    def step(asked: Asked, sock: socket.socket) -> bool:
        sock.sendall(content)
        return keep

    return step


def hang_up(asked: Asked, sock: socket.socket) -> bool:
    """End the connection without an answer."""
    return False


class HttpScript:
    """The server. `script` is what comes next, `asked` what has come."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.script: deque[Step] = deque()
        self.asked: list[Asked] = []
        self.connections = 0
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def then(self, *steps: Step) -> None:
        """Add steps."""
        self.script.extend(steps)

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up_all()

    def hang_up_all(self) -> None:
        """End all connections, those that idle too."""
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(sock)
            threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            with sock, sock.makefile("rb") as stream:
                while self._take(sock, stream, number):
                    pass

    def _take(self, sock: socket.socket, stream: io.BufferedReader, number: int) -> bool:
        line = stream.readline()
        if not line:
            return False
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers = {name.lower(): value for name, value in http.client.parse_headers(stream).items()}
        body = stream.read(int(headers.get("content-length", 0)))
        asked = Asked(method, target, headers, body, number)
        self.asked.append(asked)
        step = self.script.popleft() if self.script else say(500, b"the script is over")
        return step(asked, sock)


@contextmanager
def http_script(tls: ssl.SSLContext | None = None) -> Iterator[HttpScript]:
    """Run one."""
    server = HttpScript(tls)
    try:
        yield server
    finally:
        server.close()
