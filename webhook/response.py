"""Answers as bytes: head and body in one write, or a one-line refusal that a person can read in an API server's error."""

import asyncio
import time
from email.utils import formatdate
from http import HTTPStatus

from aiohttp.web import BaseRequest, StreamResponse

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
WRITE_S = 10.0
_MESSAGE_MAX = 400
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class HttpRefusal(Exception):
    """A request that is answered with an HTTP status instead of a review. `is_last` ends the connection after it."""

    def __init__(
        self, status: int, message: str, *, headers: tuple[tuple[str, str], ...] = (), is_last: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
        self.is_last = is_last


class WireResponse(StreamResponse):
    """A whole response that is ready to be written.

    aiohttp builds, checks and serialises a header mapping for every response, a third of the cost of a small request; ours
    have four headers that never change. Only what aiohttp's protocol calls is there: `prepare`, `write_eof`, `keep_alive`.
    """

    def __init__(self, wire: bytes, *, is_last: bool) -> None:
        # Not super().__init__(): it would make the very mappings that are not needed.
        self._wire = wire
        self._is_last = is_last
        self._request: BaseRequest | None = None

    @property
    def wire(self) -> bytes:
        """Everything that is written."""
        return self._wire

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection goes on after this response."""
        return not self._is_last

    async def prepare(self, request: BaseRequest) -> None:
        """Remember where to write."""
        self._request = request

    async def write_eof(self, data: bytes = b"") -> None:
        """Write everything. Raises: ConnectionResetError if the peer is gone."""
        request = self._request
        assert request is not None  # aiohttp prepares before it writes
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is gone")
        transport.write(self._wire)
        if request.protocol.writing_paused:
            try:
                async with asyncio.timeout(WRITE_S):
                    await request.writer.drain()
            except TimeoutError:
                transport.abort()  # a peer that does not read: closing would wait for it too
                raise ConnectionResetError("the peer does not read its answer") from None


class _Clock:
    """The Date header, rendered once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"\r\nDate: " + formatdate(second, usegmt=True).encode()
        return self._line


_clock = _Clock()
_JSON_HEADS = {
    status: f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {JSON}\r\nContent-Length: ".encode()
    for status in (200, 500, 503)
}
_END = b"\r\n\r\n"
_LAST = b"\r\nConnection: close\r\n\r\n"


def json_answer(body: bytes, *, status: int = 200, is_last: bool) -> WireResponse:
    """Return a review as a response."""
    ending = _LAST if is_last else _END
    wire = b"%b%d%b%b%b" % (_JSON_HEADS[status], len(body), _clock.line(), ending, body)
    return WireResponse(wire, is_last=is_last)


def text_answer(
    status: int,
    text: str,
    *,
    is_last: bool,
    content_type: str = TEXT,
    headers: tuple[tuple[str, str], ...] = (),
    without_body: bool = False,
) -> WireResponse:
    """Return any text as a response. `without_body` answers HEAD."""
    body = text.encode()
    lines = [
        f"HTTP/1.1 {status} {_PHRASES[status]}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    head = "\r\n".join(lines).encode() + _clock.line() + (_LAST if is_last else _END)
    return WireResponse(head if without_body else head + body, is_last=is_last)


def refusal_answer(refusal: HttpRefusal, *, is_last: bool, without_body: bool = False) -> WireResponse:
    """Return a refusal as one printable line of text."""
    return text_answer(
        refusal.status,
        one_line(refusal.message) + "\n",
        is_last=is_last or refusal.is_last,
        headers=refusal.headers,
        without_body=without_body,
    )


def one_line(text: str) -> str:
    """Return text with nothing in it that could break a line or a terminal, at most 400 characters."""
    printable = "".join(char if char.isprintable() else " " for char in text[: _MESSAGE_MAX + 1])
    return printable if len(printable) <= _MESSAGE_MAX else printable[: _MESSAGE_MAX - 1] + "…"
