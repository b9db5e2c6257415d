"""Credentials of one call as files for a store: in memory without a name, gone with the process however it ends."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from csi.hidden_texts import HiddenTexts
from sidemount.model.errors import InvalidRequest, shown

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a directory of our own is made there, with links in it and nothing else


@contextlib.contextmanager
def secrets_directory(secrets: HiddenTexts) -> Iterator[str]:
    """Make a directory of links to the credentials for as long as they are needed. Raises InvalidRequest, OSError."""
    for key in secrets:
        if "/" in key or key in (".", "..") or "\0" in key:
            raise InvalidRequest(f"secrets: {shown(key)} cannot be the name of a file")
    with contextlib.ExitStack() as open_files:
        place = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else None
        directory = tempfile.mkdtemp(prefix="sidemount-", dir=place)
        open_files.callback(shutil.rmtree, directory, ignore_errors=True)
        for key, value in secrets.items():
            descriptor = os.memfd_create("credential", os.MFD_CLOEXEC)
            open_files.callback(os.close, descriptor)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(value.encode("utf-8", "surrogateescape"))
            os.symlink(f"/proc/self/fd/{descriptor}", os.path.join(directory, key))
        yield directory
