"""Names of files and keys of objects: which key a path has, and which keys no path can name.

A path is written as its names joined by "/", "" for the root. A file's key is its path; a directory's own key, its marker, is the path
and "/". Every other key beneath a directory that has a name between two of its slashes that no directory entry can have is hidden.
"""

import errno
import hashlib
import os
from enum import Enum

KEY_MAX_BYTES = 1024
NAME_MAX_BYTES = 255
_INO_BITS = 63
_DOTS = (".", "..")


class Hidden(Enum):
    """Why a key is not shown."""

    EMPTY = "empty_component"
    DOT = "dot_component"
    LONG = "long_component"
    NUL = "nul"
    TWIN = "file_and_prefix"  # shown as the directory alone
    MARKER = "marker_content"  # a marker that has content: shown as the directory alone
    ENCODING = "not_utf8"


def path_of(above: str, name: bytes) -> str:
    """Return the path of a name in a directory. EILSEQ or ENAMETOOLONG if no key can stand for it."""
    if len(name) > NAME_MAX_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    try:
        shown = name.decode()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ)) from None
    return f"{above}/{shown}" if above else shown


def key_of(path: str, *, is_directory: bool = False) -> str:
    """Return the key of a file, or of a directory's marker. ENAMETOOLONG if it would be too long for a store."""
    key = prefix_of(path) if is_directory else path
    if len(key.encode()) > KEY_MAX_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return key


def prefix_of(path: str) -> str:
    """Return what the keys of all that lies in a directory begin with."""
    return f"{path}/" if path else ""


def above_of(path: str) -> str:
    """Return the path of the directory that a path lies in."""
    return path.rpartition("/")[0]


def is_beneath(path: str, directory: str) -> bool:
    """Tell whether a path leads through a directory, or is it."""
    return path == directory or path.startswith(prefix_of(directory))


def name_in(key: str, prefix: str) -> bytes | Hidden:
    """Return the name of a key, or of a prefix that ends with "/", as its directory shows it; or why it does not."""
    name = key[len(prefix) :].removesuffix("/")
    if not name:
        return Hidden.EMPTY
    if name in _DOTS:
        return Hidden.DOT
    if "\0" in name:
        return Hidden.NUL
    try:
        shown = name.encode()
    except UnicodeEncodeError:
        return Hidden.ENCODING
    return Hidden.LONG if len(shown) > NAME_MAX_BYTES else shown


def ino_of(path: str) -> int:
    """Return the inode number of a path: the same in every mount, never 0 or the root's."""
    if not path:
        return 1
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") & ((1 << _INO_BITS) - 1)) | 2
