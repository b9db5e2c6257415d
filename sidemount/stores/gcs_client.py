"""Calls to one bucket of Google Cloud Storage: what the store and its uploads are made of."""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sidemount.stores.bodies import Framed
from sidemount.stores.gcs_bucket import GcsBucket, object_path
from sidemount.stores.gcs_errors import NO_BUCKET
from sidemount.stores.gcs_values import (
    FIELDS,
    Listed,
    info_in,
    is_whole,
    listed,
    made_in,
    md5_of,
    resource_in,
)
from sidemount.stores.http_message import Answer, Request
from sidemount.stores.ranged import Dialled, Ranged
from sidemount.stores.retries import Calls, Operation, Refused
from sidemount.stores.store import Buffer, FaultKind, Got, ObjectInfo
from sidemount.stores.throttle import lane_of

T = TypeVar("T")
_JSON = {"content-type": "application/json; charset=utf-8"}


class GcsClient:
    """`root` is what all keys of this volume begin with: lanes of the throttle begin behind it."""

    def __init__(
        self, bucket: GcsBucket, calls: Calls, *, root: str = "", long_timeout_s: float = 0.0
    ) -> None:
        self.bucket = bucket
        self.calls = calls
        self.root = root
        self._long_timeout_s = long_timeout_s

    def call(
        self,
        name: str,
        key: str,
        make: Callable[[], Request],
        read: Callable[[Answer], T],
        *,
        sink: Ranged | None = None,
        is_long: bool = False,
    ) -> T:
        """Make a call. `is_long`: the store works on it before it answers."""
        operation = Operation(
            name=name,
            what=repr(f"gs://{self.bucket.name}/{key}"),
            lane=lane_of(key.removeprefix(self.root)),
            timeout_s=self._long_timeout_s if is_long else 0.0,
        )
        return self.calls.call(operation, make, read, sink=sink)

    def resource(self, key: str) -> tuple[ObjectInfo, dict[str, str]]:
        """Return what is at a key, and its metadata."""
        return self.call(
            "HEAD",
            key,
            lambda: self.bucket.request("GET", object_path(key), [("fields", FIELDS)]),
            resource_in,
        )

    def get(self, key: str, offset: int, buffer: memoryview, etag: str, unless: str) -> Got:
        """Read a range."""

        def make(wanted: str, version: str, other_than: str) -> Request:
            query = [("alt", "media")]
            if version:
                query.append(("ifGenerationMatch", version))
            elif other_than:
                query.append(("ifGenerationNotMatch", other_than))
            # Without the second header content that is stored compressed would come expanded, and no range of it.
            headers = {"range": wanted, "accept-encoding": "gzip"}
            return self.bucket.request("GET", object_path(key), query, headers)

        dialled = Dialled(make, lambda headers: info_in(key, headers), is_whole)
        ranged = Ranged(dialled, offset, buffer, etag, unless)
        return self.call("GET", key, ranged.request, ranged.got, sink=ranged)

    def insert(
        self,
        key: str,
        content: Sequence[Buffer],
        metadata: Mapping[str, str],
        conditions: Iterable[tuple[str, str]] = (),
    ) -> ObjectInfo:
        """Make an object. The store refuses content that does not match the checksum that comes with it."""
        told = {
            "name": key,
            "md5Hash": md5_of(content),
            "metadata": dict(metadata),
            "contentType": "application/octet-stream",
        }
        boundary = f"sidemount-{secrets.token_hex(16)}"
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(told)}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        body = Framed(head.encode("ascii"), content, f"\r\n--{boundary}--\r\n".encode("ascii"))
        query = [("uploadType", "multipart"), ("name", key), *conditions]
        headers = {"content-type": f"multipart/related; boundary={boundary}"}
        return self.call("PUT", key, lambda: self.bucket.insertion(query, headers, body), made_in)

    def post(
        self,
        name: str,
        key: str,
        path: str,
        query: Iterable[tuple[str, str]],
        told: Mapping[str, Any],
        read: Callable[[Answer], T],
    ) -> T:
        """Have something done, and return what `read` makes of the answer."""
        body = [json.dumps(told).encode("ascii")]
        return self.call(
            name, key, lambda: self.bucket.request("POST", path, query, _JSON, body), read, is_long=True
        )

    def list(self, prefix: str, query: Iterable[tuple[str, str]]) -> Listed:
        """Return a page of a listing."""
        asked = [("prefix", prefix), *query]
        return self.call("LIST", prefix, lambda: self.bucket.request("GET", "/o", asked), listed)

    def delete(self, key: str, conditions: Iterable[tuple[str, str]] = ()) -> None:
        """Remove an object. That there is none is no fault, unless the bucket is not there either."""
        path, asked = object_path(key), tuple(conditions)
        try:
            self.call("DELETE", key, lambda: self.bucket.request("DELETE", path, asked), _nothing)
        except Refused as refused:
            if refused.kind is not FaultKind.MISSING or refused.code == NO_BUCKET:
                raise


def _nothing(answer: Answer) -> None:
    return None
