"""Copies within a bucket of S3: in one call, or in parts if the object is large."""

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from sidemount.stores.http_message import Answer
from sidemount.stores.retries import Refused
from sidemount.stores.s3_client import S3Client
from sidemount.stores.s3_uploads import S3Uploads, copied
from sidemount.stores.s3_values import instant_ns, quoted, tag_in
from sidemount.stores.store import CopyWatch, FaultKind, ObjectInfo, Part, StoreFault

# A store may take a minute for a copy of gigabytes, and answers only then: parts are done soon, and several at once.
_WHOLE_BYTES = 1 << 30
_PART_BYTES = 256 << 20
_MOST_PARTS = 10_000
_THREADS = 4
_KEPT = frozenset(
    {"content-type", "content-encoding", "content-language", "content-disposition", "cache-control"}
)


class S3Copying:
    """Copies that take along what the source's headers say. For any thread."""

    def __init__(self, client: S3Client, uploads: S3Uploads) -> None:
        self._client = client
        self._uploads = uploads
        self.watch: CopyWatch | None = None

    def copy(self, source: ObjectInfo, headers: Mapping[str, str], key: str, if_absent: bool) -> ObjectInfo:
        """Copy that version of an object. `headers`: what a HEAD has told of it."""
        if source.size > _WHOLE_BYTES:
            return self._in_parts(source, headers, key, if_absent)
        asked = {
            "x-amz-copy-source": self._client.bucket.source(source.key),
            "x-amz-copy-source-if-match": quoted(source.etag),
        }
        if not if_absent:
            return self._whole(source, key, asked)
        try:
            return self._whole(source, key, asked | {"if-none-match": "*"})
        except Refused as refused:
            if refused.kind is FaultKind.UNSUPPORTED:
                return self._whole(source, key, asked)
            if refused.kind is not FaultKind.CHANGED:
                raise
            return self._found(source, headers, key, refused)

    def _found(
        self, source: ObjectInfo, headers: Mapping[str, str], key: str, refused: Refused
    ) -> ObjectInfo:
        """Return the copy if an attempt has made it whose answer was lost, else raise which of the two conditions failed."""
        try:
            info, found = self._client.described(key)
        except Refused as missing:
            if missing.kind is FaultKind.MISSING:
                raise refused from None  # so it was the source's
            raise
        tag = tag_in(headers)
        is_ours = info.etag == source.etag or (tag != "" and tag_in(found) == tag)
        if refused.lost and info.size == source.size and is_ours:
            return info
        raise self._client.condition_failed(refused, True, "") from None

    def _whole(self, source: ObjectInfo, key: str, headers: Mapping[str, str]) -> ObjectInfo:
        def read(answer: Answer) -> ObjectInfo:
            etag, modified = copied(answer, "CopyObjectResult")
            return ObjectInfo(key, source.size, etag, instant_ns(modified))

        return self._client.call("COPY", key, "PUT", read, (), headers, is_long=True)

    def _in_parts(
        self, source: ObjectInfo, headers: Mapping[str, str], key: str, if_absent: bool
    ) -> ObjectInfo:
        kept = {
            name: value for name, value in headers.items() if name in _KEPT or name.startswith("x-amz-meta-")
        }
        upload = self._uploads.begin(key, kept)
        if self.watch is not None:
            self.watch.begun(key, upload)
        size = max(_PART_BYTES, -(-source.size // _MOST_PARTS))

        def part(number: int) -> Part:
            offset = (number - 1) * size
            return self._uploads.copy(key, upload, number, source, offset, min(size, source.size - offset))

        is_over = False
        try:
            with ThreadPoolExecutor(_THREADS, "copy") as threads:
                parts = list(threads.map(part, range(1, -(-source.size // size) + 1)))
            made = self._uploads.complete(key, upload, parts, if_absent, "")
            is_over = True
            return made
        except BaseException:
            with contextlib.suppress(StoreFault):
                self._uploads.abort(key, upload)
                is_over = True
            raise
        finally:
            if self.watch is not None:
                self.watch.ended(key, upload, is_over=is_over)
