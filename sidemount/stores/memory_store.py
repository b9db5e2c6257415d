"""A store in the memory of one process: for tests, and for trying things out."""

import errno
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Iterable, Sequence

from sidemount.stores.store import Abilities, Buffer, FaultKind, Got, ObjectInfo, Page, Part, StoreFault


class MemoryStore:
    """Source of the interface: `sidemount.stores.store.ObjectStore`. Behaves as S3 does: keys in the order of their bytes."""

    abilities = Abilities(part_bytes=(1, 5 << 30))

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[ObjectInfo, bytes, str]] = {}
        self._uploads: dict[str, tuple[str, str, int, dict[int, tuple[Part, bytes]]]] = {}
        self._numbers = itertools.count(1)

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key."""
        return self.tag_of(key)[0]

    def tag_of(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key and its tag."""
        with self._lock:
            info, _, tag = self._found(key)
            return info, tag

    def get(self, key: str, offset: int, buffer: memoryview, *, etag: str = "", unless: str = "") -> Got:
        """Read."""
        with self._lock:
            info, content, _ = self._found(key)
        if etag and info.etag != etag:
            raise _fault(errno.ESTALE, FaultKind.CHANGED, key)
        if unless == info.etag:
            return Got(None, 0)
        found = content[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return Got(info, len(found))

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        """Return a page."""
        with self._lock:
            keys = sorted(
                (key for key in self._objects if key.startswith(prefix)), key=lambda key: key.encode()
            )
            objects: list[ObjectInfo] = []
            prefixes: list[str] = []
            for key in keys:
                rest = key[len(prefix) :]
                shown = key
                if delimiter and "/" in rest:
                    shown = prefix + rest[: rest.index("/") + 1]
                if shown.encode() <= token.encode() or (prefixes and prefixes[-1] == shown):
                    continue
                if len(objects) + len(prefixes) == most:
                    return Page(objects, prefixes, max([*prefixes[-1:], *(one.key for one in objects[-1:])]))
                if delimiter and "/" in rest:
                    prefixes.append(shown)
                else:
                    objects.append(self._objects[key][0])
            return Page(objects, prefixes, "")

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
        return self._make(key, b"".join(content), tag, if_absent, if_match)

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Copy an object."""
        with self._lock:
            info, content, tag = self._found(source)
        if etag and info.etag != etag:
            raise _fault(errno.ESTALE, FaultKind.CHANGED, source)
        return self._make(key, content, tag, if_absent, "")

    def delete(self, key: str) -> None:
        """Remove an object."""
        with self._lock:
            self._objects.pop(key, None)

    def delete_version(self, key: str, etag: str) -> None:
        """Remove an object if it is that version still."""
        with self._lock:
            found = self._objects.get(key)
            if found is not None and found[0].etag != etag:
                raise _fault(errno.ESTALE, FaultKind.CHANGED, key)
            self._objects.pop(key, None)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        for key in keys:
            self.delete(key)

    def begin_upload(self, key: str, *, tag: str = "") -> str:
        """Begin an upload."""
        with self._lock:
            upload = f"upload-{next(self._numbers)}"
            self._uploads[upload] = (key, tag, time.time_ns(), {})
            return upload

    def put_part(self, key: str, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Store a part."""
        joined = b"".join(content)
        part = Part(number, len(joined), hashlib.sha256(joined).hexdigest())
        with self._lock:
            self._upload(upload)[3][number] = (part, joined)
        return part

    def copy_part(
        self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int
    ) -> Part:
        """Take a part from an object."""
        with self._lock:
            info, content, _ = self._found(source.key)
        if info.etag != source.etag:
            raise _fault(errno.ESTALE, FaultKind.CHANGED, source.key)
        return self.put_part(key, upload, number, [content[offset : offset + size]])

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that are there."""
        with self._lock:
            return [part for _, (part, _) in sorted(self._upload(upload)[3].items())]

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], *, if_absent: bool = False, if_match: str = ""
    ) -> ObjectInfo:
        """Make the object of its parts."""
        with self._lock:
            _, tag, _, found = self._upload(upload)
            if any(part.number not in found or found[part.number][0] != part for part in parts):
                raise _fault(errno.EIO, FaultKind.REQUEST, key)
            content = b"".join(found[part.number][1] for part in parts)
        info = self._make(key, content, tag, if_absent, if_match)
        self.abort(key, upload)
        return info

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up."""
        with self._lock:
            self._uploads.pop(upload, None)

    def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return unfinished uploads."""
        with self._lock:
            return [
                (key, upload, begun)
                for upload, (key, _, begun, _) in self._uploads.items()
                if key.startswith(prefix)
            ]

    def close(self) -> None:
        """Keep everything: there is no connection."""

    def _make(self, key: str, content: bytes, tag: str, if_absent: bool, if_match: str) -> ObjectInfo:
        with self._lock:
            before = self._objects.get(key)
            if if_absent and before is not None:
                raise _fault(errno.EEXIST, FaultKind.EXISTS, key)
            if if_match and (before is None or before[0].etag != if_match):
                raise _fault(errno.ESTALE, FaultKind.CHANGED, key)
            etag = f"{hashlib.sha256(content).hexdigest()}-{next(self._numbers)}"
            info = ObjectInfo(key, len(content), etag, time.time_ns())
            self._objects[key] = (info, content, tag)
            return info

    def _found(self, key: str) -> tuple[ObjectInfo, bytes, str]:
        found = self._objects.get(key)
        if found is None:
            raise _fault(errno.ENOENT, FaultKind.MISSING, key)
        return found

    def _upload(self, upload: str) -> tuple[str, str, int, dict[int, tuple[Part, bytes]]]:
        found = self._uploads.get(upload)
        if found is None:
            raise _fault(errno.ENOENT, FaultKind.MISSING, upload)
        return found


def _fault(number: int, kind: FaultKind, what: str) -> StoreFault:
    return StoreFault(number, kind, f"{what!r}: {os.strerror(number)}")
