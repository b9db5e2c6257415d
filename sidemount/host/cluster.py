"""Calls of the API server: raw JSON documents, each call bounded in time and size, each failure a sentence without secrets."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, Self
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client, config

from sidemount.model.errors import (
    InvalidRequest,
    NotReady,
    PolicyDenied,
    PublishConflict,
    Unsupported,
    VolumeError,
)

CALL_S = 5.0
_MAX_BYTES = 8 << 20
_CHUNK = 1 << 16
_TOLD = 300

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """One object's kind, collection path and name, and what of it is meant."""

    kind: str
    collection: str
    name: str
    is_secret: bool = False
    subresource: str = ""

    @property
    def path(self) -> str:
        """The path of the object itself, or of its subresource."""
        whole = f"{self.collection}/{quote(self.name, safe='')}"
        return f"{whole}/{self.subresource}" if self.subresource else whole

    @property
    def told(self) -> str:
        """The object for a message."""
        return f"{self.kind} {self.name}"


class HearsTime(Protocol):
    """Who wants to know the API server's time."""

    def heard(self, moment: datetime) -> None:
        """Take note of it."""
        ...


class Cluster:
    """One API server. Use it as an async context manager."""

    def __init__(
        self, configuration: client.Configuration, clock: HearsTime | None, *, call_s: float = CALL_S
    ) -> None:
        configuration.retries = (
            None  # each caller has its own way of trying again; 0 and False mean for ever here
        )
        self._api = client.ApiClient(configuration)
        self._clock = clock
        self._call_s = call_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]  # kubernetes.aio ships no types for it

    async def read(self, place: Place) -> Document | None:
        """Return the object, None if there is none. Raises: as `_call`."""
        try:
            return await self._call("GET", place.path, place)
        except _Absent:
            return None

    async def list_all(self, place: Place, selector: str, *, fields: str = "") -> Document:
        """Return the list of a collection's objects that a label selector picks. Raises: as `_call`."""
        query = f"{place.collection}?labelSelector={quote(selector, safe='')}&limit=500"
        if fields:
            query += f"&fieldSelector={quote(fields, safe='')}"
        try:
            return await self._call("GET", query, place)
        except _Absent:
            return {}

    async def create(self, place: Place, document: Document) -> Document:
        """Make the object. Raises: as `_call`; PublishConflict if it is there already."""
        try:
            return await self._call("POST", place.collection, place, document)
        except _Absent as error:
            raise NotReady(f"{place.told} cannot be made: its namespace is not there") from error

    async def replace(self, place: Place, document: Document) -> Document:
        """Write the object if it is still as its resourceVersion says. Raises: as `_call`; PublishConflict if not."""
        try:
            return await self._call("PUT", place.path, place, document)
        except _Absent as error:
            raise PublishConflict(f"{place.told} was deleted meanwhile") from error

    async def patch(self, place: Place, operations: Sequence[Document]) -> Document:
        """Apply a JSON Patch. Raises: as `_call`; PublishConflict if it is gone, or a `test` of the patch fails."""
        try:
            return await self._call("PATCH", place.path, place, list(operations))
        except _Absent as error:
            raise PublishConflict(f"{place.told} was deleted meanwhile") from error

    async def delete(self, place: Place, *, uid: str = "", grace_s: int | None = None) -> bool:
        """Delete the object, if it is the one of that `uid`; False if there is none. Raises: as `_call`; PublishConflict if it is another."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", place.path, place, options)
        except _Absent:
            return False
        return True

    async def _call(self, method: str, path: str, place: Place, body: Any = None) -> Document:
        """Make one call. Raises: NotReady, PolicyDenied, PublishConflict, InvalidRequest, Unsupported."""
        kind = "application/json-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": kind}
        # Bounded twice: by aiohttp, and around everything that the client does besides, such as a token's renewal.
        limit = aiohttp.ClientTimeout(total=self._call_s)
        try:
            async with asyncio.timeout(self._call_s + 1):
                request = await self._api.param_serialize(
                    method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
                )
                response = await self._api.call_api(*request, _request_timeout=limit)
                self._hear(response.headers.get("Date"))
                async with response.response as answer:
                    content = await _read_bounded(answer.content)
        except (TimeoutError, aiohttp.ClientError, OSError, EOFError) as error:
            raise NotReady(f"{_doing(method, place)}: {_why(error)}", hint=_AWAY) from error
        except (config.ConfigException, client.exceptions.OpenApiException, ValueError) as error:
            raise NotReady(
                f"{_doing(method, place)}: the client cannot call ({type(error).__name__})", hint=_AWAY
            ) from error
        return _answer(method, place, response.status, content)

    def _hear(self, date: str | None) -> None:
        if date is None or self._clock is None:
            return
        try:
            self._clock.heard(parsedate_to_datetime(date))
        except (ValueError, TypeError):
            return


class _Absent(Exception):
    """The API server knows no such object."""


_AWAY = "it is tried again; what is served now stays"
_VERBS = {"GET": "read", "POST": "made", "PUT": "written", "PATCH": "patched", "DELETE": "deleted"}


async def _read_bounded(content: aiohttp.StreamReader) -> bytes:
    chunks, size = [], 0
    while chunk := await content.read(_CHUNK):
        size += len(chunk)
        if size > _MAX_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer is larger than {_MAX_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _answer(method: str, place: Place, status: int, content: bytes) -> Document:
    document: Any = None
    if content:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
    if 200 <= status < 300:
        if not isinstance(document, dict):
            raise NotReady(f"{_doing(method, place)}: the answer is no JSON object", hint=_AWAY)
        return document
    raise _error(method, place, status, document if isinstance(document, dict) else {})


def _error(method: str, place: Place, status: int, told: Document) -> Exception:
    """Return the failure for an HTTP status. What the server says of a Secret is left out: it may quote it."""
    reason = str(told.get("reason") or "")[:_TOLD]
    message = "" if place.is_secret else str(told.get("message") or "")[:_TOLD]
    said = f"{_doing(method, place)}: the API server answered {status} {reason}".rstrip()
    said = f"{said} ({message})" if message else said
    if status == 404:
        return _Absent(said)
    if status == 409 or (status == 422 and method == "PATCH") or status == 412:
        # A `test` operation that fails is answered with 422 Invalid.
        return PublishConflict(said)
    if status in (401, 403):
        verb = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
        return PolicyDenied(said, hint=f"let the service account {verb} {place.kind} {place.name}")
    if status in (408, 410, 425, 429) or status >= 500:
        return NotReady(said, hint=_AWAY)
    return InvalidRequest(said) if status in (400, 413, 415, 422) else _unexpected(said)


def _unexpected(said: str) -> VolumeError:
    return Unsupported(said, hint="is this the API server, and not a proxy in front of it?")


def _doing(method: str, place: Place) -> str:
    return f"{place.told} cannot be {_VERBS[method]}"


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the API server does not answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the API server's certificate is not trusted"
    if isinstance(error, OSError) and error.strerror:
        return f"the API server cannot be reached: {error.strerror}"
    return f"the connection to the API server failed ({type(error).__name__})"
