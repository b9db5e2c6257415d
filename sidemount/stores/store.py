"""The port to an object store: values and one interface, whatever protocol is behind it.

Keys are the store's own, whole and never normalised: `a//b`, `a/` and `a` are three. Every call is made in a thread and may
wait, but not for ever: each has a deadline and a budget of retries of its own. All raise `StoreFault` (an OSError) and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class FaultKind(Enum):
    """Why a call failed: what is counted, and what decides whether it is tried again."""

    MISSING = "missing"  # 404: no such key, bucket or upload
    DENIED = "denied"  # 401, 403
    CREDENTIALS = "credentials"  # none that can be read, or expired ones and no newer
    EXISTS = "exists"  # a put that was to make the key, and it is there
    CHANGED = "changed"  # 412: another version than the one that was asked for
    CONFLICT = "conflict"  # 409: somebody else is changing it
    RANGE = "range"  # 416
    REQUEST = "request"  # any other 4xx: we asked something that the store does not take
    THROTTLED = "throttled"  # 429, 503 SlowDown
    SERVER = "server"  # other 5xx
    TIMEOUT = "timeout"
    RESET = "reset"  # the connection was refused or ended
    NAME = "name"  # the host's name was not resolved
    TLS = "tls"
    TRUNCATED = "truncated"  # a body that ended too early
    CHECKSUM = "checksum"  # a body that is not what was sent
    ANSWER = "answer"  # an answer that makes no sense
    UNSUPPORTED = "unsupported"  # nothing that this store can do
    TOO_LARGE = "too_large"


class StoreFault(OSError):
    """A call that failed for good. `errno` is what an application gets; `kind` is why. The text never holds a secret."""

    def __init__(self, number: int, kind: FaultKind, message: str) -> None:
        super().__init__(number, message)
        self.kind = kind


class ObjectInfo(NamedTuple):
    """One version of an object. `etag` is opaque: compared, and given back to the store, never understood."""

    key: str
    size: int
    etag: str
    modified_ns: int


class Page(NamedTuple):
    """Part of a listing, in the store's order. `prefixes` end with "/". `token` is where the next page begins, "" at the end."""

    objects: Sequence[ObjectInfo]
    prefixes: Sequence[str]
    token: str


class Got(NamedTuple):
    """What a read has put into a buffer: `size` bytes, fewer than were asked for only at the end of the object.

    `info` is the version that they are of; None if the version was the one that `unless` named, and nothing was read.
    """

    info: ObjectInfo | None
    size: int


class Part(NamedTuple):
    """A part of an upload that the store has. Numbers begin at 1; `etag` is what `complete` needs."""

    number: int
    size: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a store can do.

    `page_names` is the most that a page is worth asking for: what every server of the kind takes. `put_if_absent`, `put_if_match`:
    conditions that the store itself enforces.
    `uploads`: content in parts, which another process can go on with. `copy_part`: a part can be taken from an object.
    `largest_put_bytes` is the most that one put may be; `part_bytes` the least and the most that a part may be (the last may be less).
    """

    listing: bool = True
    page_names: int = 1000
    writing: bool = True
    put_if_absent: bool = True
    put_if_match: bool = True
    copy: bool = True
    uploads: bool = True
    copy_part: bool = True
    largest_put_bytes: int = 5 << 30
    part_bytes: tuple[int, int] = (5 << 20, 5 << 30)
    most_parts: int = 10_000


class CopyWatch(Protocol):
    """Hears of uploads that a store begins by itself, to copy a large object: nobody else would know of one whose process has died."""

    def begun(self, key: str, upload: str) -> None:
        """Know of one. Raises nothing."""
        ...

    def ended(self, key: str, upload: str, *, is_over: bool) -> None:
        """Know that it is completed or given up; not `is_over`: it is to be given up still. Raises nothing."""
        ...


class ObjectStore(Protocol):
    """One bucket, or the part of it beneath a prefix that the implementation knows: keys here are relative to that prefix."""

    @property
    def abilities(self) -> Abilities:
        """What it can do. Known without asking the store."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key. MISSING if nothing is."""
        ...

    def get(self, key: str, offset: int, buffer: memoryview, *, etag: str = "", unless: str = "") -> Got:
        """Read from `offset` on into a buffer. Nothing at or past the end: 0 bytes, no fault.

        With `etag` only that version: CHANGED if it is another by now. With `unless` only another version than that.
        """
        ...

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        """Return a page of the keys that begin with a prefix. With `delimiter`, those with a further "/" only as prefixes."""
        ...

    def put(
        self,
        key: str,
        content: Sequence[Buffer],
        *,
        if_absent: bool = False,
        if_match: str = "",
        tag: str = "",
    ) -> ObjectInfo:
        """Make an object of the buffers one after the other, in place of any other. EXISTS or CHANGED if a condition fails.

        `tag` goes with the object (`tag_of`), so that a later process can tell whether this put was carried out.
        """
        ...

    def tag_of(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key and the tag it was written with, "" if none."""
        ...

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Copy an object within the store, whatever its size. With `etag` only that version of it."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object. That there is none is no fault."""
        ...

    def delete_version(self, key: str, etag: str) -> None:
        """Remove an object if it is that version still; CHANGED if it is another. That there is none is no fault.

        A store that does not know the condition is asked first, and may be changed in between.
        """
        ...

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        ...

    # Uploads: an object that is made of parts, and is not there before `complete`.

    def begin_upload(self, key: str, *, tag: str = "") -> str:
        """Begin one and return its id."""
        ...

    def put_part(self, key: str, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Store a part, in place of any other of its number."""
        ...

    def copy_part(
        self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int
    ) -> Part:
        """Take a part from an object: that version of it, or CHANGED."""
        ...

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that the store has. MISSING if there is no such upload (any more)."""
        ...

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], *, if_absent: bool = False, if_match: str = ""
    ) -> ObjectInfo:
        """Make the object of its parts. MISSING if the upload is not there: completed (see `tag_of`), or aborted."""
        ...

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up. That there is none is no fault."""
        ...

    def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return (key, id, when it was begun in ns) of unfinished uploads."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
