"""A client that sends any bytes over TLS, and what came back."""

import http.client
import io
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.webhook.running import SERVICE

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Response:
    """One HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


class RawClient:
    """One TLS connection. Bytes in, responses out; `read` returns None when the server closed."""

    def __init__(
        self, port: int, bundle: Path, *, name: str | None = SERVICE, timeout_s: float = TIMEOUT_S
    ) -> None:
        context = ssl.create_default_context(cafile=str(bundle))
        if name is None:
            context.check_hostname = False
        plain = socket.create_connection(("127.0.0.1", port), timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket = context.wrap_socket(plain, server_hostname=name)
        except BaseException:
            plain.close()
            raise
        self._file = io.BufferedReader(socket.SocketIO(self.socket, "r"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()

    def send(self, content: bytes) -> None:
        """Send bytes; a server that closed already is no failure here."""
        try:
            self.socket.sendall(content)
        except (ConnectionError, ssl.SSLError):
            return

    def read(self, method: str = "POST") -> Response | None:
        """Return the next response, None if the server closed without one."""
        try:
            while True:
                # http.client closes what it is given at the end of a response; the connection may go on.
                response = http.client.HTTPResponse(_Unclosed(self._file), method=method)  # type: ignore[arg-type]
                response.begin()
                body = response.read()
                return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, body)
        except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLError):
            return None

    def ask(self, content: bytes, method: str = "POST") -> Response | None:
        """Send bytes and return the response."""
        self.send(content)
        return self.read(method)

    def is_closed_by_peer(self) -> bool:
        """Return whether the server has closed; waits for it as long as the connection's timeout."""
        try:
            return self._file.read(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True


class _Unclosed:
    """What `http.client.HTTPResponse` wants of a socket."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def makefile(self, mode: str) -> "_Unclosed":
        return self

    def close(self) -> None:
        """Leave the file open."""

    def flush(self) -> None:
        """Nothing is written."""

    def readline(self, limit: int = -1) -> bytes:
        return self._file.readline(limit)

    def read(self, amount: int = -1) -> bytes:
        return self._file.read(amount)

    def readinto(self, buffer: bytearray) -> int:
        return self._file.readinto(buffer)


def post(
    body: bytes, path: str = "/mutate", *headers: str, content_type: str | None = "application/json"
) -> bytes:
    """Return a well-formed request."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {SERVICE}", f"Content-Length: {len(body)}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join([*lines, *headers]).encode() + b"\r\n\r\n" + body


def get(path: str, method: str = "GET", *headers: str) -> bytes:
    """Return a request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {SERVICE}", *headers]).encode() + b"\r\n\r\n"
