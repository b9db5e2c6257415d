"""An application whose processes lock what they share."""

import fcntl
import os
import random
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.torture.apps.crowd import together
from e2e.torture.apps.tally import GoesOn, Tally

_PROCESSES = 3
_FORMAT = "hhqqi4x"  # struct flock of 64 bits
_HELD_BYTES = 10
Take = Callable[[int, bool], None]


def locker(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Hold one lock of each kind all the time, and count under others that several processes want: no count may be lost."""
    held = {kind: os.open(place / f"held-{kind}", os.O_RDWR | os.O_CREAT) for kind in _KINDS}
    for kind, file in held.items():
        (place / f"counter-{kind}").write_bytes(b"%08d" % 0)
        _KINDS[kind](file, False)
    together(lambda number, found: _count(place, number, goes_on, found), _PROCESSES, tally)
    for kind, file in held.items():
        wanted = sum(int((place / f"counted-{kind}-{number}").read_bytes()) for number in range(_PROCESSES))
        tally.expect(f"count under {kind}", int((place / f"counter-{kind}").read_bytes()), wanted)
        os.close(file)


def _count(place: Path, number: int, goes_on: GoesOn, tally: Tally) -> None:
    dice = random.Random(number)
    counted = dict.fromkeys(_KINDS, 0)
    files = {kind: os.open(place / f"counter-{kind}", os.O_RDWR) for kind in _KINDS}
    while goes_on():
        kind = dice.choice(tuple(_KINDS))
        if dice.randrange(4) == 0:
            _try_held(place, kind, tally)
            continue
        _KINDS[kind](files[kind], True)
        value = int(os.pread(files[kind], 8, 0))
        os.ftruncate(files[kind], 8 + number)  # a mark of who holds it
        time.sleep(dice.random() * 0.004)
        tally.expect(f"mark of the holder of {kind}", os.fstat(files[kind]).st_size, 8 + number)
        os.pwrite(files[kind], b"%08d" % (value + 1), 0)
        os.ftruncate(files[kind], 8)
        counted[kind] += 1
        tally.operations += 1
        _release(kind, files[kind])
    for kind, count in counted.items():
        (place / f"counted-{kind}-{number}").write_bytes(b"%d" % count)
        os.close(files[kind])


def _try_held(place: Path, kind: str, tally: Tally) -> None:
    """See that a lock is held by the first process; beside its range nobody holds anything."""
    file = os.open(place / f"held-{kind}", os.O_RDWR)
    try:
        _KINDS[kind](file, False)
        tally.complain(f"a lock of {kind} was had that somebody holds")
    except BlockingIOError:
        tally.operations += 1
    if kind == "fcntl":
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _HELD_BYTES)
    os.close(file)


def _flock(file: int, waits: bool) -> None:
    fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


def _fcntl(file: int, waits: bool) -> None:
    fcntl.lockf(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB), _HELD_BYTES)


def _ofd(file: int, waits: bool) -> None:
    command = fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK
    fcntl.fcntl(file, command, struct.pack(_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, _HELD_BYTES, 0))


def _release(kind: str, file: int) -> None:
    if kind == "flock":
        fcntl.flock(file, fcntl.LOCK_UN)
    elif kind == "fcntl":
        fcntl.lockf(file, fcntl.LOCK_UN, _HELD_BYTES)
    else:
        fcntl.fcntl(
            file, fcntl.F_OFD_SETLK, struct.pack(_FORMAT, fcntl.F_UNLCK, os.SEEK_SET, 0, _HELD_BYTES, 0)
        )


_KINDS: Mapping[str, Take] = {"flock": _flock, "fcntl": _fcntl, "ofd": _ofd}
