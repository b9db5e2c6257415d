"""Names that callers give, and the ids that volumes and snapshots have by them (S4-22). Pure.

Source: https://github.com/container-storage-interface/spec/blob/v1.12.0/spec.md#size-limits
"""

import hashlib
import re

from sidemount.model.errors import InvalidRequest, shown

NAME_MAX_BYTES = 128
_OWN_MAX = 48  # of a name that is its own id
_ID_MAX = 64  # of any; an id in a bucket has a mark at its end
# A component of a path on any filesystem: nothing hidden, nothing relative, no separator.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HASHED = re.compile(r"csi-[0-9a-f]{40}\Z")
_MARKED = re.compile(r".*\.[0-9a-f]{12}\Z")  # as of a volume in a bucket, which another pool's may not share
_HEX = 40
_REFUSED = frozenset(chr(code) for code in (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0)))


def check_name(name: str) -> None:
    """See that CSI allows a name. Raises InvalidRequest."""
    if not name:
        raise InvalidRequest("name is missing")
    for char in name:
        if char in _REFUSED or "\ud800" <= char <= "\udfff":
            raise InvalidRequest(f"name {shown(name)} holds the character U+{ord(char):04X}")
    if len(name.encode()) > NAME_MAX_BYTES:
        raise InvalidRequest(f"name {shown(name)} is longer than {NAME_MAX_BYTES} bytes")


def id_of_name(name: str) -> str:
    """Return the id: the name itself where it can be one, else a hash of it; no two names have the same."""
    if len(name) <= _OWN_MAX and _ID.match(name) and not _HASHED.match(name) and not _MARKED.match(name):
        return name
    return f"csi-{hashlib.sha256(name.encode()).hexdigest()[:_HEX]}"


def is_id(text: str) -> bool:
    """Tell whether a text can be an id of ours; anything else is somebody else's, and never becomes part of a path."""
    return len(text) <= _ID_MAX and _ID.match(text) is not None
