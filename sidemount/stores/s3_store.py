"""S3 and what speaks its protocol. Keys here are whole: nothing is put before them."""

import base64
import hashlib
import itertools
import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sidemount.stores import s3_listing, xml_text
from sidemount.stores.bodies import size_of
from sidemount.stores.faults import RETRIED, fault
from sidemount.stores.http_message import Answer
from sidemount.stores.retries import Refused
from sidemount.stores.s3_client import S3Client
from sidemount.stores.s3_copying import S3Copying
from sidemount.stores.s3_uploads import S3Uploads
from sidemount.stores.s3_values import TAG_HEADER, quoted, tag_header, tag_in, written
from sidemount.stores.store import Abilities, Buffer, CopyWatch, FaultKind, Got, ObjectInfo, Page, Part

_LOG = logging.getLogger(__name__)
_MOST_DELETED = 1000
_NONCE = "*"  # never the beginning of an encoded tag


class S3Store:
    """Source of the interface: `sidemount.stores.store.ObjectStore`. For any thread."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._uploads = S3Uploads(client)
        self._copying = S3Copying(client, self._uploads)
        self._abilities = Abilities()

    @property
    def abilities(self) -> Abilities:
        """All of the port, less what this very store has said it does not know."""
        return self._abilities

    @property
    def counts(self) -> dict[str, int]:
        """Return numbers of requests and faults."""
        return self._client.calls.counts.numbers()

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key."""
        return self._client.head(key)

    def tag_of(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key and its tag."""
        info, tag = self._client.tagged(key)
        return info, "" if tag.startswith(_NONCE) else tag

    def get(self, key: str, offset: int, buffer: memoryview, *, etag: str = "", unless: str = "") -> Got:
        """Read."""
        if buffer:
            try:
                return self._client.get(key, offset, buffer, etag, unless)
            except Refused as refused:
                if refused.kind is not FaultKind.RANGE:
                    raise
        info = self.head(key)
        if etag and info.etag != etag:
            raise fault(FaultKind.CHANGED, f"GET {key!r}: another version than the one that was asked for")
        return Got(None if unless and unless == info.etag else info, 0)

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        """Return a page."""
        return self._client.call(
            "LIST",
            "",
            "GET",
            lambda answer: s3_listing.page_of(answer, token, self._unreadable),
            s3_listing.page_query(prefix, delimiter, token, most),
            lane=prefix,
        )

    def put(
        self,
        key: str,
        content: Sequence[Buffer],
        *,
        if_absent: bool = False,
        if_match: str = "",
        tag: str = "",
    ) -> ObjectInfo:
        """Make an object."""
        size = size_of(content)
        headers = tag_header(tag)
        nonce = ""
        if if_absent or if_match:
            headers |= {"if-none-match": "*"} if if_absent else {"if-match": quoted(if_match)}
            if not tag:  # by which it is recognised if the answer is lost
                nonce = _NONCE + secrets.token_hex(16)
                headers[TAG_HEADER] = nonce
        try:
            return self._client.call(
                "PUT", key, "PUT", lambda answer: written(key, size, answer), (), headers, content
            )
        except Refused as refused:
            if not (if_absent or if_match):
                raise
            if refused.kind is FaultKind.UNSUPPORTED and refused.status == 501:
                return self._put_unprotected(key, content, if_absent, if_match, tag)
            if refused.lost and refused.kind in (FaultKind.CHANGED, FaultKind.CONFLICT):
                info, found = self._client.tagged(key)
                if found == (tag or nonce):
                    return info
            raise self._client.condition_failed(refused, if_absent, if_match) from None

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Copy an object."""
        info, headers = self._client.described(source)
        if etag and info.etag != etag:
            raise fault(
                FaultKind.CHANGED, f"COPY {source!r}: another version than the one that was asked for"
            )
        if not info.size and key.endswith("/"):  # a marker, which gateways to files do not copy
            return self.put(key, (), if_absent=if_absent, tag=tag_in(headers))
        if if_absent:
            self._require_absent(key)
        return self._copying.copy(info, headers, key, if_absent)

    def watch_copies(self, watch: CopyWatch) -> None:
        """Have somebody hear of uploads that copies begin."""
        self._copying.watch = watch

    def delete(self, key: str) -> None:
        """Remove an object."""
        try:
            self._client.call("DELETE", key, "DELETE", lambda answer: None)
        except Refused as refused:
            if refused.kind is not FaultKind.MISSING or refused.code == "NoSuchBucket":
                raise

    def delete_version(self, key: str, etag: str) -> None:
        """Remove an object if it is that version still. Stores that are only compatible may know no such condition."""
        try:
            if self.head(key).etag != etag:
                raise fault(FaultKind.CHANGED, f"DELETE {key!r}: another version than the one that was named")
            headers = {"if-match": quoted(etag)}
            self._client.call("DELETE", key, "DELETE", lambda answer: None, (), headers)
        except Refused as refused:
            if refused.kind is FaultKind.UNSUPPORTED:
                self.delete(key)
            elif refused.kind is not FaultKind.MISSING or refused.code == "NoSuchBucket":
                raise

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects, a thousand at a time, and raise the first fault at the end. Goes on after one that cannot be removed.

        One after the other where the store does not take many, and not when it is away: each would take all the time for retries.
        """
        rest = iter(keys)
        first: Refused | None = None
        while batch := list(itertools.islice(rest, _MOST_DELETED)):
            for key in self._not_deleted(batch):
                try:
                    self.delete(key)
                except Refused as refused:
                    if refused.kind in RETRIED:
                        raise
                    first = first or refused
        if first is not None:
            raise first

    def begin_upload(self, key: str, *, tag: str = "") -> str:
        """Begin an upload."""
        return self._uploads.begin(key, tag_header(tag))

    def put_part(self, key: str, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Store a part."""
        return self._uploads.put(key, upload, number, content)

    def copy_part(
        self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int
    ) -> Part:
        """Take a part from an object."""
        return self._uploads.copy(key, upload, number, source, offset, size)

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that are there."""
        return self._uploads.parts(key, upload)

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], *, if_absent: bool = False, if_match: str = ""
    ) -> ObjectInfo:
        """Make the object of its parts."""
        return self._uploads.complete(key, upload, parts, if_absent, if_match)

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up."""
        self._uploads.abort(key, upload)

    def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return unfinished uploads."""
        return self._uploads.unfinished(prefix)

    def close(self) -> None:
        """Let go of connections."""
        self._client.calls.close()

    def _unreadable(self, key: str) -> None:
        counts = self._client.calls.counts
        if not counts.unreadable_keys:
            _LOG.warning(
                "key_is_no_text", extra={"bucket": self._client.bucket.name, "key": ascii(key[:200])}
            )
        counts.unreadable_keys += 1

    def _put_unprotected(
        self, key: str, content: Sequence[Buffer], if_absent: bool, if_match: str, tag: str
    ) -> ObjectInfo:
        """Look first, then put: all there is on a store that says it knows no conditions."""
        self._abilities = replace(self._abilities, put_if_absent=False, put_if_match=False)
        if if_absent:
            self._require_absent(key)
        elif self._client.head(key).etag != if_match:
            raise fault(FaultKind.CHANGED, f"PUT {key!r}: another version than the one that was named")
        return self.put(key, content, tag=tag)

    def _require_absent(self, key: str) -> None:
        try:
            self._client.head(key)
        except Refused as refused:
            if refused.kind is FaultKind.MISSING:
                return
            raise
        raise fault(FaultKind.EXISTS, f"{key!r} exists")

    def _not_deleted(self, keys: Sequence[str]) -> list[str]:
        """Ask to remove keys in one go and return those that have to be removed one by one."""
        alone: list[str] = []
        named: list[str] = []
        for key in keys:
            try:
                named.append(f"<Object><Key>{xml_text.escape(key)}</Key></Object>")
            except ValueError:
                alone.append(key)
        if len(named) < 2:
            return list(keys)
        text = f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>{"".join(named)}</Delete>'
        body = text.encode("utf-8")
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode("ascii")
        try:
            failed = self._client.call(
                "DELETE MANY",
                "",
                "POST",
                _failed_keys,
                [("delete", "")],
                {"content-md5": digest},
                [body],
                lane=keys[0],
                is_long=True,
            )
        except Refused as refused:
            if refused.kind in (FaultKind.UNSUPPORTED, FaultKind.REQUEST):
                return list(keys)
            raise
        return alone + failed


def _failed_keys(answer: Answer) -> list[str]:
    root = xml_text.parse(answer.body, "DeleteResult")
    failed = [xml_text.texts(child) for child in root if xml_text.name_of(child) == "Error"]
    return [one.get("Key", "") for one in failed if one.get("Code") != "NoSuchKey"]
