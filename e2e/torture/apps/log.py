"""An application whose processes append to one log."""

import os
import random
from itertools import count
from pathlib import Path

from e2e.torture.apps.crowd import together
from e2e.torture.apps.tally import GoesOn, Tally

_PROCESSES = 3


def log(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Append lines by several processes with two descriptors each; none may be missing, doubled, torn or out of its writer's order."""
    path = place / "log"
    path.touch()
    together(lambda number, found: _append(path, number, goes_on, found), _PROCESSES, tally)
    content = path.read_bytes()
    for number in range(_PROCESSES):
        mine = [line for line in content.splitlines(keepends=True) if line.startswith(b"%d " % number)]
        told = int((place / f"lines{number}").read_bytes())
        tally.expect(f"lines of {number}", b"".join(mine), b"".join(_line(number, n) for n in range(told)))
    tally.expect("lines", len(content.splitlines()), sum(_told(place)))
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    tally.leave(path, content)


def _append(path: Path, number: int, goes_on: GoesOn, tally: Tally) -> None:
    files = [os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(2)]
    for turn in count():
        if not goes_on():
            break
        line = _line(number, turn)
        tally.expect("written", os.write(files[turn % 2], line), len(line))
        tally.operations += 1
        if turn % 50 == 0:
            os.fsync(files[0])
    for file in files:
        os.close(file)
    path.with_name(f"lines{number}").write_bytes(b"%d" % turn)


def _line(number: int, turn: int) -> bytes:
    return b"%d %08d %s\n" % (number, turn, b"x" * (turn % 90))


def _told(place: Path) -> list[int]:
    return [int((place / f"lines{number}").read_bytes()) for number in range(_PROCESSES)]
