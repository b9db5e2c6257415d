"""Who asks Google Cloud Storage: an access token from a file, or one that a service account's key file gets. Files are read again.

Files: `access_token` with a token, or `service_account.json` (also `service-account.json`, `key.json`) as Google gives it out. None of
them: the store is asked anonymously. Source: https://developers.google.com/identity/protocols/oauth2/service-account
"""

import contextlib
import importlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol
from urllib.parse import urlencode

from sidemount.stores.credentials import Damaged, Watched
from sidemount.stores.faults import Counts, fault, kind_of_status
from sidemount.stores.http_message import Answer, ExchangeFailed, Request, parse_endpoint
from sidemount.stores.http_pool import HttpPool
from sidemount.stores.retries import Calls, Operation, Refusal
from sidemount.stores.store import FaultKind, StoreFault

_TOKEN = "access_token"  # noqa: S105  # a file's name
_KEYS = ("service_account.json", "service-account.json", "key.json")
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_GOOGLE = ".googleapis.com"
_EARLY_S = 300.0
_LATE_S = 10.0
_LIFE_S = 3600
_NO_OTHER_S = 10.0


class Account(Protocol):
    """Whoever can prove who it is with a signature."""

    @property
    def email(self) -> str:
        """Its name."""
        ...

    @property
    def token_uri(self) -> str:
        """Where tokens are given out for it."""
        ...

    def assertion(self, now_s: int) -> str:
        """Return a signed statement of who asks, good for an hour."""
        ...


class Token(NamedTuple):
    """A token and when it came and ends, by the clock of `time.monotonic`."""

    text: str
    came_s: float
    ends_s: float


class TokenFiles:
    """The token that a directory's files give at the moment. `directory` "": none. `also_at`: a URL whose host may give tokens, too."""

    def __init__(
        self,
        directory: str,
        pool: HttpPool,
        counts: Counts,
        *,
        timeout_s: float,
        retry_timeout_s: float,
        also_at: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files: Watched[str | Account] = Watched(directory, (_TOKEN, *_KEYS), _source_in, clock)
        self._calls = Calls(
            pool, _TokenDialect(), timeout_s=timeout_s, retry_timeout_s=retry_timeout_s, counts=counts
        )
        self._also_at = parse_endpoint(also_at)[0].host if also_at else ""
        self._clock = clock
        self._lock = threading.Lock()
        self._account: Account | None = None
        self._token: Token | None = None
        self._failed: tuple[float, StoreFault] | None = None
        self._aside_s = -_NO_OTHER_S

    def current(self) -> str | None:
        """Return a token, None to ask anonymously. May ask for one. Raises StoreFault."""
        began_s = self._clock()
        source = self._files.current()
        if source is None or isinstance(source, str):
            return source
        with self._lock:
            return self._granted(source, began_s).text

    def renew(self) -> bool:
        """The store has refused the token: look at the files now, and get another one. True if there is another."""
        if self._files.renew():
            return True
        with self._lock:
            had = self._token
            if had is None or self._clock() - had.came_s < _NO_OTHER_S:
                return False
            self._token = None  # asked for again at the next attempt
            return True

    def _granted(self, account: Account, began_s: float) -> Token:
        if account != self._account:
            self._account, self._token = account, None
        token, now_s = self._token, self._clock()
        if token is not None and now_s < token.ends_s - _LATE_S:
            if now_s >= token.ends_s - _EARLY_S and now_s - self._aside_s >= _NO_OTHER_S:
                self._aside_s = now_s
                with contextlib.suppress(RuntimeError):  # no memory for a thread: later, then
                    threading.Thread(
                        target=self._ask_aside, args=(account,), name="token", daemon=True
                    ).start()
            return token
        if self._failed is not None and self._failed[0] >= began_s:
            raise self._failed[1]  # another call has tried for as long as this one has waited
        try:
            self._token = self._ask(account)
        except StoreFault as failed:
            self._failed = self._clock(), failed
            raise
        return self._token

    def _ask_aside(self, account: Account) -> None:
        """Get the next token while the old one is good. A fault is counted, and it is tried again."""
        with contextlib.suppress(StoreFault):
            token = self._ask(account)
            with self._lock:
                if self._account == account:
                    self._token = token

    def _ask(self, account: Account) -> Token:
        endpoint, path = parse_endpoint(account.token_uri)
        if endpoint.host != self._also_at and not (endpoint.is_tls and endpoint.host.endswith(_GOOGLE)):
            # A Secret must not choose whom this process talks to.
            raise fault(FaultKind.CREDENTIALS, "credentials: token_uri is no address of Google's")

        def make() -> Request:
            body = urlencode({"grant_type": _GRANT, "assertion": account.assertion(int(time.time()))})
            headers = {"content-type": "application/x-www-form-urlencoded"}
            return Request(endpoint, "POST", path or "/", headers, [body.encode("ascii")])

        def read(answer: Answer) -> Token:
            try:
                told = json.loads(answer.body)
                text, life_s = _checked(str(told["access_token"])), float(told.get("expires_in", _LIFE_S))
            except (ValueError, LookupError, TypeError, AttributeError):
                raise ExchangeFailed(FaultKind.ANSWER, "the answer holds no token", sent=True) from None
            now_s = self._clock()
            return Token(text, now_s, now_s + life_s)

        return self._calls.call(Operation(name="TOKEN", what=f"for {account.email}"), make, read)


class _TokenDialect:
    """A token is asked for without one."""

    def prepare(self, request: Request) -> Request:
        """Return it as it is: the body proves who asks."""
        return request

    def explain(self, request: Request, answer: Answer) -> Refusal | None:
        """Return why there is no token. The answer's own words may repeat what was asked with."""
        if answer.status == 200:
            return None
        kind = kind_of_status(answer.status)
        if kind in (FaultKind.REQUEST, FaultKind.DENIED):
            kind = FaultKind.CREDENTIALS
        return Refusal(kind, f"HTTP {answer.status}", status=answer.status)

    def adapt(self, refusal: Refusal, answer: Answer) -> bool:
        """There is nothing to learn."""
        return False


def _source_in(files: Mapping[str, str]) -> str | Account | None:
    if _TOKEN in files:
        return _checked(files[_TOKEN])
    present = [files[name] for name in _KEYS if name in files]
    if not present:
        return None
    # Imported by who needs it: its library for signatures is larger than all else of this package.
    found: Account = importlib.import_module("sidemount.stores.gcs_account").parse_account(present[0])
    return found


def _checked(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Damaged(f"{_TOKEN} holds no token")
    return token
