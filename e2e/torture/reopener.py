"""An application that lives with losing its open files: `reopener KIND DIRECTORY SECONDS SEED`.

Writes, syncs, closes and reads again, each time through a new path look-up. ENOTCONN and ECONNABORTED are what a lost connection
looks like; then it tries again. Anything else is an error, and so is a synced byte that is not there. Prints one JSON line.
"""

import errno
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

_LOST = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
_FILES = 16


class Reopener:
    """Files that it has written and synced, and what must be in them."""

    def __init__(self, place: Path, dice: random.Random) -> None:
        self._place = place
        self._dice = dice
        self._synced: dict[str, bytes] = {}
        self._unsure: dict[str, bytes] = {}
        self.operations = 0
        self.losses = 0
        self.wrong: list[str] = []

    def step(self) -> None:
        """Write one file anew or read one. A lost connection leaves open which of both contents a file has."""
        name = f"f{self._dice.randrange(_FILES)}"
        self.operations += 1
        if self._dice.random() < 0.5:
            content = self._dice.randbytes(self._dice.choice((10, 5000, 200_000)))
            self._unsure[name] = content
            self._write(name, content)
            self._synced[name] = content
            self._unsure.pop(name)
        elif name in self._synced:
            found = (self._place / name).read_bytes()
            allowed = {self._synced[name], self._unsure.get(name, self._synced[name])}
            if found in allowed:
                self._synced[name] = found
                self._unsure.pop(name, None)
            else:
                self.wrong.append(f"{name}: {len(found)} bytes that nobody has written as a whole")

    def _write(self, name: str, content: bytes) -> None:
        """Write beside and rename, so that a loss leaves either content and no mixture."""
        beside = self._place / f"{name}.new"
        with beside.open("wb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
        beside.rename(self._place / name)


def main(arguments: list[str]) -> int:
    """Work until the time is over, or SIGTERM comes."""
    kind, directory, seconds, seed = arguments
    until = time.monotonic() + float(seconds)
    errors: list[str] = []
    reopener: Reopener | None = None
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    while time.monotonic() < until and not told:
        try:
            if reopener is None:
                Path(directory).mkdir(exist_ok=True)
                reopener = Reopener(Path(directory), random.Random(seed))
            reopener.step()
        except OSError as error:
            if error.errno not in _LOST:
                errors.append(repr(error))
                break
            if reopener is not None:
                reopener.losses += 1
            time.sleep(0.005)
    found = reopener or Reopener(Path(directory), random.Random(seed))
    summary = {"kind": kind, "operations": found.operations, "errors": errors, "wrong": found.wrong[:20]}
    sys.stdout.write(json.dumps({**summary, "losses": found.losses}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
