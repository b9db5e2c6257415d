"""This process's own descriptors as a whole: how many it may have, and that all but some are closed after a fork."""

import contextlib
import os
import resource
from collections.abc import Collection


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as it may have, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def close_all_but(kept: Collection[int]) -> None:
    """Close every descriptor that is not in `kept`."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(descriptor)
