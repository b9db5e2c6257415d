"""One keep-alive connection of HTTP/1.1 over TLS, as much of it as a load needs."""

import asyncio
import ssl
from dataclasses import dataclass

_LINE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. `is_last`: the other side takes no more on this connection."""

    status: int
    body: bytes
    is_last: bool


class Lost(Exception):
    """A call that got no answer; the text is the sort of failure, the same for all of a sort."""


class Connection:
    """Opened by its first call, and again after it was closed. One call at a time."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, name: str, *, call_s: float) -> None:
        self._where = host, port
        self._context = context
        self._name = name
        self._call_s = call_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.opened = 0

    async def call(self, request: bytes) -> Reply:
        """Send a whole request and return the answer. Raises Lost; then the connection is closed."""
        try:
            async with asyncio.timeout(self._call_s):
                reader, writer = self._streams or await self._open()
                writer.write(request)
                reply = await _read(reader)
        except TimeoutError:
            self.close()
            raise Lost(f"no answer within {self._call_s:g} s") from None
        except (OSError, EOFError, asyncio.IncompleteReadError, ValueError) as error:
            is_new = self._streams is None
            self.close()
            raise Lost(f"{'no connection' if is_new else 'no answer'}: {type(error).__name__}") from error
        if reply.is_last:
            self.close()
        return reply

    def close(self) -> None:
        """Close it, whatever is under way."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._where
        self._streams = await asyncio.open_connection(
            host, port, ssl=self._context, server_hostname=self._name, limit=_LINE_BYTES
        )
        self.opened += 1
        return self._streams


async def _read(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in fields.get("transfer-encoding", ""):
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(fields.get("content-length", "0")))
    return Reply(int(first.split()[1]), body, fields.get("connection", "").lower() == "close")


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readline()
    return b"".join(parts)


def post(path: str, host: str, body: bytes, headers: str = "") -> bytes:
    """Return a request with a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str, host: str, headers: str = "") -> bytes:
    """Return a request without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n{headers}\r\n".encode()
