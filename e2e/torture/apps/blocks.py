"""An application whose processes write large blocks."""

import os
import random
from itertools import count
from pathlib import Path

from e2e.torture.apps.crowd import together
from e2e.torture.apps.tally import GoesOn, Tally

_BLOCK = 1 << 20
_PROCESSES = 4
_BLOCKS = 8


def blocks(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Write blocks of a MiB by four processes at once, each into a file of its own and into a part of a shared one, and read them again."""
    (place / "shared").touch()
    together(lambda number, found: _write(place, number, goes_on, found), _PROCESSES, tally)


def _write(place: Path, number: int, goes_on: GoesOn, tally: Tally) -> None:
    own = os.open(place / f"blocks{number}", os.O_RDWR | os.O_CREAT)
    shared = os.open(place / "shared", os.O_RDWR)
    held: dict[int, bytes] = {}
    for turn in count():
        if not goes_on():
            break
        file, first = (shared, number * _BLOCKS) if turn % 4 == 0 else (own, 0)
        at = (first + turn // 4 % _BLOCKS) * _BLOCK
        what = (b"%08d" % (turn * 10 + number)) * (_BLOCK // 8)
        tally.expect("written", os.pwrite(file, what, at), _BLOCK)
        if file == own:
            held[at] = what
        if turn % 3 == 0:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            tally.expect(f"block {turn}", os.pread(file, _BLOCK, at), what)
        tally.operations += 1
    os.fsync(own)
    os.posix_fadvise(own, 0, 0, os.POSIX_FADV_DONTNEED)
    content = b"".join(held.get(at, bytes(_BLOCK)) for at in range(0, max(held, default=-1) + 1, _BLOCK))
    tally.expect("all blocks", os.pread(own, len(content) + 1, 0), content)
    tally.leave(place / f"blocks{number}", content)
    os.close(own)
    os.close(shared)
