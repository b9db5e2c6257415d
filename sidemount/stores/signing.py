"""AWS Signature Version 4: who asks is proven by a signature in the headers of a request.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

import errno
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from sidemount.stores.faults import fault
from sidemount.stores.store import Buffer, FaultKind

EMPTY_SHA256 = hashlib.sha256().hexdigest()
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key. The secret parts stay out of every text that is made of it."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def encode_key(key: str) -> str:
    """Return a key as it stands in a path: whole, nothing normalised. What is no UTF-8 comes as surrogate escapes."""
    return quote(_bytes(key), safe="/~")


def encode_query(query: Iterable[tuple[str, str]]) -> str:
    """Return a query in the one form that is sent and signed: sorted, each name with a "="."""
    pairs = sorted((quote(name, safe="~"), quote(_bytes(value), safe="~")) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise fault(FaultKind.REQUEST, f"{text!r} is no text", number=errno.EILSEQ) from None


def sha256_of(content: Sequence[Buffer]) -> str:
    """Return the hash of buffers one after the other."""
    if not content:
        return EMPTY_SHA256
    found = hashlib.sha256()
    for one in content:
        found.update(one)
    return found.hexdigest()


class _Hmac:
    """HMAC-SHA256 with one key. The library's own lets other threads run in each of its calls, which costs more than the sum.

    Source: https://www.rfc-editor.org/rfc/rfc2104
    """

    def __init__(self, key: bytes) -> None:
        """`key` has no more bytes than a block of the hash."""
        whole = key.ljust(64, b"\0")
        self._inner = hashlib.sha256(whole.translate(_INNER))
        self._outer = hashlib.sha256(whole.translate(_OUTER))

    def hexdigest(self, text: bytes) -> str:
        """Return the sum of a text."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.hexdigest()


class _Key(NamedTuple):
    credentials: Credentials
    day: str
    region: str
    signs: _Hmac


class Signer:
    """Signs for one service. The key of a day is derived once."""

    def __init__(self, service: str = "s3") -> None:
        self._service = service
        self._key: _Key | None = None
        self._stamp = (0, "")

    def sign(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        credentials: Credentials,
        region: str,
        moment_s: float,
        payload: str,
    ) -> dict[str, str]:
        """Return the headers that prove a request. `headers` are those to be signed besides, with `host`, names in lower case.

        `target` is path and query as sent, from `encode_key` and `encode_query`; `payload` the hash of the body, or UNSIGNED_PAYLOAD.
        """
        stamp = self._stamp_of(int(moment_s))
        day = stamp[:8]
        added = {"x-amz-date": stamp}
        if self._service == "s3":
            added["x-amz-content-sha256"] = payload
        if credentials.session_token:
            added["x-amz-security-token"] = credentials.session_token
        signed = sorted({**headers, **added}.items())
        names = ";".join([name for name, _ in signed])
        lines = "".join([f"{name}:{' '.join(value.split())}\n" for name, value in signed])
        path, _, query = target.partition("?")
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}"
        scope = f"{day}/{region}/{self._service}/aws4_request"
        digest = hashlib.sha256(canonical.encode("utf-8")).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = self._key_of(credentials, day, region).hexdigest(text.encode("ascii"))
        added["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope},"
            f"SignedHeaders={names},Signature={signature}"
        )
        return added

    def _key_of(self, credentials: Credentials, day: str, region: str) -> _Hmac:
        known = self._key
        if known is not None and known[:3] == (credentials, day, region):
            return known.signs
        secret = ("AWS4" + credentials.secret_access_key).encode("utf-8")
        for part in (day, region, self._service, "aws4_request"):
            secret = hmac.digest(secret, part.encode("utf-8"), "sha256")
        self._key = _Key(credentials, day, region, _Hmac(secret))
        return self._key.signs

    def _stamp_of(self, moment_s: int) -> str:
        known = self._stamp
        if known[0] != moment_s:
            self._stamp = known = (moment_s, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment_s)))
        return known[1]
