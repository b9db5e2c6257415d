"""A part of a web site: where it is, who asks it, and how its refusals are understood.

Credentials are files of a directory: `access_token`, or `username` and `password`. A redirection is followed where it stays at the same host:
another one is none that anybody has allowed, and this process may reach hosts that the site cannot.
"""

import base64
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from sidemount.stores.credentials import Damaged, Watched
from sidemount.stores.faults import fault, kind_of_status
from sidemount.stores.http_message import Answer, Endpoint, Request, parse_endpoint
from sidemount.stores.retries import Refusal
from sidemount.stores.s3_errors import pause_of
from sidemount.stores.signing import encode_key
from sidemount.stores.store import FaultKind

_FILES = ("access_token", "username", "password")
_MOVES = frozenset({301, 302, 303, 307, 308})
_FOLLOWED = "followed"
_MOVED_S = 60.0
_MOST_MOVED = 1000


@dataclass(frozen=True, slots=True)
class WebCredentials:
    """The value of an Authorization header."""

    header: str = field(repr=False)


@dataclass(slots=True)
class _WebRequest(Request):
    """A request that knows what it was for before the server sent it elsewhere."""

    asked: str = ""


class WebSite:
    """Makes requests for what is beneath a URL."""

    def __init__(self, url: str, secrets: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._endpoint, self._base = parse_endpoint(url)
        self._credentials: Watched[WebCredentials] = Watched(secrets, _FILES, parse)
        self._clock = clock
        self._lock = threading.Lock()
        self._moved: OrderedDict[str, tuple[float, Endpoint, str]] = OrderedDict()
        self._has_worked = False

    def request(self, method: str, key: str, headers: Mapping[str, str] | None = None) -> Request:
        """Return a request. A key that the server would take for another is not there."""
        if any(part in (".", "..") for part in key.split("/")):
            raise fault(FaultKind.MISSING, f"{method} {key!r}: no path of a web site")
        target = f"{self._base}/{encode_key(key)}"
        # What is compressed on its way has other ranges than what is there.
        sent = {"accept-encoding": "identity", **(headers or {})}
        return _WebRequest(self._endpoint, method, target, sent, asked=target)

    def prepare(self, request: Request) -> Request:
        """Go where the server has sent us lately, and say who asks."""
        with self._lock:
            moved = self._moved.get(request.target)
        if moved is not None and self._clock() < moved[0]:
            request.endpoint, request.target = moved[1], moved[2]
        found = self._credentials.current()
        if found is not None:
            request.headers["authorization"] = found.header
        return request

    def explain(self, request: Request, answer: Answer) -> Refusal | None:
        """Return why an answer is no success. 304 is one: it was asked for."""
        status = answer.status
        if status in (200, 206, 304):
            self._has_worked = True
            return None
        if status in _MOVES:
            asked = urlsplit(answer.headers.get("location", "")).path
            if asked.endswith("/") and not request.target.endswith("/"):
                return Refusal(FaultKind.MISSING, f"HTTP {status}: it is a directory", status=status)
            is_ours = self._follow(request, answer.headers.get("location", ""))
            told = "it sends us on and on" if is_ours else "it sends us to another host"
            return Refusal(FaultKind.REQUEST, f"HTTP {status}: {told}", _FOLLOWED if is_ours else "", status)
        kind = FaultKind.CREDENTIALS if status == 401 else kind_of_status(status)
        again = kind is FaultKind.CREDENTIALS and self._has_worked
        return Refusal(kind, f"HTTP {status}", "", status, pause_of(answer), again)

    def adapt(self, refusal: Refusal, answer: Answer) -> bool:
        """Follow, or look for newer credentials."""
        if refusal.code == _FOLLOWED:
            return True
        return refusal.kind in (FaultKind.CREDENTIALS, FaultKind.DENIED) and self._credentials.renew()

    def _follow(self, request: Request, location: str) -> bool:
        """Remember where a request is to go. False if that is elsewhere: only from http to https may it change otherwise."""
        here = request.endpoint
        url = urljoin(f"{'https' if here.is_tls else 'http'}://{here.authority}{request.target}", location)
        parts = urlsplit(url)
        try:
            there, _ = parse_endpoint(f"{parts.scheme}://{parts.netloc}")
        except ValueError:
            return False
        if there.host != here.host or (there != here and (here.is_tls or not there.is_tls)):
            return False
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not location or not target.isascii() or not target.isprintable() or " " in target:
            return False
        with self._lock:
            asked = request.asked if isinstance(request, _WebRequest) else request.target
            self._moved[asked] = (self._clock() + _MOVED_S, there, target)
            while len(self._moved) > _MOST_MOVED:
                self._moved.popitem(last=False)
        return True


def parse(files: Mapping[str, str]) -> WebCredentials | None:
    """Return what files say, None if there are none. Damaged if it is not whole."""
    if not files:
        return None
    token, name, password = (files.get(one, "") for one in _FILES)
    if any(not value.isprintable() for value in files.values()):
        raise Damaged("a file holds characters that no header can have")
    if token:
        if not token.isascii() or " " in token:
            raise Damaged("access_token holds no token")
        return WebCredentials(f"Bearer {token}")
    if not name or not password or ":" in name:
        raise Damaged("username or password is missing or empty")
    return WebCredentials("Basic " + base64.b64encode(f"{name}:{password}".encode()).decode("ascii"))
