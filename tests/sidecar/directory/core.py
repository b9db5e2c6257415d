"""The filesystem without FUSE, for tests that need no mount."""

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sidecar.directory.filesystem import DirectoryFilesystem
from sidecar.directory.root import open_root
from sidecar.directory.settings import DirectorySettings
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import Attributes

T = TypeVar("T")


@dataclass(frozen=True)
class Someone:
    """A caller."""

    uid: int = 0
    gid: int = 0
    pid: int = 1
    umask: int = 0


async def at_once(function: Callable[..., T], *args: Any) -> T:
    """Stand in for a thread."""
    return function(*args)


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Return what an operation returns that never has to wait."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the operation waited")


def make_filesystem(
    source: Path, *, directories_open: int = 100, store: type[Store] = Store
) -> DirectoryFilesystem:
    """Return a filesystem over a directory."""
    settings = DirectorySettings(source=str(source))
    return DirectoryFilesystem(
        store(open_root(str(source), "")), settings, at_once, directories_open=directories_open
    )


class Shelf:
    """Takes what a listing emits, up to a number of entries."""

    def __init__(self, room: int = 10**9, *, takes_names: bool = True) -> None:
        self.entries: list[tuple[bytes, int, Attributes, int]] = []
        self.takes_names = takes_names
        self._room = room

    def __call__(self, name: bytes, node: int, attributes: Attributes, position: int) -> bool:
        """Take an entry if there is room."""
        if len(self.entries) >= self._room:
            return False
        self.entries.append((name, node, attributes, position))
        return True

    def name_alone(self, name: bytes, ino: int, kind: int, position: int) -> bool:
        """Take a name if there is room: its node is 0."""
        assert self.takes_names or name in (b".", b"..")
        return self(name, 0, Attributes(ino, kind << 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), position)


def open_descriptors() -> set[str]:
    """Return what descriptors this process has open."""
    return set(os.listdir("/proc/self/fd"))
