"""Google Cloud Storage. Keys here are whole: nothing is put before them."""

import secrets as random
from collections.abc import Iterable, Mapping, Sequence

from sidemount.stores.deleting import delete_each, is_missing
from sidemount.stores.faults import Counts, fault
from sidemount.stores.gcs_bucket import GcsBucket, encode, object_path
from sidemount.stores.gcs_client import GcsClient
from sidemount.stores.gcs_tokens import TokenFiles
from sidemount.stores.gcs_uploads import GcsUploads
from sidemount.stores.gcs_values import FIELDS, TAG, rewritten_in
from sidemount.stores.opening import http_pool, prefixed, split
from sidemount.stores.retries import Calls, Refused
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
    StoreFault,
)

_NONCE = "sidemount-nonce"
_LISTED = f"nextPageToken,prefixes,items({FIELDS.removesuffix(',metadata')})"
_MOST_REWRITES = 10_000


class GcsStore:
    """Source of the interface: `sidemount.stores.store.ObjectStore`. For any thread."""

    abilities = Abilities(page_names=5000, copy_part=False, part_bytes=(1, 5 << 30))

    def __init__(self, client: GcsClient) -> None:
        self._client = client
        self._uploads = GcsUploads(client)

    @property
    def counts(self) -> dict[str, int]:
        """Return numbers of requests and faults."""
        return self._client.calls.counts.numbers()

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key."""
        return self._client.resource(key)[0]

    def tag_of(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key and its tag."""
        info, metadata = self._client.resource(key)
        return info, metadata.get(TAG, "")

    def get(self, key: str, offset: int, buffer: memoryview, *, etag: str = "", unless: str = "") -> Got:
        """Read."""
        if etag and not _is_generation(etag):
            raise _changed("GET", key)
        if buffer:
            try:
                return self._client.get(key, offset, buffer, etag, unless if _is_generation(unless) else "")
            except Refused as refused:
                if refused.kind is not FaultKind.RANGE:
                    raise
        info = self.head(key)
        if etag and info.etag != etag:
            raise _changed("GET", key)
        return Got(None if unless and unless == info.etag else info, 0)

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        """Return a page."""
        query = [("maxResults", str(most)), ("fields", _LISTED)]
        if delimiter:
            query.append(("delimiter", "/"))
        # A server may tell the prefixes of all pages with each: a token of the port knows which was the last one told.
        told, _, before = token.partition("\0")
        if told:
            query.append(("pageToken", told))
        page = self._client.list(prefix, query)
        hidden = self._uploads.place
        prefixes = [one for one in page.prefixes if one.encode() > before.encode()]
        if page.token and page.token == told:
            raise fault(FaultKind.ANSWER, f"LIST {prefix!r}: the same page again")
        last = prefixes[-1] if prefixes else before
        return Page(
            [info for info, _ in page.items if not info.key.startswith(hidden)],
            [one for one in prefixes if one != hidden],
            f"{page.token}\0{last}" if page.token else "",
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
        conditions = _conditions("PUT", key, if_absent, if_match)
        metadata = {TAG: tag} if tag else {}
        if conditions:  # by which it is recognised if the answer is lost
            metadata[_NONCE] = random.token_hex(16)
        try:
            return self._client.insert(key, content, metadata, conditions)
        except Refused as refused:
            if conditions and refused.lost and refused.kind is FaultKind.CHANGED:
                info, found = self._client.resource(key)
                if found.get(_NONCE) == metadata[_NONCE]:
                    return info
            raise _as_asked(refused, if_absent, key) from None

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Copy an object."""
        conditions = _conditions("COPY", key, if_absent, "")
        info, metadata = self._client.resource(source)
        if etag and info.etag != etag:
            raise _changed("COPY", source)
        path = f"{object_path(source)}/rewriteTo/b/{encode(self._client.bucket.name)}{object_path(key)}"
        if if_absent:
            metadata[_NONCE] = random.token_hex(16)  # by which it is recognised if the answer is lost
        query = [*conditions, ("sourceGeneration", info.etag), ("ifSourceGenerationMatch", info.etag)]
        told = {"metadata": metadata, "contentType": "application/octet-stream"} if if_absent else {}
        try:
            return self._rewritten(key, path, query, told)
        except Refused as refused:
            if if_absent and refused.lost and refused.kind is FaultKind.CHANGED:
                made, found = self._client.resource(key)
                if found.get(_NONCE) == metadata[_NONCE]:
                    return made
            raise _as_asked(refused, if_absent, key) from None

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._client.delete(key)

    def delete_version(self, key: str, etag: str) -> None:
        """Remove an object if it is that version still."""
        try:
            self._client.delete(key, [("ifGenerationMatch", etag)])
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
        return self._uploads.put(upload, number, content)

    def copy_part(
        self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int
    ) -> Part:
        """Refuse: the store copies objects whole."""
        raise fault(FaultKind.UNSUPPORTED, f"COPY PART {key!r}: the store copies whole objects only")

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that are there."""
        return self._uploads.parts(upload)

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], *, if_absent: bool = False, if_match: str = ""
    ) -> ObjectInfo:
        """Make the object of its parts."""
        conditions = _conditions("COMPLETE", key, if_absent, if_match)
        try:
            return self._uploads.complete(key, upload, parts, conditions)
        except Refused as refused:
            raise _as_asked(refused, if_absent, key) from None

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up."""
        self._uploads.abort(upload)

    def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return unfinished uploads."""
        return self._uploads.unfinished(prefix)

    def close(self) -> None:
        """Let go of connections."""
        self._client.calls.close()

    def _rewritten(
        self, key: str, path: str, query: Sequence[tuple[str, str]], told: Mapping[str, object]
    ) -> ObjectInfo:
        """Rewrite, which a large object takes several calls for."""
        token = ""
        for _ in range(_MOST_REWRITES):
            more = [("rewriteToken", token)] if token else []
            made, token = self._client.post("COPY", key, path, [*query, *more], told, rewritten_in)
            if made is not None:
                return made
        raise fault(FaultKind.ANSWER, f"COPY {key!r}: it does not end")


