"""Uploads to Azure that another process can go on with: blocks of the blob itself, which no blob is made of before the end.

Ids of blocks begin with the upload's, and are all of one length, as a blob's must be. Block 0 says that there is the upload; it is never part of
the blob. The store itself removes a blob's other blocks when one list of blocks is committed, and after a week.
Source: https://learn.microsoft.com/rest/api/storageservices/put-block
"""

import base64
import secrets
import time
from collections.abc import Sequence
from urllib.parse import quote, unquote

from sidemount.stores.azure_client import AzureClient
from sidemount.stores.azure_values import NONCE_HEADER, blocks, md5_of, tag_header, written
from sidemount.stores.bodies import size_of
from sidemount.stores.faults import fault
from sidemount.stores.http_message import Answer
from sidemount.stores.retries import Refused
from sidemount.stores.s3_values import quoted
from sidemount.stores.store import Buffer, FaultKind, ObjectInfo, Part, StoreFault

_TIME_CHARS = 16
_ID_CHARS = _TIME_CHARS + 16
_NUMBER_CHARS = 6
_BEGUN, _ABORTED = b".", b".."


class AzureUploads:
    """Uploads of one container. An id is a time and a random number, and the tag behind a dot."""

    def __init__(self, client: AzureClient) -> None:
        self._client = client

    def begin(self, key: str, tag: str) -> str:
        """Begin one and return its id."""
        name = f"{time.time_ns():0{_TIME_CHARS}x}{secrets.token_hex((_ID_CHARS - _TIME_CHARS) // 2)}"
        self.put(key, name, 0, [_BEGUN])  # whose bytes nobody reads: what counts is how many there are
        return f"{name}.{quote(tag, safe='')}"

    def put(self, key: str, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Store a part."""
        size = size_of(content)
        digest = md5_of(content)
        query = [("comp", "block"), ("blockid", _block(upload, number))]
        self._client.call("PUT PART", key, "PUT", _nothing, query, {"content-md5": digest}, content)
        return Part(number, size, "")

    def copy(self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int) -> Part:
        """Take a part from a blob."""
        query = [("comp", "block"), ("blockid", _block(upload, number))]
        headers = {
            **self._client.container.source(source.key),
            "x-ms-source-range": f"bytes={offset}-{offset + size - 1}",
            "x-ms-source-if-match": quoted(source.etag),
        }
        self._client.call("COPY PART", key, "PUT", _nothing, query, headers, is_long=True)
        return Part(number, size, "")

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that are there."""
        found = {
            int(name[_ID_CHARS:]): size
            for name, size in self._blocks(key)
            if name.startswith(_name(upload)) and name[_ID_CHARS:].isdigit()
        }
        if found.pop(0, 0) != len(_BEGUN):
            raise _missing(upload)
        return [Part(number, size, "") for number, size in sorted(found.items())]

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], conditions: dict[str, str]
    ) -> ObjectInfo:
        """Make the blob of its parts."""
        named = "".join(f"<Uncommitted>{_block(upload, one.number)}</Uncommitted>" for one in parts)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{named}</BlockList>'.encode("ascii")
        nonce = _name(upload)
        headers = {
            **conditions,
            **tag_header(unquote(upload.partition(".")[2])),
            NONCE_HEADER: nonce,
            "x-ms-blob-content-type": "application/octet-stream",
            "content-md5": md5_of([body]),
        }
        size = sum(one.size for one in parts)
        try:
            return self._client.call(
                "COMPLETE",
                key,
                "PUT",
                lambda answer: written(key, size, answer),
                [("comp", "blocklist")],
                headers,
                [body],
                is_long=True,
            )
        except Refused as refused:
            is_gone = refused.kind is FaultKind.MISSING and refused.lost
            if is_gone or refused.kind in (FaultKind.CHANGED, FaultKind.EXISTS):
                try:
                    info, told = self._client.head(key)
                except StoreFault:
                    raise refused from None
                if told.get(NONCE_HEADER) == nonce:
                    return info  # it has been made before, and its answer was lost
            raise

    def abort(self, key: str, upload: str) -> None:
        """Give one up: the store cannot remove blocks before their time."""
        try:
            self.parts(key, upload)
        except StoreFault as gone:
            if gone.kind is FaultKind.MISSING:
                return
            raise
        self.put(key, upload, 0, [_ABORTED])

    def _blocks(self, key: str) -> list[tuple[str, int]]:
        query = [("comp", "blocklist"), ("blocklisttype", "uncommitted")]
        try:
            return self._client.call("LIST PARTS", key, "GET", blocks, query)
        except Refused as refused:
            if refused.kind is FaultKind.MISSING and refused.code != "ContainerNotFound":
                return []
            raise


def _name(upload: str) -> str:
    """Return what the ids of an upload's blocks begin with."""
    name = upload.partition(".")[0]
    if len(name) != _ID_CHARS or not name.isalnum() or not name.isascii():
        raise _missing(upload)
    return name


def _block(upload: str, number: int) -> str:
    return base64.b64encode(f"{_name(upload)}{number:0{_NUMBER_CHARS}}".encode("ascii")).decode("ascii")


def _nothing(answer: Answer) -> None:
    return None


def _missing(upload: str) -> StoreFault:
    return fault(FaultKind.MISSING, f"no upload {upload[:64]!r}")
