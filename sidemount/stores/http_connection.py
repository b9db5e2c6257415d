"""One connection to a server: exchanges of a request for an answer, each with a deadline that only progress moves."""

import http.client
import io
import itertools
import select
import socket
import ssl
import struct
import time

from sidemount.stores.http_message import Answer, Endpoint, ExchangeFailed, Request, Sink
from sidemount.stores.store import Buffer, FaultKind, StoreFault

# Each byte that moves grants its share of a second at this rate: a server that sends one byte at a time gains nothing,
# a large body over a thin line may take as long as it needs.
LEAST_BYTES_PER_S = 64 << 10
_JOINED_BYTES = 64 << 10
_SLICE_BYTES = 1 << 20
_READ_BYTES = 32 << 10
_TIMEVAL = struct.Struct("@ll")
_OURS = ("User-Agent: sidemount", "Accept-Encoding: identity")
_LINE_BYTES = 64 << 10
_MOST_HEADERS = 200
_MOST_BODY_BYTES = 64 << 20  # of an answer that is kept in memory: listings are far smaller
_MOST_DRAINED_BYTES = 256 << 10


class _Stream(io.RawIOBase):
    """A socket as a stream under a deadline. Closing it closes nothing: the answer that reads from it ends, the socket stays.

    Python waits with a poll before each call to a socket that has a timeout, so a plain one is left to the kernel's own.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        self._told_s = 0.0  # what the kernel was told
        if self._is_plain:
            sock.settimeout(None)
        self._timeout_s = 0.0
        self._deadline_s = 0.0
        self._left_s = 0.0
        self._armed_until_s = 0.0
        self._moved = 0
        self.received = 0

    def allow(self, timeout_s: float) -> None:
        """Begin an exchange."""
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._armed_until_s = 0.0
        self._moved = self.received = 0

    def _arm(self) -> None:
        """See to it that the socket waits no longer than the deadline, give or take a little: under TLS there are 64 reads in a MiB."""
        now_s = time.monotonic()
        if now_s < self._armed_until_s:
            return
        # Never farther away than it was at first: what a socket's buffer took at once is nothing to live on.
        self._deadline_s = min(self._deadline_s + self._moved / LEAST_BYTES_PER_S, now_s + self._timeout_s)
        self._moved = 0
        left_s = self._deadline_s - now_s
        if left_s <= 0:
            raise TimeoutError
        tolerance_s = self._timeout_s / 64
        if not self._is_plain:
            self._sock.settimeout(left_s)
        elif abs(left_s - self._told_s) > tolerance_s:
            micros = max(int(left_s * 1e6), 1)  # 0 would be for ever
            timeval = _TIMEVAL.pack(*divmod(micros, 1_000_000))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self._told_s = left_s
        self._left_s = left_s
        self._armed_until_s = now_s + tolerance_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]  # of what BufferedReader gives
        self._arm()
        try:
            count = self._sock.recv_into(buffer)
        except BlockingIOError:
            raise TimeoutError from None
        self.received += count
        self._moved += count
        return count

    def send(self, content: Buffer) -> None:
        """Send all of it."""
        view = memoryview(content).cast("B")
        while view:
            self._arm()
            count = self._send_some(view[:_SLICE_BYTES])
            self._moved += count
            view = view[count:]

    def _send_some(self, view: memoryview) -> int:
        if not self._is_plain:
            return self._sock.send(view)
        try:
            return self._sock.send(view, socket.MSG_DONTWAIT)
        except BlockingIOError:
            poll = select.poll()
            poll.register(self._sock, select.POLLOUT)
            if not poll.poll(self._left_s * 1e3):
                raise TimeoutError from None
            return 0

    def makefile(self, mode: str, /) -> io.BufferedReader:
        """Return what an answer is read from."""
        return io.BufferedReader(self, _READ_BYTES)

    def close(self) -> None:
        """Keep the socket."""


class _Response(http.client.HTTPResponse):
    """An answer. Its head is read here: the library's way through `email` takes longer than everything else in a small call."""

    def begin(self) -> None:
        """Read the head."""
        status, version = self._status()
        fields = self._fields()
        while 100 <= status < 200:  # told on the way; what was asked for comes next
            status, version = self._status()
            fields = self._fields()
        self.status = self.code = status
        self.fields = fields
        self.chunked = fields.get("transfer-encoding", "").lower().endswith("chunked")
        self.chunk_left = None
        told = fields.get("connection", "").lower()
        self.will_close = "close" in told or (version == b"HTTP/1.0" and "keep-alive" not in told)
        self.length: int | None = None
        if status in (204, 304) or self._method == "HEAD":  # type: ignore[attr-defined]  # the library's own
            self.length, self.chunked = 0, False
        elif not self.chunked:
            length = fields.get("content-length", "")
            if length:
                if not (length.isascii() and length.isdigit()):
                    raise http.client.HTTPException("Content-Length is no number")
                self.length = int(length)
            else:
                self.will_close = True

    def _status(self) -> tuple[int, bytes]:
        line = self.fp.readline(_LINE_BYTES)
        if not line:
            raise http.client.RemoteDisconnected("the connection ended before an answer")
        version, _, rest = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise http.client.BadStatusLine("no HTTP answer")
        return int(rest[:3]), version

    def _fields(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for _ in range(_MOST_HEADERS):
            line = self.fp.readline(_LINE_BYTES)
            if line in (b"\r\n", b"\n"):
                return found
            if not line.endswith(b"\n"):
                raise http.client.HTTPException("the head of the answer ended too early")
            name, _, value = line.decode("latin-1").partition(":")
            name = name.lower()
            if name == "content-length" and found.get(name, value.strip()) != value.strip():
                raise http.client.HTTPException("two values of Content-Length")
            found[name] = value.strip()
        raise http.client.HTTPException("too many headers")


class Connection:
    """A connected socket. Used by one thread at a time; after a fault it is good for nothing (`is_reusable`)."""

    def __init__(self, sock: socket.socket, endpoint: Endpoint, is_proxied: bool = False) -> None:
        self.endpoint = endpoint
        self.is_reusable = True
        self.used_s = 0.0
        self._is_fresh = True
        self._sock = sock
        self._prefix = f"http://{endpoint.authority}" if is_proxied and not endpoint.is_tls else ""
        self._stream = _Stream(sock)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def is_stale(self) -> bool:
        """Tell whether the server has ended it meanwhile, or has said something nobody asked for."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """End it."""
        self.is_reusable = False
        self._sock.close()

    def exchange(self, request: Request, timeout_s: float, sink: Sink | None = None) -> Answer:
        """Send a request and take the answer, content of a 200 or 206 into the sink. Raises ExchangeFailed, and what the body raises."""
        stream = self._stream
        stream.allow(timeout_s)
        was_fresh, self._is_fresh = self._is_fresh, False
        reusable, self.is_reusable = self.is_reusable, False
        try:
            answer, ends = self._exchange(request, sink)
        except (ExchangeFailed, StoreFault):  # the second: the body cannot be had
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            kind, text = classify(error)
            stale = not was_fresh and not stream.received and kind is FaultKind.RESET
            raise ExchangeFailed(kind, text, sent=True, stale=stale) from error
        self.is_reusable = reusable and not ends
        return answer

    def _exchange(self, request: Request, sink: Sink | None) -> tuple[Answer, bool]:
        broken = self._send(request)
        response = _Response(self._stream, method=request.method)  # type: ignore[arg-type]  # makefile is all it wants
        try:
            response.begin()
        except (OSError, http.client.HTTPException):
            if broken is not None:
                raise broken from None
            raise
        with response:
            answer = Answer(response.status, response.fields, b"")
            if sink is not None and response.status in (200, 206):
                sink.begin(answer)
                is_drained = _fill(response, sink)
            else:
                answer = answer._replace(body=_body(response))
                is_drained = True
        return answer, broken is not None or response.will_close or not is_drained

    def _send(self, request: Request) -> OSError | None:
        """Send a request. A server that refuses in the middle of a body has perhaps said why: its answer is read then."""
        lines = [
            f"{request.method} {self._prefix}{request.target} HTTP/1.1",
            f"Host: {request.endpoint.authority}",
        ]
        lines += _OURS
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        size = request.size
        if size or request.method in ("PUT", "POST"):
            lines.append(f"Content-Length: {size}")
        text = "\r\n".join(lines)
        if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text:
            raise ExchangeFailed(FaultKind.REQUEST, "a header or the target holds a line break")
        try:
            head = f"{text}\r\n\r\n".encode("latin-1")
        except UnicodeEncodeError:
            raise ExchangeFailed(
                FaultKind.REQUEST, "a header or the target holds other characters than Latin"
            ) from None
        try:
            if size <= _JOINED_BYTES:
                self._stream.send(b"".join([head, *request.body]))
            else:
                for one in itertools.chain((head,), request.body):  # which may be read as it is sent
                    self._stream.send(one)
        except ConnectionError as error:
            return error
        return None


def _fill(response: _Response, sink: Sink) -> bool:
    """Put content behind what a sink has. Tell whether nothing of it is left."""
    view = sink.buffer[sink.filled :]
    while view:
        count = response.readinto(view)
        if not count:
            if response.length:
                raise ExchangeFailed(FaultKind.TRUNCATED, "the content ended too early", sent=True)
            return True
        sink.filled += count
        view = view[count:]
    if response.isclosed():
        return True
    if response.length is None or response.length <= _MOST_DRAINED_BYTES:
        left = response.read(_MOST_DRAINED_BYTES)
        return len(left) < _MOST_DRAINED_BYTES
    return False


def _body(response: _Response) -> bytes:
    if response.length == 0 and not response.chunked:
        return b""
    content = response.read(_MOST_BODY_BYTES + 1)
    if len(content) > _MOST_BODY_BYTES:
        raise ExchangeFailed(FaultKind.ANSWER, "an answer far too long", sent=True)
    if response.length:
        raise ExchangeFailed(FaultKind.TRUNCATED, "the answer ended too early", sent=True)
    return content


def classify(error: BaseException) -> tuple[FaultKind, str]:
    """Return what an error of sockets, TLS or the HTTP library means. The text holds nothing that was sent."""
    match error:
        case TimeoutError():
            return FaultKind.TIMEOUT, "no progress within the deadline"
        case socket.gaierror():
            return FaultKind.NAME, f"the name was not resolved: {error.strerror}"
        case ssl.SSLCertVerificationError():
            return FaultKind.TLS, f"the certificate was refused: {error.verify_message}"
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return FaultKind.RESET, "the connection ended"
        case ssl.SSLError():
            return FaultKind.TLS, f"TLS: {error.reason or error.strerror}"
        case http.client.IncompleteRead():
            return FaultKind.TRUNCATED, "the answer ended too early"
        case ConnectionError():
            return FaultKind.RESET, error.strerror or "the connection ended"
        case OSError():
            return FaultKind.RESET, error.strerror or type(error).__name__
    return FaultKind.ANSWER, "the answer is no HTTP"
