"""An application that lives with losing its open files."""

import errno
import os
import random
import time
from pathlib import Path

from e2e.torture.apps.tally import GoesOn, Tally

_LOST = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
_FILES = 16
_PAUSE_S = 0.005


class Reopener:
    """Files that it has written and synced, and what must be in them."""

    def __init__(self, place: Path, dice: random.Random, tally: Tally) -> None:
        self._place = place
        self._dice = dice
        self._tally = tally
        self._synced: dict[str, bytes] = {}
        self._unsure: dict[str, bytes] = {}

    def step(self) -> None:
        """Write one file anew or read one. A lost connection leaves open which of both contents a file has."""
        name = f"f{self._dice.randrange(_FILES)}"
        self._tally.operations += 1
        if self._dice.random() < 0.5:
            content = self._dice.randbytes(self._dice.choice((10, 5000, 200_000)))
            self._unsure[name] = content
            self._write(name, content)
            self._synced[name] = content
            self._unsure.pop(name)
        elif name in self._synced:
            found = (self._place / name).read_bytes()
            if found in (self._synced[name], self._unsure.get(name)):
                self._synced[name] = found
                self._unsure.pop(name, None)
            else:
                self._tally.complain(f"{name}: {len(found)} bytes that nobody has written as a whole")

    def end(self) -> None:
        """Say what must be in which file, as far as that is sure."""
        for name, content in self._synced.items():
            if name not in self._unsure:
                self._tally.leave(self._place / name, content)

    def _write(self, name: str, content: bytes) -> None:
        """Write beside and rename, so that a loss leaves either content and no mixture."""
        beside = self._place / f"{name}.new"
        with beside.open("wb", buffering=0) as file:
            self._tally.expect("written", file.write(content), len(content))
            os.fsync(file.fileno())
        beside.rename(self._place / name)


def reopener(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Write, sync, close and read again, each time through a new path look-up.

    ENOTCONN and ECONNABORTED are what a lost connection looks like; then it tries again. Anything else is an error, and so is a
    synced byte that is not there.
    """
    files = Reopener(place, dice, tally)
    while goes_on():
        try:
            place.mkdir(exist_ok=True)
            files.step()
        except OSError as error:
            if error.errno not in _LOST:
                raise
            time.sleep(_PAUSE_S)
    files.end()
