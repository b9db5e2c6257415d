"""An application that writes a file anywhere and syncs it."""

import os
import random
from pathlib import Path

from e2e.torture.apps.tally import GoesOn, Tally

_SIZE = 1 << 18
_PIECE = 1 << 16


def writer(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Write, cut and sync a file anywhere, and compare it with what it must be, also with nothing of it in the page cache."""
    path = place / "file"
    content = bytearray()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    while goes_on():
        tally.operations += 1
        match dice.randrange(14):
            case 0:
                size = dice.randrange(_SIZE)
                os.ftruncate(file, size)
                content[size:] = bytes(max(0, size - len(content)))
            case 1:
                os.fsync(file)
            case 2:
                os.close(file)
                file = os.open(path, os.O_RDWR)
            case 3 | 4:
                at = dice.randrange(len(content) + 1)
                found = os.pread(file, _PIECE, at)
                tally.expect(f"read at {at}", found, bytes(content[at : at + _PIECE]))
            case 5:
                os.fdatasync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                tally.expect("size", os.fstat(file).st_size, len(content))
            case _:
                at = dice.randrange(_SIZE)
                what = dice.randbytes(dice.choice((1, 100, 4096, 50_000)))
                tally.expect("written", os.pwrite(file, what, at), len(what))
                content[len(content) : at] = bytes(max(0, at - len(content)))
                content[at : at + len(what)] = what
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    tally.expect("all", path.read_bytes(), bytes(content))
    tally.leave(path, bytes(content))
