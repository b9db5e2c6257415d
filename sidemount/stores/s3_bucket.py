"""A bucket: where it is, who asks it, and how its refusals are understood. All that is S3's own about one request."""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Protocol

from sidemount.stores import s3_errors
from sidemount.stores.http_message import Answer, Endpoint, Request, parse_endpoint
from sidemount.stores.retries import Refusal
from sidemount.stores.signing import Credentials, Signer, encode_key, encode_query, sha256_of
from sidemount.stores.store import Buffer, FaultKind

_CLOCK_S = 1.0
DEFAULT_REGION = "us-east-1"
_RENEWING = frozenset({FaultKind.DENIED, FaultKind.CREDENTIALS})
_ELSEWHERE = frozenset(
    {
        "PermanentRedirect",
        "TemporaryRedirect",
        "Redirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    }
)
_AWS_HOST = re.compile(r"(?:^|\.)s3[.-](?:dualstack\.)?([a-z]{2,}-[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$")
_SIGNED = ("content-md5",)


class CredentialSource(Protocol):
    """Where credentials come from."""

    def current(self) -> Credentials | None:
        """Return them, None to ask anonymously. Raises StoreFault."""
        ...

    def renew(self) -> bool:
        """Look for newer ones after a refusal. True if there are."""
        ...


class S3Bucket:
    """Makes and signs requests to one bucket. `endpoint` "": AWS, wherever the bucket turns out to be."""

    def __init__(
        self,
        name: str,
        credentials: CredentialSource,
        *,
        endpoint: str = "",
        region: str = "",
        path_style: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._credentials = credentials
        self._is_aws = not endpoint
        self._region = region or DEFAULT_REGION
        self._path_style = path_style or ("." in name and not endpoint.startswith("http://"))
        self._clock = clock
        self._ahead_s = 0.0
        self._signer = Signer()
        self._has_worked = False
        self._used = threading.local()
        self._place(endpoint or aws_endpoint("s3", self._region))

    def request(
        self,
        method: str,
        key: str,
        query: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
    ) -> Request:
        """Return a request, not yet signed. `key` "" is the bucket itself."""
        target = self._base + (f"/{encode_key(key)}" if key or not self._base else "")
        text = encode_query(query) if query else ""
        return Request(
            self._endpoint, method, f"{target}?{text}" if text else target, dict(headers or {}), body
        )

    def source(self, key: str) -> str:
        """Return a key of this bucket as the header of a copy says it."""
        return f"/{self.name}/{encode_key(key)}"

    def prepare(self, request: Request) -> Request:
        """Sign."""
        credentials = self._credentials.current()
        self._used.state = self._state(credentials)
        if credentials is None:
            return request
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.startswith("x-amz-") or name in _SIGNED
        }
        headers["host"] = request.endpoint.authority
        request.headers.update(
            self._signer.sign(
                request.method,
                request.target,
                headers,
                credentials,
                self._region,
                self._clock() + self._ahead_s,
                # Of every body, under TLS too: every store checks it, and it is the fastest sum that all of them know.
                sha256_of(request.body),
            )
        )
        return request

    def explain(self, request: Request, answer: Answer) -> Refusal | None:
        """Return why an answer is no success. 304 is one: it was asked for."""
        if answer.status in (200, 204, 206, 304) and not s3_errors.has_error(answer):
            self._has_worked = True
            return None
        refusal = s3_errors.refusal_of(answer)
        if refusal.kind is FaultKind.CREDENTIALS and self._has_worked:
            return refusal._replace(again=True)  # rotated: the new ones may take a while to get here
        return refusal

    def adapt(self, refusal: Refusal, answer: Answer) -> bool:
        """Learn the clock, the region or newer credentials from a refusal. True if they are not what this thread has asked with."""
        if refusal.code == "RequestTimeTooSkewed":
            self._set_clock(answer)
        elif refusal.status in (301, 307, 308) or refusal.code in _ELSEWHERE:
            self._move(answer)
        elif refusal.kind in _RENEWING:
            self._credentials.renew()
        else:
            return False
        # Another thread may have learnt it meanwhile.
        return bool(self._state(self._credentials.current()) != self._used.state)

    def _state(self, credentials: Credentials | None) -> tuple[Credentials | None, str, float]:
        return credentials, self._region, self._ahead_s

    def _set_clock(self, answer: Answer) -> None:
        try:
            told_s = parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
        except ValueError:
            return
        ahead_s = told_s - self._clock()
        if abs(ahead_s - self._ahead_s) > _CLOCK_S:
            self._ahead_s = ahead_s

    def _move(self, answer: Answer) -> None:
        """Follow a bucket to its region. Signed requests go nowhere but to AWS, or to the endpoint that the settings name."""
        body = s3_errors.ErrorBody.of(answer)
        region = answer.headers.get("x-amz-bucket-region") or body.get("Region", "")
        if not region and (found := _AWS_HOST.search(body.get("Endpoint", ""))):
            region = found[1]
        if not region or region == self._region or not region.replace("-", "").isalnum():
            return
        self._region = region
        if self._is_aws:
            self._place(aws_endpoint("s3", self._region))

    def _place(self, url: str) -> None:
        endpoint, path = parse_endpoint(url)
        if self._path_style:
            self._endpoint, self._base = endpoint, f"{path}/{encode_key(self.name)}"
        else:
            host = f"{self.name}.{endpoint.host}"
            self._endpoint, self._base = Endpoint(endpoint.is_tls, host, endpoint.port), path


def aws_endpoint(service: str, region: str) -> str:
    """Return the URL of a service of AWS in a region."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://{service}.{region}.{domain}"
