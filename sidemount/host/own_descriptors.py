"""This process's own descriptors as a whole: all but some are closed after a fork."""

import contextlib
import os
from collections.abc import Collection


def close_all_but(kept: Collection[int]) -> None:
    """Close every descriptor that is not in `kept`."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(descriptor)
