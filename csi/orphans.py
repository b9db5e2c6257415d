"""Processes that nobody waits for: as the first process of a container we inherit what daemons leave when they are killed."""

import contextlib
import os
from collections.abc import Collection


def reap_orphans(own: Collection[int]) -> None:
    """Take ended children off the process table that are none of `own`, whose parents in this program wait for them.

    Where the kernel does not list children (CONFIG_PROC_CHILDREN), nothing is done.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = [int(pid) for pid in file.read().split()]
    except OSError:
        return
    for pid in children:
        if pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
