"""Reading content of an object in S3: a range of one version, gone on with from where it broke."""

from sidecar.objects.http_message import Answer, ExchangeFailed, Request, Sink
from sidecar.objects.s3_bucket import S3Bucket
from sidecar.objects.s3_values import check_sums, info_of, quoted
from sidecar.objects.store import FaultKind, Got, ObjectInfo


class Content(Sink):
    """A range on its way into a buffer. However many attempts it takes: what is in the buffer is of one version."""

    __slots__ = ("_bucket", "_etag", "_info", "_key", "_offset", "_sums", "_unless")

    def __init__(
        self, bucket: S3Bucket, key: str, offset: int, buffer: memoryview, etag: str, unless: str
    ) -> None:
        super().__init__(buffer)
        self._bucket = bucket
        self._key = key
        self._offset = offset
        self._etag = etag
        self._unless = unless
        self._info: ObjectInfo | None = None
        self._sums: dict[str, str] = {}

    def request(self) -> Request:
        """Return the request for what is missing."""
        first, last = self._offset + self.filled, self._offset + len(self.buffer) - 1
        headers = {"range": f"bytes={first}-{last}"}
        if self._etag:
            headers["if-match"] = quoted(self._etag)
        elif self._unless:
            headers["if-none-match"] = quoted(self._unless)
        if not self._offset:
            headers["x-amz-checksum-mode"] = "ENABLED"
        return self._bucket.request("GET", self._key, headers=headers)

    def begin(self, answer: Answer) -> None:
        """Take note of the version, and make sure that it is the right one, and the right place of it."""
        headers = answer.headers
        info = info_of(self._key, headers)
        if self._etag and info.etag != self._etag:
            raise ExchangeFailed(
                FaultKind.CHANGED, "another version than the one that was asked for", sent=True
            )
        first = self._offset + self.filled
        told = headers.get("content-range", "")
        if (answer.status == 206 or first) and not told.startswith(f"bytes {first}-"):
            raise ExchangeFailed(
                FaultKind.ANSWER, "the answer is not the range that was asked for", sent=True
            )
        if self._info is None:
            self._info, self._etag = info, info.etag
            self._sums = {
                name: value for name, value in headers.items() if name.startswith("x-amz-checksum-")
            }

    def got(self, answer: Answer) -> Got:
        """Return what was read, once the answer is complete."""
        if answer.status == 304:
            return Got(None, 0)
        info = self._info
        if info is None:
            raise ExchangeFailed(FaultKind.ANSWER, "no content in the answer", sent=True)
        if self.filled < min(len(self.buffer), info.size - self._offset):
            raise ExchangeFailed(FaultKind.TRUNCATED, "the content ended too early", sent=True)
        is_whole = not self._offset and self.filled == info.size
        if is_whole and self._sums and not check_sums(self._sums, self.buffer[: self.filled]):
            self.filled = 0
            raise ExchangeFailed(FaultKind.CHECKSUM, "the content does not match its checksum", sent=True)
        return Got(info, self.filled)
