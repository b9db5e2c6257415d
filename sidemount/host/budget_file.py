"""The file `budget` of a volume: how it is read and written. Locks: `sidemount.host.budget_locks`.

    0       head, one copy
    4096    head, the other copy
    8192    1,024 shares of 16 bytes: what files without a name hold, by mount

The head is written to the copy that is not the current one, with a higher number and a checksum: a torn write leaves the
other one, and whoever reads without a lock sees one or the other. No mmap: pages of network filesystems are not coherent.
"""

import os
import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from sidemount.model.errors import BadMessage

SHARES = 1024
NO_SHARE = 0xFFFFFFFF
LARGEST = (1 << 63) - 1
LONGEST_PATH = 3800
_MAGIC = b"SIDEBDG\n"
_VERSION = 1
_COPY_BYTES = 4096
_FRAME = struct.Struct("<8sII")  # magic, checksum of what follows the checksum, length of the body
_BODY = struct.Struct("<IHHQQQIIQQQ")  # version, kind, length of the path, number, limit, used, share, …
_NUMBER_AT = _FRAME.size + 8
_NUMBER = struct.Struct("<Q")
_SHARE = struct.Struct("<QQ")  # the bytes, and their complement
_SHARES = struct.Struct(f"<{2 * SHARES}Q")
_SHARES_AT = 2 * _COPY_BYTES
_MASK_64 = (1 << 64) - 1
_TRIES = 50


class Kind(IntEnum):
    """What was about to be done when the head was written. Whoever locks next settles it if its author died."""

    NOTHING = 0  # or, with a path, the file was about to get that further name
    RESIZE = 1  # of the file `inode` at `path`, whose size was `size`
    REMOVE = 2  # of the last name of that file; then its size is `share`'s, or nobody's
    SET_SHARE = 3  # of `share` to `size`; `used` says so already


class Pending(NamedTuple):
    """One operation that is under way. `path` begins at the data, or at the volume's directory if `is_linked`.

    `share_before` is what `share` was before the operation.
    """

    kind: Kind = Kind.NOTHING
    inode: int = 0
    size: int = 0
    share: int = NO_SHARE
    share_before: int = 0
    is_linked: bool = False
    path: bytes = b""


NOTHING_PENDING = Pending()


class Head(NamedTuple):
    """What a volume may hold and holds, in bytes. A limit of 0 is none, and then `used` is not kept."""

    number: int
    limit: int
    used: int
    pending: Pending = NOTHING_PENDING


class BudgetFile:
    """An open budget. Whoever writes must hold the lock; the descriptor stays the caller's."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._known: Head | None = None

    def read(self) -> Head:
        """Return the current head. Raises BadMessage if there is none that is whole, OSError."""
        for _ in range(_TRIES):
            content = os.pread(self.fd, _SHARES_AT, 0)
            known = self._known
            if known is not None and known.number == _highest_number(content):
                return known
            heads = [head for head in (_parse(content, 0), _parse(content, _COPY_BYTES)) if head is not None]
            if heads:
                self._known = max(heads)
                return self._known
        raise BadMessage(
            "the volume's budget is damaged: neither copy of its head is whole",
            hint="count the volume's files again and write it afresh",
        )

    def write(self, head: Head) -> Head:
        """Write a head as the successor of the current one, and return it as it is then. The current one must have been read."""
        number, limit, used, pending = head
        head = Head(number + 1, limit, used, pending)
        content = _render(head)
        if os.pwrite(self.fd, content, head.number % 2 * _COPY_BYTES) != len(content):
            raise OSError(5, "the budget could not be written")
        self._known = head
        return head

    def share(self, number: int) -> int:
        """Return what the files without a name of one mount hold."""
        return _parse_share(os.pread(self.fd, _SHARE.size, _SHARES_AT + number * _SHARE.size))

    def set_share(self, number: int, size: int) -> None:
        """Write what the files without a name of one mount hold."""
        os.pwrite(self.fd, _SHARE.pack(size, size ^ _MASK_64), _SHARES_AT + number * _SHARE.size)

    def shares(self) -> dict[int, int]:
        """Return all shares but those of nothing."""
        content = os.pread(self.fd, _SHARES.size, _SHARES_AT)
        if len(content) < _SHARES.size:
            return {}
        sizes = _SHARES.unpack(content)[::2]
        if not any(sizes):
            return {}
        at = {number: number * _SHARE.size for number, size in enumerate(sizes) if size}
        return {
            number: size
            for number, begin in at.items()
            if (size := _parse_share(content[begin : begin + _SHARE.size]))
        }


def render_new(limit: int, used: int) -> bytes:
    """Return the content of a new budget."""
    head = _render(Head(2, limit, used))
    return head.ljust(_SHARES_AT, b"\0") + _SHARE.pack(0, _MASK_64) * SHARES


def _render(head: Head) -> bytes:
    kind, inode, size, share, share_before, is_linked, path = head.pending
    body = _BODY.pack(
        _VERSION,
        kind,
        len(path),
        head.number,
        head.limit,
        head.used,
        share,
        is_linked,
        inode,
        size,
        share_before,
    )
    body += path
    length = struct.pack("<I", len(body))
    return _FRAME.pack(_MAGIC, zlib.crc32(length + body), len(body)) + body


def _parse(content: bytes, at: int) -> Head | None:
    """Return the head of one copy, None if it is not whole. Raises BadMessage for one of a later version."""
    if len(content) < at + _FRAME.size + _BODY.size:
        return None
    magic, checksum, length = _FRAME.unpack_from(content, at)
    body = content[at + _FRAME.size : at + _FRAME.size + length]
    if magic != _MAGIC or length > _COPY_BYTES or len(body) != length or length < _BODY.size:
        return None
    if zlib.crc32(struct.pack("<I", length) + body) != checksum:
        return None
    version, kind, path_length, number, limit, used, share, is_linked, inode, size, before = (
        _BODY.unpack_from(body)
    )
    if version != _VERSION:
        raise BadMessage(
            f"the volume's budget is of version {version}, this program knows {_VERSION}",
            hint="use the later program",
        )
    path = body[_BODY.size : _BODY.size + path_length]
    return Head(number, limit, used, Pending(Kind(kind), inode, size, share, before, bool(is_linked), path))


def _highest_number(content: bytes) -> int:
    if len(content) < _SHARES_AT:
        return -1
    first: int = _NUMBER.unpack_from(content, _NUMBER_AT)[0]
    second: int = _NUMBER.unpack_from(content, _COPY_BYTES + _NUMBER_AT)[0]
    return max(first, second)


def _parse_share(content: bytes) -> int:
    """Return the bytes of a share, 0 if it is not whole: then nothing of it was ever told."""
    if len(content) < _SHARE.size:
        return 0
    size, complement = _SHARE.unpack(content)
    return int(size) if size ^ complement == _MASK_64 else 0
