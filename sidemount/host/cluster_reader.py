"""ClusterReader: reads of the API server as plain JSON, each bounded in time and size, each failure of a known sort."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes.aio import client, config

_CHUNK = 1 << 16
_TOLD = 200
_RETRY_AFTER_MAX_S = 60.0
_decode = msgspec.json.Decoder().decode


class Trouble(Enum):
    """Why a read came to nothing; the label of a metric."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    EXPIRED = "expired"
    THROTTLED = "throttled"
    SERVER = "server_error"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    INTERNAL = "internal"


class ReadFailed(Exception):
    """A read failed. `retry_after_s` is what the server asked for, 0 if nothing."""

    def __init__(self, trouble: Trouble, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Bounds of one read. A watch is asked for once or twice `watch_s`; one that is silent for `idle_s`, which is longer, is dead.

    Bookmarks are no sign of life: for a kind that never changes the API server sends none.
    """

    call_s: float = 10.0
    page_bytes: int = 32 << 20
    line_bytes: int = 8 << 20
    idle_s: float = 135.0
    watch_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list. `token` continues it, "" at its end."""

    items: list[Any]
    version: str
    token: str


class ClusterReader:
    """One API server. Close it at the end."""

    def __init__(self, configuration: client.Configuration, limits: ReadLimits) -> None:
        self._configuration = configuration
        self._api = client.ApiClient(configuration)
        self.limits = limits

    async def close(self) -> None:
        """Give up its connections."""
        await self._api.close()  # type: ignore[no-untyped-call]  # kubernetes.aio ships no types for it

    async def get(self, path: str) -> Mapping[str, Any] | None:
        """Return an object, None if there is none. Raises ReadFailed."""
        try:
            return await self._document(path)
        except ReadFailed as error:
            if error.trouble is Trouble.NOT_FOUND:
                return None
            raise

    async def page(self, collection: str, *, limit: int, token: str) -> Page:
        """Return a page of a list, the first one if `token` is empty. Raises ReadFailed."""
        more = f"&continue={quote(token, safe='')}" if token else ""
        document = await self._document(_asked(collection, f"limit={limit}{more}"))
        items, metadata = document.get("items"), document.get("metadata")
        if items is None:  # Go writes an empty list as null
            items = []
        if not isinstance(items, list) or not isinstance(metadata, dict):
            raise ReadFailed(Trouble.MALFORMED, "the answer is no list")
        version, token = metadata.get("resourceVersion"), metadata.get("continue") or ""
        if not isinstance(version, str) or not version or not isinstance(token, str):
            raise ReadFailed(Trouble.MALFORMED, "the list has no resourceVersion")
        return Page(items=items, version=version, token=token)

    async def watch(self, collection: str, version: str, for_s: int) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of a watch as they come, several at once, until its end. Raises ReadFailed."""
        path = _asked(
            collection,
            f"watch=true&allowWatchBookmarks=true&timeoutSeconds={for_s}"
            f"&resourceVersion={quote(version, safe='')}",
        )
        async with self._opened(path) as content:
            yield []
            rest = b""
            while True:
                async with asyncio.timeout(self.limits.idle_s):
                    chunk = await content.readany()
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > self.limits.line_bytes:
                    raise ReadFailed(Trouble.TOO_LARGE, "an event is larger than any object can be")
                if lines:
                    yield lines

    async def text(self, path: str, max_bytes: int) -> bytes:
        """Return what is no JSON, such as a log, up to so many bytes of it. Raises ReadFailed."""
        async with self._opened(path, accept="*/*") as content:
            async with asyncio.timeout(self.limits.call_s):
                return await _read_begin(content, max_bytes)

    async def _document(self, path: str) -> Mapping[str, Any]:
        async with self._opened(path) as content:
            async with asyncio.timeout(self.limits.call_s):
                text = await _read_bounded(content, self.limits.page_bytes)
            document = decode(text)
        if not isinstance(document, dict):
            raise ReadFailed(Trouble.MALFORMED, "the answer is no JSON object")
        return document

    @asynccontextmanager
    async def _opened(
        self, path: str, accept: str = "application/json"
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Ask, and give the body of a good answer. Turns every failure, the reader's of the body too, into ReadFailed."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self.limits.call_s)
        try:
            async with asyncio.timeout(self.limits.call_s):
                request = await self._api.param_serialize(
                    "GET", path, header_params={"Accept": accept}, auth_settings=["BearerToken"]
                )
                response = (await self._api.call_api(*request, _request_timeout=limit)).response
            async with response:
                if response.status != 200:
                    raise await self._refusal(response)
                yield response.content
        except TimeoutError as error:
            raise ReadFailed(Trouble.TIMEOUT, "the API server does not answer in time") from error
        except aiohttp.ClientConnectorCertificateError as error:
            await self._renew()
            raise ReadFailed(Trouble.UNREACHABLE, "the API server's certificate is not trusted") from error
        except (aiohttp.ClientError, OSError, EOFError) as error:
            raise ReadFailed(Trouble.UNREACHABLE, _told(error)) from error
        except (config.ConfigException, client.exceptions.OpenApiException, ValueError) as error:
            # The library's own words may quote what it was given.
            message = f"the client cannot call ({type(error).__name__})"
            raise ReadFailed(Trouble.INTERNAL, message) from error

    async def _renew(self) -> None:
        """Read the authority's file again: it may have been replaced."""
        try:
            api = client.ApiClient(self._configuration)
        except (OSError, ValueError):
            return
        old, self._api = self._api, api
        await old.close()  # type: ignore[no-untyped-call]

    async def _refusal(self, response: aiohttp.ClientResponse) -> ReadFailed:
        status: Any = None
        async with asyncio.timeout(self.limits.call_s):
            text = await _read_bounded(response.content, self.limits.page_bytes)
        try:
            status = decode(text)
        except ReadFailed:
            status = None
        return refusal_of(response.status, status, response.headers.get("Retry-After", ""))


def decode(text: bytes) -> Any:
    """Return JSON's value. Raises ReadFailed."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReadFailed(Trouble.MALFORMED, "the answer is no JSON") from error


def refusal_of(code: int, status: object, retry_after: str = "") -> ReadFailed:
    """Return the failure that an HTTP status and a Status document state."""
    told = status if isinstance(status, dict) else {}
    reason, message = str(told.get("reason") or ""), str(told.get("message") or "")[:_TOLD]
    trouble = _TROUBLES.get(code, Trouble.SERVER if code >= 500 else Trouble.MALFORMED)
    if reason in ("Expired", "Gone"):
        trouble = Trouble.EXPIRED
    said = f"the API server answered {code} {reason[:_TOLD]}".rstrip()
    wait_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return ReadFailed(trouble, f"{said} ({message})" if message else said, min(wait_s, _RETRY_AFTER_MAX_S))


_TROUBLES = {
    401: Trouble.UNAUTHORIZED,
    403: Trouble.FORBIDDEN,
    404: Trouble.NOT_FOUND,
    408: Trouble.TIMEOUT,
    410: Trouble.EXPIRED,
    429: Trouble.THROTTLED,
}


def _asked(collection: str, query: str) -> str:
    """Return a collection's path with a query; it may have one already."""
    return f"{collection}{'&' if '?' in collection else '?'}{query}"


async def _read_begin(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    chunks, size = [], 0
    while size < max_bytes and (chunk := await content.read(min(_CHUNK, max_bytes - size))):
        size += len(chunk)
        chunks.append(chunk)
    return b"".join(chunks)


async def _read_bounded(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    chunks, size = [], 0
    while chunk := await content.read(_CHUNK):
        size += len(chunk)
        if size > max_bytes:
            raise ReadFailed(Trouble.TOO_LARGE, f"the answer is larger than {max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"the API server cannot be reached: {error.strerror}"
    return f"the connection to the API server failed ({type(error).__name__})"
