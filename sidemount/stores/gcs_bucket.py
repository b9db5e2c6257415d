"""A bucket of Google Cloud Storage: where it is, who asks it, and how its refusals are understood.

Source: https://cloud.google.com/storage/docs/json_api
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote

from sidemount.stores import gcs_errors
from sidemount.stores.http_message import Answer, Request, parse_endpoint
from sidemount.stores.retries import Refusal
from sidemount.stores.signing import encode_query
from sidemount.stores.store import Buffer, FaultKind

DEFAULT_ENDPOINT = "https://storage.googleapis.com"


class TokenSource(Protocol):
    """Where tokens come from."""

    def current(self) -> str | None:
        """Return one, None to ask anonymously. Raises StoreFault."""
        ...

    def renew(self) -> bool:
        """Look for another one after a refusal. True if there is."""
        ...


class GcsBucket:
    """Makes requests to one bucket. Keys are encoded whole, "/" too, so that nobody on the way can normalise them."""

    def __init__(self, name: str, tokens: TokenSource, endpoint: str = "") -> None:
        self.name = name
        self._tokens = tokens
        self._has_worked = False
        self._used = threading.local()
        self._endpoint, self._base = parse_endpoint(endpoint or DEFAULT_ENDPOINT)
        self._bucket = f"{self._base}/storage/v1/b/{encode(name)}"

    def request(
        self,
        method: str,
        path: str,
        query: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
    ) -> Request:
        """Return a request to what is beneath the bucket, without a token yet."""
        target = f"{self._bucket}{path}"
        text = encode_query(query)
        return Request(
            self._endpoint, method, f"{target}?{text}" if text else target, dict(headers or {}), body
        )

    def insertion(
        self, query: Iterable[tuple[str, str]], headers: Mapping[str, str], body: Sequence[Buffer]
    ) -> Request:
        """Return a request that makes an object."""
        target = f"{self._base}/upload/storage/v1/b/{encode(self.name)}/o?{encode_query(query)}"
        return Request(self._endpoint, "POST", target, dict(headers), body)

    def prepare(self, request: Request) -> Request:
        """Add the token."""
        self._used.token = token = self._tokens.current()
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        return request

    def explain(self, request: Request, answer: Answer) -> Refusal | None:
        """Return why an answer is no success. 304 is one: it was asked for."""
        if answer.status in (200, 201, 204, 206, 304):
            self._has_worked = True
            return None
        refusal = gcs_errors.refusal_of(answer)
        if refusal.kind is FaultKind.CREDENTIALS and self._has_worked:
            return refusal._replace(again=True)  # rotated: the new ones may take a while to get here
        return refusal

    def adapt(self, refusal: Refusal, answer: Answer) -> bool:
        """Look for another token after a refusal. True too if another thread has found one meanwhile."""
        if refusal.kind not in (FaultKind.CREDENTIALS, FaultKind.DENIED):
            return False
        return self._tokens.renew() or self._tokens.current() != getattr(self._used, "token", None)


def encode(text: str) -> str:
    """Return a key or a name as one part of a path."""
    return quote(text.encode("utf-8", "surrogateescape"), safe="")


def object_path(key: str) -> str:
    """Return the path of an object beneath its bucket."""
    return f"/o/{encode(key)}"
