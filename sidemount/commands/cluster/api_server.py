"""ApiServer: calls of the API server for a command: each bounded in time and size, none of them writes."""

import asyncio
import os
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client, config

from sidemount.commands.cluster.access import Access
from sidemount.host.cluster_reader import ReadFailed, Trouble, decode, refusal_of
from sidemount.model.errors import InvalidRequest, NotReady, PolicyDenied, Reason, VolumeError

_CHUNK = 1 << 16
_DOCUMENT_MAX_BYTES = 64 << 20
_STREAM_MAX_BYTES = 64 << 20
_PAGE = 500
_TRIES = 3
_PAUSE_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call was answered: its status, and the document, None if it is no JSON object."""

    status: int
    document: Mapping[str, Any] | None

    @property
    def message(self) -> str:
        """What the API server says of a refusal."""
        told = (self.document or {}).get("message")
        return told if isinstance(told, str) else ""


class ApiServer:
    """One API server. Use it as an async context manager, for one command."""

    def __init__(self, access: Access, *, call_s: float = 10.0) -> None:
        """Raises InvalidRequest when the kubeconfig's certificates cannot be used."""
        self.access = access
        self._call_s = call_s
        try:
            self._api = client.ApiClient(access.configuration)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = error.reason if isinstance(error, ssl.SSLError) else type(error).__name__
            raise InvalidRequest(f"the certificates of {access.name} cannot be used ({why})") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]  # kubernetes.aio ships no types for it

    async def read(self, path: str) -> Mapping[str, Any]:
        """Return a document. Raises ReadFailed."""
        for attempt in range(_TRIES):
            try:
                return await self._document(path)
            except ReadFailed as error:
                if error.trouble is not Trouble.THROTTLED or attempt == _TRIES - 1:
                    raise
                await asyncio.sleep(min(error.retry_after_s or 1.0, _PAUSE_MAX_S))
        raise AssertionError("unreachable")

    async def pages(self, collection: str, **query: str) -> AsyncIterator[list[Mapping[str, Any]]]:
        """Yield the objects of a collection, page by page. Raises ReadFailed."""
        token = ""
        while True:
            asked = {**query, "limit": str(_PAGE), **({"continue": token} if token else {})}
            document = await self.read(f"{collection}?{_query(asked)}")
            items, metadata = document.get("items"), document.get("metadata")
            if items is None:  # Go writes an empty list as null
                items = []
            if not isinstance(items, list):
                raise ReadFailed(Trouble.MALFORMED, "the answer is no list")
            yield [item for item in items if isinstance(item, dict)]
            more = metadata.get("continue") if isinstance(metadata, dict) else ""
            if not isinstance(more, str) or not more or more == token:
                return
            token = more

    async def items(self, collection: str, **query: str) -> list[Mapping[str, Any]]:
        """Return all objects of a collection. Raises ReadFailed."""
        return [item async for page in self.pages(collection, **query) for item in page]

    async def text_end(self, path: str, max_bytes: int) -> str:
        """Return the end of a text, a log's for one. Raises ReadFailed."""
        kept: deque[bytes] = deque()
        size = passed = 0
        async with self._opened("GET", path) as response:
            if response.status != 200:
                raise await _refusal(response)
            while chunk := await response.content.read(_CHUNK):
                kept.append(chunk)
                size, passed = size + len(chunk), passed + len(chunk)
                while size - len(kept[0]) >= max_bytes:
                    size -= len(kept.popleft())
                if passed > _STREAM_MAX_BYTES:
                    raise ReadFailed(Trouble.TOO_LARGE, "the text does not end")
        return b"".join(kept)[-max_bytes:].decode(errors="replace")

    async def try_create(self, collection: str, manifest: Mapping[str, Any]) -> Answer:
        """Return what the API server would answer to a creation; nothing is created. Raises ReadFailed."""
        async with self._opened("POST", f"{collection}?dryRun=All", manifest) as response:
            text = await _read_bounded(response.content, _DOCUMENT_MAX_BYTES)
            status = response.status
        try:
            document = decode(text)
        except ReadFailed:
            document = None
        return Answer(status, document if isinstance(document, dict) else None)

    async def _document(self, path: str) -> Mapping[str, Any]:
        async with self._opened("GET", path) as response:
            if response.status != 200:
                raise await _refusal(response)
            document = decode(await _read_bounded(response.content, _DOCUMENT_MAX_BYTES))
        if not isinstance(document, dict):
            raise ReadFailed(Trouble.MALFORMED, "the answer is no JSON object")
        return document

    @asynccontextmanager
    async def _opened(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a call and give its answer. The deadline holds until its body is read; every failure becomes ReadFailed."""
        headers = {"Accept": "application/json, */*", "Content-Type": "application/json"}
        limit = aiohttp.ClientTimeout(total=self._call_s)
        try:
            # Bounded twice: by aiohttp, and around everything that the client does besides, such as a token's renewal.
            async with asyncio.timeout(self._call_s + 1):
                request = await self._api.param_serialize(
                    method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
                )
                response = (await self._api.call_api(*request, _request_timeout=limit)).response
                async with response:
                    yield response
        except TimeoutError as error:
            raise ReadFailed(Trouble.TIMEOUT, f"no answer in {self._call_s:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise ReadFailed(Trouble.UNREACHABLE, "its certificate is not trusted") from error
        except (aiohttp.ClientError, OSError, EOFError) as error:
            raise ReadFailed(Trouble.UNREACHABLE, _told(error)) from error
        except (config.ConfigException, client.exceptions.OpenApiException, ValueError) as error:
            # The library's own words may quote what it was given.
            raise ReadFailed(Trouble.INTERNAL, f"the client cannot call ({type(error).__name__})") from error


def cluster_error(access: Access, failure: ReadFailed, doing: str) -> VolumeError:
    """Return the error to end a command with. `doing` is what was tried: "pods cannot be listed"."""
    match failure.trouble:
        case Trouble.UNREACHABLE | Trouble.TIMEOUT:
            message = f"the API server {access.server} cannot be reached: {failure}"
            hint = f"does the cluster run, and is {access.name} the right one?"
            return NotReady(message, reason=Reason.CLUSTER_ACCESS, hint=hint)
        case Trouble.UNAUTHORIZED:
            message = f"the API server {access.server} does not accept the credentials of {access.name}"
            return PolicyDenied(
                message, reason=Reason.CLUSTER_ACCESS, hint="they may have expired: log in again"
            )
        case Trouble.FORBIDDEN:
            hint = "ask an admin for that right, or use -n with a namespace of yours"
            return PolicyDenied(f"{doing}: {failure}", reason=Reason.CLUSTER_ACCESS, hint=hint)
        case _:
            return NotReady(f"{doing}: {failure}", reason=Reason.CLUSTER_ACCESS)


def is_fatal(failure: ReadFailed) -> bool:
    """Tell whether no other call can do better: nobody is there, or does not know us."""
    return failure.trouble in (Trouble.UNREACHABLE, Trouble.TIMEOUT, Trouble.UNAUTHORIZED)


async def _refusal(response: aiohttp.ClientResponse) -> ReadFailed:
    text = await _read_bounded(response.content, _DOCUMENT_MAX_BYTES)
    try:
        status: Any = decode(text)
    except ReadFailed:
        status = None
    return refusal_of(response.status, status, response.headers.get("Retry-After", ""))


async def _read_bounded(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    chunks, size = [], 0
    while chunk := await content.read(_CHUNK):
        size += len(chunk)
        if size > max_bytes:
            raise ReadFailed(Trouble.TOO_LARGE, f"the answer is larger than {max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _query(query: Mapping[str, str]) -> str:
    return "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())


def _told(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name cannot be resolved"
    if isinstance(error, aiohttp.ClientSSLError):  # whose errno is OpenSSL's, not the system's
        return "it does not speak TLS as we do"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return f"the connection failed ({type(error).__name__})"
