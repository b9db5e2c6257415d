"""One TLS connection: aiohttp's protocol, with a shorter way for plain requests."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp.web import BaseRequest, RequestHandler, Server, StreamResponse

from webhook.connection_table import ConnectionTable
from webhook.deadline import answer_within_s
from webhook.plain_request import PlainHead, parse_plain_head
from webhook.response import HttpRefusal, WireResponse, refusal_answer

_PHRASES = {
    "LineTooLong": "the request line or a header field is too long",
    "BadHttpMethod": "the request line holds no HTTP method",
    "BadStatusLine": "the request line is malformed",
    "InvalidHeader": "a header field is malformed",
    "InvalidURLError": "the request target is malformed",
    "TransferEncodingError": "the transfer encoding is malformed",
    "ContentLengthError": "the content length is malformed",
}
_TOO_SLOW = HttpRefusal(408, "the request did not arrive within its time", is_last=True)
_quiet = logging.getLogger("webhook.http")

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]
PlainAnswer = Callable[[PlainHead, bytes], WireResponse | None]

# aiohttp's own timer knows nothing of plain requests; the table's sweep closes idle connections instead.
_NEVER_S = 10 * 365 * 86400.0


class Connection(RequestHandler):
    """aiohttp's protocol, with a shorter way for plain requests, which also knows since when its peer waits.

    The short way is taken from the first byte of a connection until the first request that is not plain, and never again
    after: from then on only aiohttp's parser knows where a request ends. `busy_since` is the loop's time of the first
    byte of a request that has no answer yet, None while idle.
    """

    def __init__(
        self, manager: "HttpServer", table: ConnectionTable, loop: asyncio.AbstractEventLoop
    ) -> None:
        limits = table.limits
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=_NEVER_S,
            logger=_quiet,
            access_log=None,  # type: ignore[arg-type]  # None turns it off, which the annotation does not say
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            lingering_time=limits.discard_s,
            auto_decompress=False,
        )
        self._table = table
        self._call_at = loop.call_at
        self._now = loop.time
        self._answer_plain = manager.answer_plain
        self._is_plain = True
        self._head: PlainHead | None = None
        self._held: list[bytes] = []
        self._missing = 0
        self._deadline: asyncio.TimerHandle | None = None
        self.busy_since: float | None = None
        self.idle_since = loop.time()
        self.is_handling = False
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enter the table."""
        self._table.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Leave the table."""
        self._forget_held()
        self._table.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Answer a plain request, or hand what came to aiohttp."""
        if self.busy_since is None:
            self.busy_since = self._now()
        if not self._is_plain:
            super().data_received(data)
        elif (left := self._take_plain(data)) is not None:
            super().data_received(left)

    def _take_plain(self, data: bytes) -> bytes | None:
        """Take what belongs to a plain request; return everything that came if it is none, for aiohttp."""
        head = self._head
        if head is None:
            if (
                self.writing_paused
                or (head := parse_plain_head(data, self._table.limits.plain_body_bytes)) is None
            ):
                self._is_plain = False
                return data
            missing = head.head_size + head.body_size - len(data)
        else:
            missing = self._missing - len(data)
        if missing == 0:
            return self._finish_plain(head, b"".join((*self._held, data)) if self._held else data)
        self._held.append(data)
        if missing < 0:  # more than one request at once
            everything = b"".join(self._held)
            self._is_plain = False
            self._forget_held()
            return everything
        self._missing = missing
        if self._head is None:
            self._head = head
            wait_s = answer_within_s(head.query, self._table.limits.request_s)
            self._deadline = self._call_at((self.busy_since or self._now()) + wait_s, self.refuse_slow)
        return None

    def _finish_plain(self, head: PlainHead, received: bytes) -> bytes | None:
        """Answer; return the whole request if it must wait for something, for aiohttp."""
        if self._head is not None:
            self._forget_held()
        response = self._answer_plain(head, received[head.head_size :])
        if response is None:
            self._is_plain = False
            return received
        self.answered()
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(response.wire)
            if not response.keep_alive:
                self.force_close()
        return None

    def _forget_held(self) -> None:
        self._head = None
        self._held.clear()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @property
    def awaits_headers(self) -> bool:
        """Whether a request has begun of which not even the headers are there."""
        return self.busy_since is not None and not self.is_handling and self._head is None

    def begin(self) -> float:
        """A request is being handled from here on; return the loop's time of its first byte."""
        self.is_handling = True
        if self.busy_since is None:  # it came in one piece with the one before it
            self.busy_since = self._now()
        return self.busy_since

    def answered(self) -> None:
        """The response to the request in hand is about to be written."""
        self.is_handling = False
        self.busy_since = None
        self.idle_since = self._now()
        self.answers += 1
        self._table.notify()

    def refuse_slow(self) -> None:
        """Tell a peer whose request does not arrive that its time is over, and close."""
        self._table.slow_clients += 1
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(refusal_answer(_TOO_SLOW, is_last=True).wire)
        self.force_close()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer what aiohttp's parser refuses: one line that repeats nothing of what was sent, and no trace."""
        self.answered()
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionResetError("nothing more can be said on this connection")
        if status >= 500:
            return refusal_answer(HttpRefusal(500, "the request could not be handled"), is_last=True)
        phrase = _PHRASES.get(type(exc).__name__, "it cannot be parsed")
        return refusal_answer(HttpRefusal(400, f"not a valid HTTP/1.1 request: {phrase}"), is_last=True)


class HttpServer(Server):
    """Makes a `Connection` for each accepted socket."""

    def __init__(
        self,
        handler: Handler,
        answer_plain: PlainAnswer,
        table: ConnectionTable,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(handler)
        self.answer_plain = answer_plain
        self._table = table
        self._event_loop = loop

    def __call__(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self, self._table, self._event_loop)
