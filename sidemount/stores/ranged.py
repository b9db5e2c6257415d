"""Reading a range of one version of an object over HTTP, gone on with from where it broke. What Google, Azure and plain HTTP share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidemount.stores.http_message import Answer, ExchangeFailed, Request, Sink
from sidemount.stores.store import FaultKind, Got, ObjectInfo


@dataclass(frozen=True, slots=True)
class Dialled:
    """How a store says it. `make` gets the Range header's value, the version to insist on and the one to do without ("" none)."""

    make: Callable[[str, str, str], Request]
    info_of: Callable[[Mapping[str, str]], ObjectInfo]
    is_whole: Callable[[Mapping[str, str], memoryview], bool] = lambda headers, content: True
    """Tell whether a whole object is what the headers of its answer say."""


class Ranged(Sink):
    """A range on its way into a buffer. However many attempts it takes: what is in the buffer is of one version."""

    __slots__ = ("_dialled", "_etag", "_headers", "_info", "_offset", "_unless")

    def __init__(self, dialled: Dialled, offset: int, buffer: memoryview, etag: str, unless: str) -> None:
        super().__init__(buffer)
        self._dialled = dialled
        self._offset = offset
        self._etag = etag
        self._unless = unless
        self._info: ObjectInfo | None = None
        self._headers: Mapping[str, str] = {}

    def request(self) -> Request:
        """Return the request for what is missing."""
        first, last = self._offset + self.filled, self._offset + len(self.buffer) - 1
        return self._dialled.make(f"bytes={first}-{last}", self._etag, "" if self._etag else self._unless)

    def begin(self, answer: Answer) -> None:
        """Take note of the version, and make sure that it is the right one, and the right place of it."""
        info = self._dialled.info_of(answer.headers)
        if self._etag and info.etag != self._etag:
            raise ExchangeFailed(
                FaultKind.CHANGED, "another version than the one that was asked for", sent=True
            )
        first = self._offset + self.filled
        told = answer.headers.get("content-range", "")
        if answer.status == 200 and first and not told:
            raise ExchangeFailed(FaultKind.UNSUPPORTED, "the server does not serve ranges", sent=True)
        if answer.status == 206 and not told.startswith(f"bytes {first}-"):
            raise ExchangeFailed(
                FaultKind.ANSWER, "the answer is not the range that was asked for", sent=True
            )
        if self._info is None:
            self._info, self._etag, self._headers = info, info.etag, answer.headers

    def got(self, answer: Answer) -> Got:
        """Return what was read, once the answer is complete."""
        if answer.status == 304:
            return Got(None, 0)
        info = self._info
        if info is None:
            raise ExchangeFailed(FaultKind.ANSWER, "no content in the answer", sent=True)
        if self._unless and info.etag == self._unless:
            return Got(None, 0)  # the server has sent it all the same
        if self.filled < min(len(self.buffer), info.size - self._offset):
            raise ExchangeFailed(FaultKind.TRUNCATED, "the content ended too early", sent=True)
        whole = self.buffer[: self.filled]
        if not self._offset and self.filled == info.size and not self._dialled.is_whole(self._headers, whole):
            self.filled = 0
            raise ExchangeFailed(FaultKind.CHECKSUM, "the content does not match its checksum", sent=True)
        return Got(info, self.filled)
