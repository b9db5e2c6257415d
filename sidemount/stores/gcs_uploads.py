"""Uploads to Google Cloud Storage that another process can go on with: parts are objects, and composed into one at the end.

The store's own resumable uploads take one stream in order. So an upload is an object `.sidemount-uploads/ID` with the key and the tag in
its metadata, and its parts are beneath it; all are gone when it is completed or aborted, the first one first: a part that comes after it
is removed by who has put it, and what a death leaves by whoever begins another upload an hour later. Listings leave them all out.
Source: https://cloud.google.com/storage/docs/composite-objects
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from sidemount.stores.deleting import delete_each
from sidemount.stores.faults import fault
from sidemount.stores.gcs_bucket import object_path
from sidemount.stores.gcs_client import GcsClient
from sidemount.stores.gcs_values import FIELDS, TAG, Listed, made_in
from sidemount.stores.retries import Refused
from sidemount.stores.store import Buffer, FaultKind, ObjectInfo, Part, StoreFault

UPLOADS = ".sidemount-uploads/"
_KEY = "sidemount-key"
_UPLOAD = "sidemount-upload"
_MOST_COMPOSED = 32
_ID_CHARS = 32
_PART = "p"
_LEFTOVER_S = 3600.0


class GcsUploads:
    """Uploads of the part of one bucket that the client's `root` names."""

    def __init__(self, client: GcsClient) -> None:
        self._client = client
        self.place = f"{client.root}{UPLOADS}"
        """What the keys of everything that belongs to uploads begin with."""
        self.leftover_s = _LEFTOVER_S
        self._swept_s = -_LEFTOVER_S

    def begin(self, key: str, tag: str) -> str:
        """Begin one and return its id."""
        upload = secrets.token_hex(_ID_CHARS // 2)
        self._client.insert(self.place + upload, (), {_KEY: key, TAG: tag})
        self._sweep_aside()
        return upload

    def put(self, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Store a part."""
        part = self._part(upload, number)
        info = self._client.insert(part, content, {})
        try:
            self._client.resource(self._record(upload))
        except Refused as refused:
            if refused.kind is FaultKind.MISSING:  # it has ended meanwhile: this would stay
                self._client.delete(part)
            raise
        return Part(number, info.size, info.etag)

    def parts(self, upload: str) -> list[Part]:
        """Return the parts that are there."""
        begins = f"{self._record(upload)}/{_PART}"
        is_there = False
        found: list[Part] = []
        for info in self._everything(self._record(upload)):
            is_there |= info.key == self._record(upload)
            if info.key.startswith(begins):
                found.append(Part(int(info.key[len(begins) :]), info.size, info.etag))
        if not is_there:
            raise _missing(upload)
        return sorted(found)

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], conditions: Sequence[tuple[str, str]]
    ) -> ObjectInfo:
        """Make the object of its parts."""
        _, metadata = self._client.resource(self._record(upload))
        kept = {_UPLOAD: upload} | ({TAG: metadata[TAG]} if metadata.get(TAG) else {})
        if not parts:
            info = self._client.insert(key, (), kept, conditions)
        else:
            sources = [{"name": self._part(upload, one.number), "generation": one.etag} for one in parts]
            info = self._composed(key, upload, sources, kept, conditions)
        with contextlib.suppress(StoreFault):  # the object is there: what stays is removed as a leftover
            self.abort(upload)
        return info

    def abort(self, upload: str) -> None:
        """Give one up."""
        self._client.delete(self._record(upload))
        delete_each(self._client.delete, [info.key for info in self._everything(self._record(upload))])

    def unfinished(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return what was begun and neither completed nor aborted."""
        found: list[tuple[str, str, int]] = []
        for page in self._pages(self.place, [("delimiter", "/")]):
            for info, metadata in page.items:
                key = metadata.get(_KEY, "")
                if key.startswith(prefix):
                    found.append((key, info.key[len(self.place) :], info.modified_ns))
        return found

    def sweep(self) -> None:
        """Remove the parts of uploads that have ended long ago."""
        records: set[str] = set()
        beneath: set[str] = set()
        for page in self._pages(self.place, [("delimiter", "/")]):
            records.update(info.key for info, _ in page.items)
            beneath.update(page.prefixes)
        oldest_ns = time.time_ns() - int(self.leftover_s * 1e9)
        for prefix in beneath - {f"{record}/" for record in records}:
            left = list(self._everything(prefix))
            if all(info.modified_ns <= oldest_ns for info in left):
                delete_each(self._client.delete, [info.key for info in left])

    def _sweep_aside(self) -> None:
        now_s = time.monotonic()
        if now_s < self._swept_s + self.leftover_s:
            return
        self._swept_s = now_s

        def run() -> None:
            with contextlib.suppress(StoreFault):  # it is counted, and done again later
                self.sweep()

        with contextlib.suppress(RuntimeError):  # no memory for a thread: later, then
            threading.Thread(target=run, name="sweep", daemon=True).start()

    def _composed(
        self,
        key: str,
        upload: str,
        sources: Sequence[Mapping[str, str]],
        metadata: Mapping[str, str],
        conditions: Sequence[tuple[str, str]],
    ) -> ObjectInfo:
        """Compose, in several steps if there are more parts than one takes."""
        level = 0
        while len(sources) > _MOST_COMPOSED:
            groups = [sources[at : at + _MOST_COMPOSED] for at in range(0, len(sources), _MOST_COMPOSED)]
            names = [f"{self._record(upload)}/c{level}-{number:05}" for number in range(len(groups))]
            made = [self._compose(name, group, {}, ()) for name, group in zip(names, groups, strict=True)]
            sources = [{"name": one.key, "generation": one.etag} for one in made]
            level += 1
        try:
            return self._compose(key, sources, metadata, conditions)
        except Refused as refused:
            if refused.kind is not FaultKind.CHANGED:
                raise
            try:
                info, found = self._client.resource(key)
            except StoreFault:
                raise refused from None
            if found.get(_UPLOAD) == upload:
                return info  # it has been made before, by an attempt whose answer was lost or by one who has died since
            raise

    def _compose(
        self,
        key: str,
        sources: Sequence[Mapping[str, str]],
        metadata: Mapping[str, str],
        conditions: Sequence[tuple[str, str]],
    ) -> ObjectInfo:
        destination = {"contentType": "application/octet-stream", "metadata": dict(metadata)}
        told = {"sourceObjects": list(sources), "destination": destination}
        path = f"{object_path(key)}/compose"
        return self._client.post("COMPOSE", key, path, conditions, told, made_in)

    def _record(self, upload: str) -> str:
        if len(upload) != _ID_CHARS or not upload.isalnum() or not upload.isascii():
            raise _missing(upload)
        return self.place + upload

    def _part(self, upload: str, number: int) -> str:
        return f"{self._record(upload)}/{_PART}{number:05}"

    def _everything(self, prefix: str) -> Iterator[ObjectInfo]:
        for page in self._pages(prefix, []):
            for info, _ in page.items:
                yield info

    def _pages(self, prefix: str, query: Sequence[tuple[str, str]]) -> Iterator[Listed]:
        fields = ("fields", f"nextPageToken,prefixes,items({FIELDS})")
        token = ""
        while True:
            more = [("pageToken", token)] if token else []
            page = self._client.list(prefix, [*query, fields, ("maxResults", "1000"), *more])
            yield page
            if not page.token:
                return
            if page.token == token:
                raise fault(FaultKind.ANSWER, f"LIST {prefix!r}: the same page again")
            token = page.token


def _missing(upload: str) -> StoreFault:
    return fault(FaultKind.MISSING, f"no upload {upload[:64]!r}")
