"""An HTTP proxy on loopback in threads of this process, between a client and one server, that does to requests what it is told."""

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from types import TracebackType
from typing import IO, Self

from e2e.servers.faults import (
    Answer,
    ChangeHeaders,
    CorruptAnswer,
    CorruptRequest,
    Delay,
    Drip,
    Fault,
    Hang,
    LoseAnswer,
    Reset,
    ResetInBody,
    ResetInHead,
    Rule,
    Truncate,
)
from e2e.servers.process import LOOPBACK
from sidemount.host.readiness import wait_readable

_UPSTREAM_S = 60.0
_ENDED_S = 10.0
_PIECE_BYTES = 256 << 10
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has come, with the time in `time.monotonic`."""

    method: str
    target: str
    headers: dict[str, str]
    at: float


class _Ended(Exception):
    """The connection to the client is over."""


class FaultProxy:
    """The proxy. `port` is where it listens; it passes everything on until it is told otherwise."""

    def __init__(
        self,
        upstream_port: int,
        make_socket: Callable[[], socket.socket] = socket.socket,
        port: int = 0,
    ) -> None:
        """`make_socket` makes what it listens at: in another network namespace, perhaps. `port` 0: any."""
        self._upstream_port = upstream_port
        self._make_socket = make_socket
        self._rules: list[Rule] = []
        self._asked: list[Asked] = []
        self._clients: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._listener: socket.socket | None = None
        self.port = port

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        self.refuse()
        for thread in self._threads:
            thread.join(_ENDED_S)

    @property
    def asked(self) -> list[Asked]:
        """Every request that has come."""
        with self._lock:
            return list(self._asked)

    def add(
        self, fault: Fault, method: str = "", target: str = "", *, times: int | None = 1, skip: int = 0
    ) -> Rule:
        """Do this to requests of a method whose target (path and query) the pattern finds. The first rule that takes one has it."""
        rule = Rule(fault, method, target, times, skip)
        with self._lock:
            self._rules.append(rule)
        return rule

    @contextmanager
    def doing(self, fault: Fault, method: str = "", target: str = "") -> Iterator[Rule]:
        """Do this to all such requests as long as the block runs."""
        rule = self.add(fault, method, target, times=None)
        try:
            yield rule
        finally:
            with self._lock:
                self._rules = [one for one in self._rules if one is not rule]

    def clear(self) -> None:
        """Forget all rules and requests."""
        with self._lock:
            self._rules.clear()
            self._asked.clear()

    def refuse(self) -> None:
        """Listen no more, and end every connection with an RST."""
        with self._lock:
            listener, self._listener = self._listener, None
            clients = list(self._clients)
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # or the thread goes on waiting in accept
            listener.close()
        for client in clients:
            _reset(client)
        deadline = time.monotonic() + _ENDED_S
        while self._is_serving(clients) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _is_serving(self, clients: list[socket.socket]) -> bool:
        with self._lock:
            return any(client in self._clients for client in clients)

    def accept(self) -> None:
        """Listen again, on the same port."""
        listener = self._make_socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        with self._lock:
            self._listener = listener
        self._begin(self._listen, listener)

    def _begin(self, run: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=run, args=(sock,), daemon=True, name="fault-proxy")
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)
        thread.start()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                is_open = self._listener is listener
                if is_open:
                    self._clients.add(client)
            if is_open:
                self._begin(self._serve, client)
            else:
                _reset(client)

    def _serve(self, client: socket.socket) -> None:
        """Take requests of one connection until it ends."""
        upstream = http.client.HTTPConnection(LOOPBACK, self._upstream_port, timeout=_UPSTREAM_S)
        try:
            with client.makefile("rb") as stream:
                while self._take(client, stream, upstream):
                    pass
        except (_Ended, OSError, http.client.HTTPException):
            _reset(client)
        finally:
            upstream.close()
            with self._lock:
                self._clients.discard(client)
            client.close()

    def _take(self, client: socket.socket, stream: IO[bytes], upstream: http.client.HTTPConnection) -> bool:
        """Take one request. False at the end of the connection."""
        line = stream.readline()
        if not line or self._listener is None:
            return False
        method, target, _ = line.decode("latin-1").split()
        headers = http.client.parse_headers(stream)
        fault = self._fault_for(method, target, dict(headers.items()))
        if isinstance(fault, Reset):
            raise _Ended
        if headers.get("Expect", "").lower() == "100-continue":
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            del headers["Expect"]
        body = _body(stream, headers)
        if isinstance(fault, Answer):
            _send_head(client, fault.status, {**fault.headers, "Content-Length": str(len(fault.body))})
            client.sendall(fault.body if method != "HEAD" else b"")
            return True
        self._before(client, fault)
        if isinstance(fault, CorruptRequest):
            body = _changed(body, fault.at_byte)
        answer = _asked(upstream, method, target, headers, body)
        if isinstance(fault, LoseAnswer):
            answer.read()
            raise _Ended
        self._answer(client, answer, fault)
        return True

    def _fault_for(self, method: str, target: str, headers: dict[str, str]) -> Fault | None:
        with self._lock:
            self._asked.append(Asked(method, target, headers, time.monotonic()))
            rules = list(self._rules)
        return next((rule.fault for rule in rules if rule.takes(method, target)), None)

    def _before(self, client: socket.socket, fault: Fault | None) -> None:
        match fault:
            case Hang():
                while not self._ending.wait(0.02):
                    if _is_closed(client):
                        break
                raise _Ended
            case Delay(seconds):
                if self._ending.wait(seconds):
                    raise _Ended
            case _:
                pass

    def _answer(self, client: socket.socket, answer: http.client.HTTPResponse, fault: Fault | None) -> None:
        headers = {
            name: value for name, value in answer.getheaders() if name.lower() not in {*_HOP_BY_HOP, "date"}
        }
        whole = answer.read() if answer.length is None else None  # it came in chunks
        if whole is not None:
            headers["Content-Length"] = str(len(whole))
        if isinstance(fault, ChangeHeaders):
            headers = _with_changes(headers, fault.headers)
        if isinstance(fault, ResetInHead):
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")
            raise _Ended
        _send_head(client, answer.status, headers)
        sent = 0
        while piece := answer.read(_PIECE_BYTES) if whole is None else whole:
            self._send_piece(client, piece, sent, fault)
            sent += len(piece)
            if whole is not None:
                break

    def _send_piece(self, client: socket.socket, piece: bytes, sent: int, fault: Fault | None) -> None:
        """Send part of a body of which so many bytes are sent."""
        match fault:
            case ResetInBody(after) | Truncate(after) if sent + len(piece) > after:
                client.sendall(piece[: max(after - sent, 0)])
                if isinstance(fault, Truncate):
                    client.shutdown(socket.SHUT_WR)
                    _drain(client)
                raise _Ended
            case CorruptAnswer(at) if sent <= at < sent + len(piece):
                client.sendall(_changed(piece, at - sent))
            case Drip(pause_s):
                for place in range(len(piece)):
                    client.sendall(piece[place : place + 1])
                    if self._ending.wait(pause_s):
                        raise _Ended
            case _:
                client.sendall(piece)


def _body(stream: IO[bytes], headers: Message) -> bytes:
    """Read a request's body; what came in chunks goes on with its length."""
    if headers.get("Transfer-Encoding", "").lower() != "chunked":
        return stream.read(int(headers.get("Content-Length", "0")))
    pieces = []
    while size := int(stream.readline().split(b";")[0], 16):
        pieces.append(stream.read(size))
        stream.readline()
    while stream.readline() not in (b"\r\n", b""):
        pass  # trailers
    return b"".join(pieces)


