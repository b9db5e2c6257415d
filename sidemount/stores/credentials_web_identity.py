"""Credentials of a role, got for a token that the cluster has given the pod, and got again before they end.

Files: `role_arn` and `web_identity_token` (or AWS_ROLE_ARN and `token`): the second is a projected service account token.
Source: https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlencode

from sidemount.stores import xml_text
from sidemount.stores.credentials import Damaged, KeyFiles, Watched
from sidemount.stores.faults import Counts, kind_of_status
from sidemount.stores.http_message import Answer, ExchangeFailed, Request, parse_endpoint
from sidemount.stores.http_pool import HttpPool
from sidemount.stores.retries import Calls, Operation, Refusal
from sidemount.stores.signing import Credentials
from sidemount.stores.store import FaultKind, StoreFault

_ROLE = ("role_arn", "AWS_ROLE_ARN")
_TOKEN = ("web_identity_token", "token")
_SESSION = "sidemount"
_EARLY_S = 300.0
_LATE_S = 10.0
_NO_OTHER_S = 10.0


class Role(NamedTuple):
    """What the files say."""

    arn: str
    token: str


class _Grant(NamedTuple):
    role: Role
    credentials: Credentials
    came_s: float
    ends_s: float  # of time.time


class RoleKeys:
    """The access key of the files if there is one, else that of the role, else none. For any thread."""

    def __init__(
        self,
        directory: str,
        pool: HttpPool,
        endpoint: str,
        counts: Counts,
        *,
        timeout_s: float,
        retry_timeout_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = KeyFiles(directory)
        self._roles = Watched(directory, (*_ROLE, *_TOKEN), parse)
        self._endpoint, path = parse_endpoint(endpoint)
        self._target = f"{path}/"
        self._calls = Calls(
            pool, _Dialect(), timeout_s=timeout_s, retry_timeout_s=retry_timeout_s, counts=counts
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._grant: _Grant | None = None
        self._failed: tuple[float, StoreFault] | None = None
        self._aside_s = 0.0

    def current(self) -> Credentials | None:
        """Return credentials, None to ask anonymously. May ask for some. Raises StoreFault."""
        began_s = self._clock()
        found = self._keys.current()
        if found is not None:
            return found
        role = self._roles.current()
        if role is None:
            return None
        grant = self._grant
        if grant is not None and grant.role.arn == role.arn and began_s < grant.ends_s - _EARLY_S:
            return grant.credentials
        with self._lock:
            return self._granted(role, began_s)

    def renew(self) -> bool:
        """The store has refused what it got: look at the files now, or ask for other credentials of the role."""
        if self._keys.renew():
            return True
        self._roles.renew()
        with self._lock:
            grant = self._grant
            if grant is None or self._clock() - grant.came_s < _NO_OTHER_S:
                return False
            self._grant = None  # asked for at the next attempt
            return True

    def _granted(self, role: Role, began_s: float) -> Credentials:
        grant, now_s = self._grant, self._clock()
        if grant is not None and grant.role.arn == role.arn and now_s < grant.ends_s - _LATE_S:
            if now_s >= grant.ends_s - _EARLY_S and now_s - self._aside_s >= _NO_OTHER_S:
                self._aside_s = now_s
                with contextlib.suppress(RuntimeError):  # no memory for a thread: later, then
                    threading.Thread(target=self._ask_aside, args=(role,), name="role", daemon=True).start()
            return grant.credentials
        if self._failed is not None and self._failed[0] >= began_s:
            raise self._failed[1]  # another call has tried for as long as this one has waited
        try:
            self._grant = grant = self._ask(role)
        except StoreFault as fault:
            self._failed = self._clock(), fault
            raise
        return grant.credentials

    def _ask_aside(self, role: Role) -> None:
        """Get the next ones while the old ones are good. A fault is counted, and it is tried again."""
        with contextlib.suppress(StoreFault):
            grant = self._ask(role)
            with self._lock:
                self._grant = grant

    def _ask(self, role: Role) -> _Grant:
        asked = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": role.arn,
            "RoleSessionName": _SESSION,
            "WebIdentityToken": role.token,
        }
        body = urlencode(asked).encode("ascii")
        headers = {"content-type": "application/x-www-form-urlencoded"}

        def read(answer: Answer) -> _Grant:
            credentials, ends_s = granted(answer)
            return _Grant(role, credentials, self._clock(), ends_s)

        return self._calls.call(
            Operation(name="ASSUME ROLE", what=repr(role.arn)),
            lambda: Request(self._endpoint, "POST", self._target, dict(headers), [body]),
            read,
        )


class _Dialect:
    """Credentials are asked for without any: the body proves who asks."""

    def prepare(self, request: Request) -> Request:
        """Return it as it is."""
        return request

    def explain(self, request: Request, answer: Answer) -> Refusal | None:
        """Return why there are none. The answer's own message may repeat what was asked with."""
        if answer.status == 200:
            return None
        code = ""
        with contextlib.suppress(ExchangeFailed):
            root = xml_text.parse(answer.body, "ErrorResponse")
            code = next(
                (xml_text.texts(one).get("Code", "") for one in root if xml_text.name_of(one) == "Error"), ""
            )
        kind = kind_of_status(answer.status)
        if kind in (FaultKind.REQUEST, FaultKind.DENIED):
            kind = FaultKind.CREDENTIALS
        return Refusal(kind, f"HTTP {answer.status} {code[:80]}".strip(), code, answer.status)

    def adapt(self, refusal: Refusal, answer: Answer) -> bool:
        """There is nothing to learn."""
        return False


def parse(files: Mapping[str, str]) -> Role | None:
    """Return what files say of a role, None if they name none. Damaged if the token is missing or none."""
    arns = [files[name].strip() for name in _ROLE if name in files]
    if not arns:
        return None
    tokens = [files[name].strip() for name in _TOKEN if name in files]
    if not arns[0] or not tokens or not tokens[0]:
        raise Damaged(f"{_ROLE[0]} or {_TOKEN[0]} is missing or empty")
    for value in (arns[0], tokens[0]):
        if not value.isascii() or not value.isprintable() or " " in value:
            raise Damaged(f"{_ROLE[0]} or {_TOKEN[0]} holds characters that have no place there")
    return Role(arns[0], tokens[0])


def granted(answer: Answer) -> tuple[Credentials, float]:
    """Return the credentials in an answer of STS, and when they end, in seconds. Raises ExchangeFailed if there are none."""
    root = xml_text.parse(answer.body, "AssumeRoleWithWebIdentityResponse")
    for element in root.iter():
        if xml_text.name_of(element) == "Credentials":
            told = xml_text.texts(element)
            with contextlib.suppress(LookupError, ValueError):
                found = Credentials(told["AccessKeyId"], told["SecretAccessKey"], told["SessionToken"])
                return found, datetime.fromisoformat(told["Expiration"]).timestamp()
    raise ExchangeFailed(FaultKind.ANSWER, "the answer holds no credentials", sent=True)
