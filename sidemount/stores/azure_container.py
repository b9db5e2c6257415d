"""A container of Azure's Blob service: where it is, who asks it, and how its refusals are understood."""

import errno
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import formatdate
from typing import Protocol

from sidemount.stores import azure_errors
from sidemount.stores.azure_credentials import AzureCredentials
from sidemount.stores.azure_signing import VERSION, readable, shared_key
from sidemount.stores.faults import fault
from sidemount.stores.http_message import Answer, Endpoint, Request, parse_endpoint
from sidemount.stores.retries import Refusal
from sidemount.stores.signing import encode_key, encode_query
from sidemount.stores.store import Buffer, FaultKind

_DOMAIN = "blob.core.windows.net"
_SOURCE_S = 3600
_RENEWING = frozenset({FaultKind.DENIED, FaultKind.CREDENTIALS})


class AzureSource(Protocol):
    """Where credentials come from."""

    def current(self) -> AzureCredentials | None:
        """Return them, None if there are none. Raises StoreFault."""
        ...

    def renew(self) -> bool:
        """Look for newer ones after a refusal. True if there are."""
        ...


class AzureContainer:
    """Makes and signs requests to one container. `endpoint` "": Azure, at the account that the credentials name."""

    def __init__(
        self, name: str, credentials: AzureSource, endpoint: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self.name = name
        self._credentials = credentials
        self._place = parse_endpoint(endpoint) if endpoint else None
        self._clock = clock
        self._has_worked = False
        self._used = threading.local()

    def request(
        self,
        method: str,
        key: str,
        query: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
    ) -> Request:
        """Return a request, not yet signed. `key` "" is the container itself. Names of headers are in lower case."""
        if "\\" in key:  # which the service takes for "/": another blob
            kind, number = (FaultKind.REQUEST, errno.EINVAL) if method == "PUT" else (FaultKind.MISSING, 0)
            raise fault(kind, f"{method} {key!r}: Azure has no backslash in names", number=number)
        endpoint, base = self._where()
        target = self._path(base, key)
        text = encode_query(query)
        return Request(endpoint, method, f"{target}?{text}" if text else target, dict(headers or {}), body)

    def source(self, key: str) -> dict[str, str]:
        """Return the headers that name a blob of this container as a source, and let the store read it."""
        endpoint, base = self._where()
        scheme = "https" if endpoint.is_tls else "http"
        url = f"{scheme}://{endpoint.authority}{self._path(base, key)}"
        found = self._credentials.current()
        if found is None:
            return {"x-ms-copy-source": url}
        if found.key:
            url += f"?{readable(found.account, self.name, key, found.key, _SOURCE_S)}"
        elif found.sas:
            url += f"?{found.sas}"
        headers = {"x-ms-copy-source": url}
        if found.token:
            headers["x-ms-copy-source-authorization"] = f"Bearer {found.token}"
        return headers

    def prepare(self, request: Request) -> Request:
        """Add what proves who asks."""
        request.headers |= {
            "x-ms-version": VERSION,
            "x-ms-date": formatdate(self._clock(), usegmt=True),
        }
        self._used.credentials = found = self._credentials.current()
        if found is None:
            return request
        if found.key:
            request.headers["authorization"] = shared_key(request, found.account, found.key)
        elif found.token:
            request.headers["authorization"] = f"Bearer {found.token}"
        elif found.sas:
            request.target += ("&" if "?" in request.target else "?") + found.sas
        return request

    def explain(self, request: Request, answer: Answer) -> Refusal | None:
        """Return why an answer is no success. 304 is one: it was asked for."""
        if answer.status in (200, 201, 202, 206, 304):
            self._has_worked = True
            return None
        refusal = azure_errors.refusal_of(answer)
        if refusal.kind is FaultKind.CREDENTIALS and self._has_worked:
            return refusal._replace(again=True)  # rotated: the new ones may take a while to get here
        return refusal

    def adapt(self, refusal: Refusal, answer: Answer) -> bool:
        """Look for newer credentials after a refusal. True too if another thread has found them meanwhile."""
        if refusal.kind not in _RENEWING:
            return False
        return self._credentials.renew() or self._credentials.current() != getattr(
            self._used, "credentials", None
        )

    def _where(self) -> tuple[Endpoint, str]:
        if self._place is not None:
            return self._place
        found = self._credentials.current()
        if found is None or not found.account:
            raise fault(FaultKind.CREDENTIALS, "credentials: account_name is missing, and no endpoint is set")
        return Endpoint(True, f"{found.account}.{_DOMAIN}", 443), ""

    def _path(self, base: str, key: str) -> str:
        return f"{base}/{encode_key(self.name)}" + (f"/{encode_key(key)}" if key else "")