def _asked(
    upstream: http.client.HTTPConnection, method: str, target: str, headers: Message, body: bytes
) -> http.client.HTTPResponse:
    """Ask the server what the client asked, word by word: the host is part of what is signed."""
    for is_last in (upstream.sock is None, True):
        try:
            upstream.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in _HOP_BY_HOP and name.lower() != "content-length":
                    upstream.putheader(name, value)
            if body or "Content-Length" in headers or "Transfer-Encoding" in headers:
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body or None)
            return upstream.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            upstream.close()  # it was kept alive for longer than the server likes
            if is_last:
                raise
    raise AssertionError("not reached")


def _send_head(client: socket.socket, status: int, headers: Mapping[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    client.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def _with_changes(headers: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    changed = {name.lower() for name in changes}
    kept = {name: value for name, value in headers.items() if name.lower() not in changed}
    return kept | {name: value for name, value in changes.items() if value}


def _changed(content: bytes, at_byte: int) -> bytes:
    if at_byte >= len(content):
        return content  # there is nothing to damage
    return content[:at_byte] + bytes([content[at_byte] ^ 0xFF]) + content[at_byte + 1 :]


def _is_closed(client: socket.socket) -> bool:
    try:
        return wait_readable(client, 0) and not client.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True


def _drain(client: socket.socket) -> None:
    """Wait for the client's end: a socket that is closed with something unread sends an RST."""
    client.settimeout(_ENDED_S)
    with contextlib.suppress(OSError):
        while client.recv(_PIECE_BYTES):
            pass


def _reset(client: socket.socket) -> None:
    """Close with an RST, also under a thread that waits for it."""
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.shutdown(socket.SHUT_RD)
    client.close()
