"""Manifest files of a directory: which there are, whether they changed, and their text."""

import os
from pathlib import Path

from sidemount.host.regular_file import Signature, look_at, read_regular
from sidemount.model.errors import HostFailure, InvalidRequest

SUFFIXES = (".yaml", ".yml", ".json")
MAX_FILES = 4096
MAX_FILE_BYTES = 16 * 1024 * 1024


def list_manifests(directory: Path) -> dict[str, Signature | None]:
    """Return the manifest files of a directory by name, sorted; None for one that cannot be looked at.

    Symlinks are followed, hidden names (the `..data` of a mounted ConfigMap, an editor's swap file) are not listed.
    Raises: HostFailure if the directory cannot be read, InvalidRequest if it holds too many.
    """
    try:
        names = sorted(
            name for name in os.listdir(directory) if name.endswith(SUFFIXES) and not name.startswith(".")
        )
    except OSError as error:
        raise HostFailure(
            f"the facts directory {directory} cannot be read: {error.strerror}", errno=error.errno or 0
        ) from error
    if len(names) > MAX_FILES:
        raise InvalidRequest(
            f"the facts directory {directory} holds {len(names)} manifests; at most {MAX_FILES} are read"
        )
    return {name: look_at(directory / name) for name in names}


def read_manifest(path: Path) -> tuple[Signature, str]:
    """Return a file's text and the signature of exactly that text.

    Raises: HostFailure if it cannot be opened or changed while it was read, InvalidRequest if it is no regular file,
    too big, or not UTF-8.
    """
    signature, content = read_regular(path, max_bytes=MAX_FILE_BYTES)
    try:
        return signature, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"is not UTF-8 text (byte {error.start})") from error
