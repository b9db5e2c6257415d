"""Azure's Blob service. Keys here are whole: nothing is put before them."""

import secrets as random
import threading
import time
from collections.abc import Iterable, Sequence

from sidemount.stores.azure_client import AzureClient
from sidemount.stores.azure_container import AzureContainer
from sidemount.stores.azure_credentials import AzureFiles
from sidemount.stores.azure_uploads import AzureUploads
from sidemount.stores.azure_values import NONCE_HEADER, listed, md5_of, tag_header, tag_in, written
from sidemount.stores.bodies import size_of
from sidemount.stores.deleting import delete_each, is_missing
from sidemount.stores.faults import fault
from sidemount.stores.http_message import Answer
from sidemount.stores.opening import http_pool, prefixed, split
from sidemount.stores.retries import Calls, Refused
from sidemount.stores.s3_values import quoted
from sidemount.stores.settings import StoreSettings
from sidemount.stores.store import (
    Abilities,
    Buffer,
    FaultKind,
    Got,
    ObjectInfo,
    ObjectStore,
    Page,
    Part,
)

_LOOK_S = 0.2
_CONTENT = {"content-type": "application/octet-stream"}


class AzureStore:
    """Source of the interface: `sidemount.stores.store.ObjectStore`. For any thread."""

    abilities = Abilities(
        page_names=5000, largest_put_bytes=5000 << 20, part_bytes=(1, 4000 << 20), most_parts=50_000
    )

    def __init__(self, client: AzureClient, *, patience_s: float) -> None:
        """`patience_s`: for a copy that the store makes in its own time."""
        self._client = client
        self._patience_s = patience_s
        self._uploads = AzureUploads(client)
        self._closed = threading.Event()

    @property
    def counts(self) -> dict[str, int]:
        """Return numbers of requests and faults."""
        return self._client.calls.counts.numbers()

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key."""
        return self._client.head(key)[0]

    def tag_of(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key and its tag."""
        info, headers = self._client.head(key)
        return info, tag_in(headers)

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
        query = [("restype", "container"), ("comp", "list"), ("prefix", prefix), ("maxresults", str(most))]
        if delimiter:
            query.append(("delimiter", "/"))
        if token:
            query.append(("marker", token))
        objects, prefixes, following = self._client.call("LIST", "", "GET", listed, query, lane=prefix)
        if following and following == token:
            raise fault(FaultKind.ANSWER, f"LIST {prefix!r}: the same page again")
        return Page(objects, prefixes, following)

    def put(
        self,
        key: str,
        content: Sequence[Buffer],
        *,
        if_absent: bool = False,
        if_match: str = "",
        tag: str = "",
    ) -> ObjectInfo:
        """Make an object. The store refuses content that does not match the checksum that comes with it."""
        conditions = _conditions(if_absent, if_match)
        nonce = random.token_hex(16) if conditions else ""
        headers = {**_CONTENT, **conditions, **tag_header(tag), **_nonce_header(nonce)}
        headers |= {"x-ms-blob-type": "BlockBlob", "content-md5": md5_of(content)}
        size = size_of(content)

        def read(answer: Answer) -> ObjectInfo:
            return written(key, size, answer)

        try:
            return self._client.call("PUT", key, "PUT", read, (), headers, content)
        except Refused as refused:
            return self._made_all_the_same(key, nonce, refused, if_absent)

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Copy an object."""
        info, told = self._client.head(source)
        if etag and info.etag != etag:
            raise fault(
                FaultKind.CHANGED, f"COPY {source!r}: another version than the one that was asked for"
            )
        headers = {**self._client.container.source(source), "x-ms-source-if-match": quoted(info.etag)}
        nonce = random.token_hex(16) if if_absent else ""
        headers |= _conditions(if_absent, "")
        if nonce:  # any metadata of a copy takes the place of all that the source has
            headers |= {**tag_header(tag_in(told)), **_nonce_header(nonce)}

        def read(answer: Answer) -> tuple[ObjectInfo, bool]:
            return written(key, info.size, answer), answer.headers.get("x-ms-copy-status") == "pending"

        try:
            made, is_pending = self._client.call("COPY", key, "PUT", read, (), headers, is_long=True)
        except Refused as refused:
            return self._made_all_the_same(key, nonce, refused, if_absent)
        return self._copied(key, made) if is_pending else made

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._client.delete(key)

    def delete_version(self, key: str, etag: str) -> None:
        """Remove an object if it is that version still."""
        try:
            self._client.delete(key, etag)
        except Refused as refused:
            if refused.kind is not FaultKind.CHANGED or not is_missing(self, key):
                raise

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        delete_each(self._client.delete, keys)

    def begin_upload(self, key: str, *, tag: str = "") -> str:
        """Begin an upload."""
        return self._uploads.begin(key, tag)

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
        return self._uploads.complete(key, upload, parts, _conditions(if_absent, if_match))

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up."""
        self._uploads.abort(key, upload)

    def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return none: Azure does not tell which blobs have blocks, and removes them by itself after a week."""
        return []

    def close(self) -> None:
        """Let go of connections."""
        self._closed.set()
        self._client.calls.close()

    def _made_all_the_same(self, key: str, nonce: str, refused: Refused, if_absent: bool) -> ObjectInfo:
        """Return the object if an attempt has made it whose answer was lost. Raises why not."""
        if nonce and refused.lost and refused.kind in (FaultKind.EXISTS, FaultKind.CHANGED):
            info, told = self._client.head(key)
            if told.get(NONCE_HEADER) == nonce:
                return info
        if if_absent and refused.kind is FaultKind.CHANGED and refused.code == "ConditionNotMet":
            raise fault(FaultKind.EXISTS, f"{key!r} exists") from None
        raise refused

    def _copied(self, key: str, made: ObjectInfo) -> ObjectInfo:
        """Wait until a copy is complete that the store makes in its own time."""
        end_s = time.monotonic() + self._patience_s
        while True:
            info, told = self._client.head(key)
            status = told.get("x-ms-copy-status", "success")
            if status == "success" and info.size == made.size:
                return info
            if status != "pending":
                raise fault(FaultKind.SERVER, f"COPY {key!r}: it was {status[:40]}")
            if time.monotonic() >= end_s or self._closed.wait(_LOOK_S):
                raise fault(FaultKind.TIMEOUT, f"COPY {key!r}: not complete in time")


def _conditions(if_absent: bool, if_match: str) -> dict[str, str]:
    if if_absent:
        return {"if-none-match": "*"}
    return {"if-match": quoted(if_match)} if if_match else {}


def _nonce_header(nonce: str) -> dict[str, str]:
    return {NONCE_HEADER: nonce} if nonce else {}


def open_azure(source: str, settings: StoreSettings, secrets: str) -> ObjectStore:
    """Return the store of `az://container/prefix`."""
    name, prefix = split(source)
    container = AzureContainer(name, AzureFiles(secrets), settings.endpoint)
    calls = Calls(
        http_pool(settings, secrets),
        container,
        timeout_s=settings.request_timeout_s,
        retry_timeout_s=settings.retry_timeout_s,
    )
    client = AzureClient(container, calls, root=prefix, long_timeout_s=settings.long_timeout_s)
    return prefixed(AzureStore(client, patience_s=settings.retry_timeout_s), prefix)
