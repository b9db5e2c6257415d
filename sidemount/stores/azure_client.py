"""Calls to one container of Azure's Blob service: what the store and its uploads are made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from sidemount.stores.azure_container import AzureContainer
from sidemount.stores.azure_values import info_in, is_whole
from sidemount.stores.http_message import Answer, Request
from sidemount.stores.ranged import Dialled, Ranged
from sidemount.stores.retries import Calls, Operation, Refused
from sidemount.stores.s3_values import quoted
from sidemount.stores.store import Buffer, FaultKind, Got, ObjectInfo
from sidemount.stores.throttle import lane_of

T = TypeVar("T")


class AzureClient:
    """`root` is what all keys of this volume begin with: lanes of the throttle begin behind it."""

    def __init__(
        self, container: AzureContainer, calls: Calls, *, root: str = "", long_timeout_s: float = 0.0
    ) -> None:
        self.container = container
        self.calls = calls
        self._long_timeout_s = long_timeout_s
        self._root = root

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
        operation = self._operation(name, key if lane is None else lane, is_long)
        asked = list(query)
        return self.calls.call(
            operation, lambda: self.container.request(method, key, asked, headers, body), read
        )

    def head(self, key: str) -> tuple[ObjectInfo, Mapping[str, str]]:
        """Return what is at a key, and the headers that tell of it."""
        return self.call("HEAD", key, "HEAD", lambda answer: (info_in(key, answer.headers), answer.headers))

    def get(self, key: str, offset: int, buffer: memoryview, etag: str, unless: str) -> Got:
        """Read a range."""

        def make(wanted: str, version: str, other_than: str) -> Request:
            headers = {"x-ms-range": wanted}
            if version:
                headers["if-match"] = quoted(version)
            elif other_than:
                headers["if-none-match"] = quoted(other_than)
            return self.container.request("GET", key, (), headers)

        dialled = Dialled(make, lambda headers: info_in(key, headers), is_whole)
        ranged = Ranged(dialled, offset, buffer, etag, unless)
        operation = self._operation("GET", key, is_long=False)
        return self.calls.call(operation, ranged.request, ranged.got, sink=ranged)

    def delete(self, key: str, etag: str = "") -> None:
        """Remove a blob, with `etag` only that version. That there is none is no fault, unless the container is not there either."""
        headers = {"x-ms-delete-snapshots": "include"}
        if etag:
            headers["if-match"] = quoted(etag)
        try:
            self.call("DELETE", key, "DELETE", lambda answer: None, (), headers)
        except Refused as refused:
            if refused.kind is not FaultKind.MISSING or refused.code == "ContainerNotFound":
                raise

    def _operation(self, name: str, key: str, is_long: bool) -> Operation:
        return Operation(
            name=name,
            what=repr(f"az://{self.container.name}/{key}"),
            lane=lane_of(key.removeprefix(self._root)),
            timeout_s=self._long_timeout_s if is_long else 0.0,
        )