def _is_generation(etag: str) -> bool:
    return etag.isascii() and etag.isdigit()


def _conditions(name: str, key: str, if_absent: bool, if_match: str) -> list[tuple[str, str]]:
    if if_absent:
        return [("ifGenerationMatch", "0")]
    if not if_match:
        return []
    if not _is_generation(if_match):
        raise _changed(name, key)
    return [("ifGenerationMatch", if_match)]


def _as_asked(refused: Refused, if_absent: bool, key: str) -> StoreFault:
    if if_absent and refused.kind is FaultKind.CHANGED:
        return fault(FaultKind.EXISTS, f"{key!r} exists")
    return refused


def _changed(name: str, key: str) -> StoreFault:
    return fault(FaultKind.CHANGED, f"{name} {key!r}: another version than the one that was asked for")


def open_gcs(source: str, settings: StoreSettings, secrets: str) -> ObjectStore:
    """Return the store of `gs://bucket/prefix`."""
    name, prefix = split(source)
    pool, counts = http_pool(settings, secrets), Counts()
    timeout_s, retry_timeout_s = settings.request_timeout_s, settings.retry_timeout_s
    tokens = TokenFiles(
        secrets,
        pool,
        counts,
        timeout_s=timeout_s,
        retry_timeout_s=retry_timeout_s,
        also_at=settings.endpoint,
    )
    bucket = GcsBucket(name, tokens, settings.endpoint)
    calls = Calls(pool, bucket, timeout_s=timeout_s, retry_timeout_s=retry_timeout_s, counts=counts)
    client = GcsClient(bucket, calls, root=prefix, long_timeout_s=settings.long_timeout_s)
    return prefixed(GcsStore(client), prefix)
