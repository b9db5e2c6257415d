"""HTTP messages as values: where to, what is asked, what was answered, and why there was no answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from sidemount.stores.bodies import size_of
from sidemount.stores.store import Buffer, FaultKind


class Endpoint(NamedTuple):
    """A server."""

    is_tls: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Return what the Host header says: the port only if it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


def parse_endpoint(url: str) -> tuple[Endpoint, str]:
    """Return the server and the path ("" or "/…" without a final "/") of an http(s) URL. ValueError if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http:// or https:// URL of a host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("user names, queries and fragments have no place here")
    is_tls = parts.scheme == "https"
    return Endpoint(is_tls, parts.hostname, parts.port or (443 if is_tls else 80)), parts.path.rstrip("/")


@dataclass(slots=True)
class Request:
    """A request: `target` is path and query, encoded. Host, Content-Length and Connection are added when it is sent."""

    endpoint: Endpoint
    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: Sequence[Buffer] = ()

    @property
    def size(self) -> int:
        """Return the length of the body in bytes."""
        return size_of(self.body)


class Answer(NamedTuple):
    """An answer: names of headers are in lower case. `body` is empty where the content went into a sink."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Sink:
    """A caller's buffer that content goes to. `filled` bytes are there already: what comes is put behind them."""

    __slots__ = ("buffer", "filled")

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.filled = 0

    def begin(self, answer: Answer) -> None:
        """Look at the head of a 200 or 206 before its content is taken. Raises ExchangeFailed if that must not be taken."""


class ExchangeFailed(Exception):
    """There was no whole answer. `sent`: the server may have got the request. `stale`: on a connection that had been idle."""

    def __init__(self, kind: FaultKind, text: str, *, sent: bool = False, stale: bool = False) -> None:
        super().__init__(text)
        self.kind = kind
        self.sent = sent
        self.stale = stale
