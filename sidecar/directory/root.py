"""The root of a volume: a sub-path of its source, resolved once."""

import errno
import os

from sidecar.directory import syscalls


def open_root(source: str, sub_path: str) -> int:
    """Open a sub-path of a source as the root of a volume. Nothing is created; no symbolic link is followed beneath the source.

    Raises OSError with the sub-path's own reason.
    """
    flags = os.O_PATH | os.O_DIRECTORY
    place = os.open(source, flags | os.O_CLOEXEC)
    if not sub_path:
        return place
    try:
        resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
        return syscalls.openat2(place, os.fsencode(sub_path), flags, resolve)
    finally:
        os.close(place)


def explain_root_error(error: OSError, source: str, sub_path: str) -> tuple[str, str]:
    """Return message and hint for a root that cannot be opened."""
    what = f"sub-path {sub_path!r} of source {source}" if sub_path else f"source {source}"
    match error.errno:
        case errno.ENOENT:
            return f"{what} does not exist", "make the directory: nothing is created automatically"
        case errno.ELOOP:
            return f"{what} crosses a symbolic link", "name the directory itself"
        case errno.ENOTDIR:
            return f"{what} is not a directory", "name a directory"
        case errno.EXDEV:
            return f"{what} leads out of the source", "name a directory beneath the source"
    return f"{what} cannot be opened: {error.strerror}", ""
