"""How much a daemon has done and is doing: what its heartbeats tell the keeper."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pyfuse3

from sidecar.open_handles import OpenHandles

_HANDLERS = (
    "access",
    "create",
    "flush",
    "forget",
    "fsync",
    "fsyncdir",
    "getattr",
    "getxattr",
    "link",
    "listxattr",
    "lookup",
    "mkdir",
    "mknod",
    "open",
    "opendir",
    "poll",
    "read",
    "readdir",
    "readlink",
    "release",
    "releasedir",
    "removexattr",
    "rename",
    "rmdir",
    "setattr",
    "setxattr",
    "statfs",
    "symlink",
    "unlink",
    "write",
)


class Work:
    """Counters, written by the serving thread and read by the one that talks to the keeper.

    `open_handles` is kept by the built-in filesystems; others leave it None. `numbers` tells what a filesystem counts, None if it
    counts nothing.
    """

    __slots__ = ("handled", "in_progress", "numbers", "open_handles")

    def __init__(self) -> None:
        self.handled = 0
        self.in_progress = 0
        self.open_handles: OpenHandles | None = None
        self.numbers: Callable[[], Mapping[str, int]] | None = None


class CountingOperations(pyfuse3.Operations):
    """Operations whose handlers count into `work` by themselves, which saves every request a call."""

    work: Work


class CountedOperations(pyfuse3.Operations):
    """Another Operations, every handler of which is counted."""

    def __init__(self, operations: pyfuse3.Operations, work: Work) -> None:
        super().__init__()
        self.supports_dot_lookup = operations.supports_dot_lookup
        self.enable_writeback_cache = operations.enable_writeback_cache
        self.enable_acl = operations.enable_acl
        vars(self)["init"] = operations.init
        vars(self)["stacktrace"] = operations.stacktrace
        if isinstance(operations, CountingOperations):
            operations.work = work
            vars(self).update({name: getattr(operations, name) for name in _HANDLERS})
        else:
            vars(self).update({name: _counted(getattr(operations, name), work) for name in _HANDLERS})


def _counted(handler: Callable[..., Awaitable[Any]], work: Work) -> Callable[..., Awaitable[Any]]:
    async def count(*arguments: Any) -> Any:
        work.in_progress += 1
        try:
            return await handler(*arguments)
        finally:
            work.in_progress -= 1
            work.handled += 1

    return count
