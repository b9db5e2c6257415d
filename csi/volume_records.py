"""The records of a pool's volumes and snapshots, read again only when their files have changed."""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from csi.volume_files import read_text
from csi.volume_ids import is_id
from csi.volume_state import Kind
from sidemount.model.errors import BadMessage
from sidemount.model.pool_layout import (
    SNAPSHOT_RECORD,
    SNAPSHOTS,
    UNFINISHED,
    VOLUME_RECORD,
    VOLUMES,
    snapshot_dir,
    volume_dir,
)

T = TypeVar("T")
_Signature = tuple[int, int, int, int]


def directory_of(pool: str, kind: Kind, id_: str) -> str:
    """Return the directory of a volume or snapshot."""
    return volume_dir(pool, id_) if kind is Kind.VOLUME else snapshot_dir(pool, id_)


def place_of(pool: str, kind: Kind) -> str:
    """Return the directory that holds all of a kind."""
    return f"{pool}/{VOLUMES if kind is Kind.VOLUME else SNAPSHOTS}"


def record_name(kind: Kind) -> str:
    """Return the name of a kind's record in its directory."""
    return VOLUME_RECORD if kind is Kind.VOLUME else SNAPSHOT_RECORD


def lock_file(pool: str) -> str:
    """Return the file that everything in a pool has its locks in."""
    return f"{pool}/{UNFINISHED}/locks"


class Records(Generic[T]):
    """Everything of one kind. Safe in several threads."""

    def __init__(self, pool: str, kind: Kind, decode: Callable[[str, str], T]) -> None:
        """`decode` takes a record's text and the pool."""
        self._pool = pool
        self._kind = kind
        self._decode = decode
        self._known: dict[str, tuple[_Signature, T]] = {}

    def read(self, id_: str) -> T | None:
        """Return what has that id, None if nothing of ours has. Raises OSError, HostFailure, BadMessage."""
        if not is_id(id_):
            return None
        path = f"{directory_of(self._pool, self._kind, id_)}/{record_name(self._kind)}"
        try:
            status = os.stat(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            self._known.pop(id_, None)
            return None
        signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._known.get(id_)
        if known is not None and known[0] == signature:
            return known[1]
        text = read_text(path)
        if text is None:
            return None
        try:
            found = self._decode(text, self._pool)
        except BadMessage as error:
            raise BadMessage(f"{path}: {error.message}") from error
        self._known[id_] = (signature, found)
        return found

    def ids(self) -> list[str]:
        """Return the ids of what may be there. Raises OSError."""
        try:
            return [name for name in os.listdir(place_of(self._pool, self._kind)) if is_id(name)]
        except FileNotFoundError:
            return []
