"""Calls to one bucket: a request made, signed, sent, repeated and understood. What reading, writing and uploads are made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from sidemount.stores.http_message import Answer, Request
from sidemount.stores.ranged import Dialled, Ranged
from sidemount.stores.retries import Calls, Operation, Refusal, Refused
from sidemount.stores.s3_bucket import S3Bucket
from sidemount.stores.s3_values import check_sums, info_of, quoted, tag_in
from sidemount.stores.store import Buffer, FaultKind, Got, ObjectInfo
from sidemount.stores.throttle import lane_of

T = TypeVar("T")
_SILENT = frozenset({301, 307, 400, 401, 403})


class S3Client:
    """`root` is what all keys of this volume begin with: lanes of the throttle begin behind it."""

    def __init__(
        self, bucket: S3Bucket, calls: Calls, *, root: str = "", long_timeout_s: float = 0.0
    ) -> None:
        self.bucket = bucket
        self.calls = calls
        self._root = root
        self._long_timeout_s = long_timeout_s

    def call(
        self,
        name: str,
        key: str,
        method: str,
        read: Callable[[Answer], T],
        query: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
        *,
        lane: str | None = None,
        is_long: bool = False,
    ) -> T:
        """Make a call. `is_long`: the store works on it before it answers."""
        operation = self.operation(name, key, lane=lane, timeout_s=self._long_timeout_s if is_long else 0.0)
        return self.calls.call(
            operation, lambda: self.bucket.request(method, key, query, headers, body), read
        )

    def operation(self, name: str, key: str, *, lane: str | None = None, timeout_s: float = 0.0) -> Operation:
        """Return what messages and the throttle need to know of a call."""
        lane = key if lane is None else lane
        what = f"s3://{self.bucket.name}/{key or lane}"
        return Operation(
            name=name, what=repr(what), lane=lane_of(lane.removeprefix(self._root)), timeout_s=timeout_s
        )

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key."""
        return self.tagged(key)[0]

    def tagged(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key, and its tag."""
        info, headers = self.described(key)
        return info, tag_in(headers)

    def described(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]]:
        """Return what is at a key, and all that the store says of it."""
        try:
            return self._head(key)
        except Refused as refused:
            if refused.status not in _SILENT:
                raise
        # A HEAD is refused without a word; the refusal of a GET says why, so that it can be learnt from.
        try:
            self.get(key, 0, memoryview(bytearray(1)), "", "")
        except Refused as refused:
            if refused.kind is not FaultKind.RANGE:
                raise
        return self._head(key)

    def get(self, key: str, offset: int, buffer: memoryview, etag: str, unless: str) -> Got:
        """Read a range."""

        def make(span: str, etag: str, unless: str) -> Request:
            headers = {"range": span}
            if etag:
                headers["if-match"] = quoted(etag)
            if unless:
                headers["if-none-match"] = quoted(unless)
            if not offset:
                headers["x-amz-checksum-mode"] = "ENABLED"
            return self.bucket.request("GET", key, headers=headers)

        dialled = Dialled(make, lambda headers: info_of(key, headers), check_sums)
        content = Ranged(dialled, offset, buffer, etag, unless)
        return self.calls.call(self.operation("GET", key), content.request, content.got, sink=content)

    @staticmethod
    def condition_failed(refused: Refused, if_absent: bool, if_match: str) -> Refused:
        """Return a fault of a conditional write as the port names it."""
        kind = refused.kind
        if if_absent and kind is FaultKind.CHANGED:
            kind = FaultKind.EXISTS
        elif if_match and kind is FaultKind.MISSING and refused.code != "NoSuchUpload":
            kind = FaultKind.CHANGED
        if kind is refused.kind:
            return refused
        return Refused(
            Refusal(kind, "", refused.code, refused.status), refused.strerror or "", lost=refused.lost
        )

    def _head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]]:
        return self.call("HEAD", key, "HEAD", lambda answer: (info_of(key, answer.headers), answer.headers))
