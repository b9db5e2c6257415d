"""What the directory must look like: names, contents, and which descriptors lead where."""

import random
from dataclasses import dataclass, field


class Mismatch(Exception):
    """The directory is not what it must be."""


@dataclass(eq=False)
class ShadowFile:
    """A file's content, whatever names it has. Equal only to itself, like an inode."""

    content: bytearray = field(default_factory=bytearray)
    links: int = 0

    def write(self, offset: int, piece: bytes) -> None:
        """Write; a gap before `offset` fills with zeros."""
        if offset > len(self.content):
            self.content.extend(bytes(offset - len(self.content)))
        self.content[offset : offset + len(piece)] = piece

    def resize(self, size: int) -> None:
        """Cut off, or fill with zeros."""
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def check(self, offset: int, piece: bytes, wanted: int) -> None:
        """Raise Mismatch unless a read of `wanted` bytes at `offset` had to return `piece`."""
        right = bytes(self.content[offset : offset + wanted])
        if piece == right:
            return
        if len(piece) != len(right):
            raise Mismatch(f"read {len(piece)} bytes at {offset}, not {len(right)}; size {len(self.content)}")
        first = next(at for at in range(len(right)) if piece[at] != right[at])
        wrong = sum(one != other for one, other in zip(piece, right, strict=True))
        raise Mismatch(
            f"{wrong} wrong bytes from offset {offset + first} on: "
            f"{piece[first : first + 16].hex()}, not {right[first : first + 16].hex()}"
        )


@dataclass(eq=False)
class ShadowHandle:
    """An open descriptor."""

    fd: int
    file: ShadowFile
    append: bool
    writable: bool


class Shadow:
    """All names and open descriptors."""

    def __init__(self) -> None:
        self.names: dict[str, ShadowFile] = {}
        self.handles: list[ShadowHandle] = []

    def put(self, name: str, file: ShadowFile) -> None:
        """Give a file a name, taking it from whichever file had it."""
        self.drop(name)
        self.names[name] = file
        file.links += 1

    def drop(self, name: str) -> None:
        """Remove a name if it is there."""
        file = self.names.pop(name, None)
        if file is not None:
            file.links -= 1

    def some_name(self, chance: random.Random) -> str | None:
        """Return a name that is there."""
        return chance.choice(sorted(self.names)) if self.names else None

    def some_handle(self, chance: random.Random, *, writable: bool = False) -> ShadowHandle | None:
        """Return an open descriptor."""
        fitting = [handle for handle in self.handles if handle.writable or not writable]
        return chance.choice(fitting) if fitting else None
