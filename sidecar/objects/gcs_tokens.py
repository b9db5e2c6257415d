"""Who asks Google Cloud Storage: an access token from a file, or one that a service account's key file gets. Files are read again.

Files: `access_token` with a token, or `service_account.json` (also `service-account.json`, `key.json`) as Google gives it out. None of
them: the store is asked anonymously. Source: https://developers.google.com/identity/protocols/oauth2/service-account
"""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sidecar.objects.credentials import Damaged, Watched
from sidecar.objects.faults import Counts, kind_of_status
from sidecar.objects.http_message import Answer, ExchangeFailed, Request, parse_endpoint
from sidecar.objects.http_pool import HttpPool
from sidecar.objects.retries import Calls, Operation, Refusal
from sidecar.objects.store import FaultKind, StoreFault

_TOKEN = "access_token"  # noqa: S105  # a file's name
_KEYS = ("service_account.json", "service-account.json", "key.json")
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EARLY_S = 300.0
_LATE_S = 10.0
_LIFE_S = 3600
_NO_OTHER_S = 10.0


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """What is needed of a key file."""

    email: str
    key_id: str
    token_uri: str
    key: rsa.RSAPrivateKey = field(repr=False)


class Token(NamedTuple):
    """A token and when it came and ends, by the clock of `time.monotonic`."""

    text: str
    came_s: float
    ends_s: float


class TokenFiles:
    """The token that a directory's files give at the moment. `directory` "": none."""

    def __init__(
        self,
        directory: str,
        pool: HttpPool,
        counts: Counts,
        *,
        timeout_s: float,
        retry_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files: Watched[str | ServiceAccount] = Watched(directory, (_TOKEN, *_KEYS), _source_in, clock)
        self._calls = Calls(
            pool, _TokenDialect(), timeout_s=timeout_s, retry_timeout_s=retry_timeout_s, counts=counts
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._account: ServiceAccount | None = None
        self._token: Token | None = None
        self._failed: tuple[float, StoreFault] | None = None
        self._aside_s = -_NO_OTHER_S

    def current(self) -> str | None:
        """Return a token, None to ask anonymously. May ask for one. Raises StoreFault."""
        began_s = self._clock()
        source = self._files.current()
        if not isinstance(source, ServiceAccount):
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

    def close(self) -> None:
        """End the waiting for a token."""
        self._calls.close()

    def _granted(self, account: ServiceAccount, began_s: float) -> Token:
        if account != self._account:
            self._account, self._token = account, None
        token, now_s = self._token, self._clock()
        if token is not None and now_s < token.ends_s - _LATE_S:
            if now_s >= token.ends_s - _EARLY_S and now_s - self._aside_s >= _NO_OTHER_S:
                self._aside_s = now_s
                threading.Thread(target=self._ask_aside, args=(account,), name="token", daemon=True).start()
            return token
        if self._failed is not None and self._failed[0] >= began_s:
            raise self._failed[1]  # another call has tried for as long as this one has waited
        try:
            self._token = self._ask(account)
        except StoreFault as fault:
            self._failed = self._clock(), fault
            raise
        return self._token

    def _ask_aside(self, account: ServiceAccount) -> None:
        """Get the next token while the old one is good. A fault is counted, and it is tried again."""
        with contextlib.suppress(StoreFault):
            token = self._ask(account)
            with self._lock:
                if self._account == account:
                    self._token = token

    def _ask(self, account: ServiceAccount) -> Token:
        endpoint, path = parse_endpoint(account.token_uri)

        def make() -> Request:
            body = urlencode({"grant_type": _GRANT, "assertion": assertion(account, int(time.time()))})
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


def assertion(account: ServiceAccount, now_s: int) -> str:
    """Return a signed statement of who asks, good for an hour."""
    claims = {
        "iss": account.email,
        "scope": _SCOPE,
        "aud": account.token_uri,
        "iat": now_s,
        "exp": now_s + _LIFE_S,
    }
    header = {"alg": "RS256", "typ": "JWT", "kid": account.key_id}
    text = ".".join(_encoded(json.dumps(one).encode("utf-8")) for one in (header, claims))
    signature = account.key.sign(text.encode("ascii"), padding.PKCS1v15(), SHA256())
    return f"{text}.{_encoded(signature)}"


def parse_account(text: str) -> ServiceAccount:
    """Return the account of a key file. Damaged if it is none; the text says nothing of what is in it."""
    try:
        told = json.loads(text)
        email, uri = str(told["client_email"]), str(told["token_uri"])
        key = load_pem_private_key(str(told["private_key"]).encode("ascii"), None)
        parse_endpoint(uri)
    except (ValueError, LookupError, TypeError, UnsupportedAlgorithm):
        raise Damaged("the service account's file is no key file of Google") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise Damaged("the service account's key is no RSA key")
    return ServiceAccount(email, str(told.get("private_key_id", "")), uri, key)


def _source_in(files: Mapping[str, str]) -> str | ServiceAccount | None:
    if _TOKEN in files:
        return _checked(files[_TOKEN])
    present = [files[name] for name in _KEYS if name in files]
    return parse_account(present[0]) if present else None


def _checked(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Damaged(f"{_TOKEN} holds no token")
    return token


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")
