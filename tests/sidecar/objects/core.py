"""An `objects` filesystem without FUSE, and what stands for a kernel that asks it."""

import os
from pathlib import Path
from typing import Any

from sidecar.objects.filesystem import ObjectsFilesystem
from sidecar.objects.places import Places
from sidecar.objects.settings import ObjectsSettings
from sidecar.protocol_filesystem import ROOT, Attributes, Changes, Entry
from sidecar.takeover.memory import Memory
from sidemount.stores.store import ObjectStore
from tests.sidecar.directory.core import Shelf, Someone, at_once, run

SOMEONE = Someone()


class Kernel:
    """Asks a filesystem as the kernel does, path by path."""

    def __init__(self, filesystem: ObjectsFilesystem) -> None:
        self.filesystem = filesystem

    def node(self, path: str) -> int:
        """Look a path up."""
        node = ROOT
        for name in path.split("/") if path else ():
            node = self.entry(node, os.fsencode(name)).node
        return node

    def entry(self, parent: int, name: bytes) -> Entry:
        """Look a name up."""
        return run(self.filesystem.lookup(parent, name))

    def stat(self, path: str) -> Attributes:
        """Return a path's attributes."""
        return run(self.filesystem.getattr(self.node(path)))

    def split(self, path: str) -> tuple[int, bytes]:
        """Return directory and name of a path."""
        above, _, name = path.rpartition("/")
        return self.node(above), os.fsencode(name)

    def mkdir(self, path: str) -> Entry:
        """Make a directory."""
        return run(self.filesystem.mkdir(*self.split(path), 0o755, SOMEONE))

    def rmdir(self, path: str) -> None:
        """Remove a directory."""
        run(self.filesystem.rmdir(*self.split(path)))

    def unlink(self, path: str) -> None:
        """Remove a file."""
        run(self.filesystem.unlink(*self.split(path)))

    def rename(self, old: str, new: str, flags: int = 0) -> None:
        """Rename."""
        run(self.filesystem.rename(*self.split(old), *self.split(new), flags))

    def create(self, path: str, flags: int = 0) -> int:
        """Make a file and return its handle."""
        flags |= os.O_CREAT | os.O_WRONLY
        opened, _ = run(self.filesystem.create(*self.split(path), 0o644, flags, SOMEONE))
        return opened.handle

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Open a file and return its handle."""
        return run(self.filesystem.open(self.node(path), flags, SOMEONE)).handle

    def close(self, handle: int) -> None:
        """Close a file."""
        run(self.filesystem.flush(handle))
        run(self.filesystem.release(handle))

    def put(self, path: str, content: bytes, flags: int = 0) -> None:
        """Write a new file."""
        handle = self.create(path, flags)
        if content:
            assert self.write(handle, 0, content) == len(content)
        self.close(handle)

    def write(self, handle: int, offset: int, content: bytes) -> int:
        """Write."""
        return run(self.filesystem.write(handle, offset, content))

    def read(self, handle: int, size: int = 1 << 20, offset: int = 0) -> bytes:
        """Read."""
        content = self.filesystem.read_now(handle, offset, size)
        return bytes(run(self.filesystem.read(handle, offset, size)) if content is None else content)

    def cat(self, path: str) -> bytes:
        """Return a file's content."""
        handle = self.open(path)
        content = self.read(handle)
        self.close(handle)
        return content

    def truncate(self, path: str, size: int) -> Attributes:
        """Cut a file off."""
        return run(self.filesystem.setattr(self.node(path), Changes(size=size), None, SOMEONE))

    def change(self, path: str, **changes: int) -> Attributes:
        """Change attributes."""
        return run(self.filesystem.setattr(self.node(path), Changes(**changes), None, SOMEONE))

    def listdir(self, path: str, room: int = 10**9, *, takes_names: bool = True) -> list[str]:
        """Return the names in a directory, asked for `room` at a time, in the order in which they come."""
        handle = run(self.filesystem.opendir(self.node(path)))
        names, position = [], 0
        while True:
            shelf = Shelf(room, takes_names=takes_names)
            run(self.filesystem.readdir(handle, position, shelf))
            if not shelf.entries:
                break
            position = shelf.entries[-1][3]
            names += [os.fsdecode(name) for name, *_ in shelf.entries]
        run(self.filesystem.releasedir(handle))
        return [name for name in names if name not in (".", "..")]


def make_filesystem(
    store: ObjectStore, scratch: Path, *, memory: Memory | None = None, state: str = "", **settings: Any
) -> ObjectsFilesystem:
    """Return a filesystem over a store, with a cache volume."""
    cache = scratch / "cache"
    cache.mkdir(exist_ok=True)
    given = ObjectsSettings(source="memory://test", **{"staging_bytes": 1 << 20, **settings})
    places = Places(
        state=state, cache=str(cache), is_resumed=memory is not None and memory.inheritance is not None
    )
    return ObjectsFilesystem(store, given, at_once, places, memory)


def make_kernel(store: ObjectStore, scratch: Path, **settings: Any) -> Kernel:
    """Return what asks a filesystem over a store."""
    return Kernel(make_filesystem(store, scratch, **settings))
