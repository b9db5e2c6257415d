"""What a name is."""

import errno
import os


def single(name: bytes) -> bytes:
    """Return a name if it is one: not a path, not a dot. The kernel never sends another."""
    if b"/" in name or name in (b"", b".", b".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return name
