"""Multipart uploads to S3."""

import hashlib
import time
from collections.abc import Mapping, Sequence

from sidemount.stores import s3_listing, xml_text
from sidemount.stores.bodies import size_of
from sidemount.stores.faults import plain
from sidemount.stores.http_message import Answer, ExchangeFailed
from sidemount.stores.retries import Refused
from sidemount.stores.s3_client import S3Client
from sidemount.stores.s3_values import etag_of, quoted
from sidemount.stores.store import Buffer, FaultKind, ObjectInfo, Part, StoreFault


class S3Uploads:
    """Uploads of one bucket: each is known by key and id alone, so another process can go on with it."""

    def __init__(self, client: S3Client) -> None:
        self._client = client

    def begin(self, key: str, headers: Mapping[str, str]) -> str:
        """Begin one and return its id. The headers are those of the object that it will make."""
        return self._client.call("CREATE UPLOAD", key, "POST", _upload_id, [("uploads", "")], headers)

    def put(self, key: str, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Store a part."""
        size = size_of(content)
        query = [("partNumber", str(number)), ("uploadId", upload)]
        return self._client.call(
            "PUT PART", key, "PUT", lambda answer: Part(number, size, _etag(answer)), query, body=content
        )

    def copy(self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int) -> Part:
        """Take a part from an object."""
        query = [("partNumber", str(number)), ("uploadId", upload)]
        headers = {
            "x-amz-copy-source": self._client.bucket.source(source.key),
            "x-amz-copy-source-range": f"bytes={offset}-{offset + size - 1}",
            "x-amz-copy-source-if-match": quoted(source.etag),
        }
        return self._client.call(
            "COPY PART",
            key,
            "PUT",
            lambda answer: Part(number, size, copied(answer, "CopyPartResult")[0]),
            query,
            headers,
            is_long=True,
        )

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that are there."""
        found: list[Part] = []
        marker = ""
        while True:
            query = [("uploadId", upload), ("max-parts", "1000")]
            if marker:
                query.append(("part-number-marker", marker))
            page, following = self._client.call("LIST PARTS", key, "GET", s3_listing.parts_of, query)
            found += page
            if not following:
                return found
            if following == marker:
                raise plain(FaultKind.ANSWER, f"LIST PARTS {key!r}: the same page again")
            marker = following

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], if_absent: bool, if_match: str
    ) -> ObjectInfo:
        """Make the object of its parts."""
        headers = {"if-none-match": "*"} if if_absent else {}
        if if_match:
            headers["if-match"] = quoted(if_match)
        named = "".join(
            f"<Part><PartNumber>{one.number}</PartNumber><ETag>{xml_text.escape(quoted(one.etag))}</ETag></Part>"
            for one in parts
        )
        body = f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{named}</CompleteMultipartUpload>'
        try:
            etag = self._client.call(
                "COMPLETE UPLOAD",
                key,
                "POST",
                _completed,
                [("uploadId", upload)],
                headers,
                [body.encode("utf-8")],
                is_long=True,
            )
        except Refused as refused:
            done = self._done_all_the_same(key, parts, refused)
            if done is None:
                raise self._client.condition_failed(refused, if_absent, if_match) from None
            return done
        size = sum(one.size for one in parts)
        # The time of an object of parts is when its upload was begun, which only the store knows.
        try:
            info = self._client.head(key)
        except StoreFault:
            info = ObjectInfo(key, size, etag, 0)
        return info if info.etag == etag else ObjectInfo(key, size, etag, time.time_ns())

    def abort(self, key: str, upload: str) -> None:
        """Give one up."""
        try:
            self._client.call("ABORT UPLOAD", key, "DELETE", lambda answer: None, [("uploadId", upload)])
        except Refused as refused:
            if refused.kind is not FaultKind.MISSING or refused.code == "NoSuchBucket":
                raise

    def unfinished(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return what was begun and neither completed nor aborted."""
        found: list[tuple[str, str, int]] = []
        markers: tuple[str, str] | None = None
        while True:
            query = [("uploads", ""), ("encoding-type", "url"), ("prefix", prefix), ("max-uploads", "1000")]
            if markers is not None:
                query += [("key-marker", markers[0]), ("upload-id-marker", markers[1])]
            page, following = self._client.call(
                "LIST UPLOADS", "", "GET", s3_listing.uploads_of, query, lane=prefix
            )
            found += page
            if following is None:
                return found
            if following == markers or not following[0]:
                raise plain(FaultKind.ANSWER, f"LIST UPLOADS {prefix!r}: the same page again")
            markers = following

    def _done_all_the_same(self, key: str, parts: Sequence[Part], refused: Refused) -> ObjectInfo | None:
        """Return the object if an attempt has made it whose answer was lost: S3 makes the ETag of those of the parts."""
        if not refused.lost or refused.kind not in (FaultKind.MISSING, FaultKind.CHANGED, FaultKind.CONFLICT):
            return None
        try:
            info = self._client.head(key)
            expected = hashlib.md5(b"".join(bytes.fromhex(one.etag) for one in parts), usedforsecurity=False)
        except (StoreFault, ValueError):
            return None
        return info if info.etag == f"{expected.hexdigest()}-{len(parts)}" else None


def copied(answer: Answer, root: str) -> tuple[str, str]:
    """Return ETag and time that the answer to a copy tells."""
    told = xml_text.texts(xml_text.parse(answer.body, root))
    if not told.get("ETag"):
        raise ExchangeFailed(FaultKind.ANSWER, "the answer tells no ETag", sent=True)
    return etag_of(told["ETag"]), told.get("LastModified", "")


def _upload_id(answer: Answer) -> str:
    told = xml_text.texts(xml_text.parse(answer.body, "InitiateMultipartUploadResult")).get("UploadId")
    if not told:
        raise ExchangeFailed(FaultKind.ANSWER, "the answer tells no upload id", sent=True)
    return told


def _etag(answer: Answer) -> str:
    told = answer.headers.get("etag")
    if not told:
        raise ExchangeFailed(FaultKind.ANSWER, "the answer tells no ETag", sent=True)
    return etag_of(told)


def _completed(answer: Answer) -> str:
    told = xml_text.texts(xml_text.parse(answer.body, "CompleteMultipartUploadResult")).get("ETag", "")
    return etag_of(told) if told else _etag(answer)
