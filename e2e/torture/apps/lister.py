"""An application that lists a directory, over and over."""

import os
import random
import stat
import time
from pathlib import Path

from e2e.torture.apps.stream import Stream
from e2e.torture.apps.tally import GoesOn, Tally

_MANY = 2000
_SLOWLY = 200
_PAUSE_S = 0.02
_LOOK = 10


class Lister:
    """A large directory whose names stay, and a stream that is open all the time."""

    def __init__(self, place: Path, dice: random.Random, tally: Tally, many: int = _MANY) -> None:
        self._place = place
        self._dice = dice
        self._tally = tally
        self._names = [f"f{number:04}" for number in range(many)]
        for name in self._names:
            (place / name).touch()
            tally.operations += 1
        self._stream = Stream(place)
        self._serial = 0

    def step(self) -> None:
        """List it in one way or another."""
        self._dice.choice((self.scan, self.look, self.look, self.seek, self.change, self.list_held))()
        self._tally.operations += 1

    def end(self) -> None:
        """Leave nothing."""
        self._stream.close()
        for name in self._names:
            (self._place / name).unlink()

    def scan(self) -> None:
        """Read it at once or slowly: every name once."""
        slowly = not self._dice.randrange(2)
        found = []
        with os.scandir(self._place) as entries:
            for entry in entries:
                found.append(entry.name)
                if slowly and len(found) % _SLOWLY == 0:
                    time.sleep(_PAUSE_S)
        self._expect_all("listing", found)

    def look(self) -> None:
        """Read it and look at files meanwhile: then the kernel asks for attributes together with names."""
        found = []
        with os.scandir(self._place) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) % _LOOK == 0:
                    status = entry.stat(follow_symlinks=False)
                    seen = (stat.S_IFMT(status.st_mode), status.st_size, status.st_nlink)
                    self._tally.expect(f"what {entry.name} is", seen, (stat.S_IFREG, 0, 1))
        self._expect_all("listing with attributes", found)

    def seek(self) -> None:
        """Note where each name is, and go back there: the same names must follow."""
        stream = Stream(self._place)
        found, positions = self._read(stream, self._dice.choice((0, _SLOWLY)))
        self._expect_all("listing by a stream", found)
        for _ in range(12):
            at = self._dice.randrange(len(positions))
            stream.seek(positions[at])
            following = [stream.next() for _ in range(min(self._dice.randrange(1, 150), len(found) - at))]
            self._tally.expect(f"names from {found[at]} on", following, found[at : at + len(following)])
            time.sleep(self._dice.random() * _PAUSE_S)
        stream.close()

    def list_held(self) -> None:
        """Read again what has been open since the beginning."""
        self._stream.rewind()
        found, _ = self._read(self._stream, 0)
        self._expect_all("listing by the open stream", found)

    def change(self) -> None:
        """Make, rename and remove other names while it is listed: those that stay are there once."""
        stream = Stream(self._place)
        found: list[str] = []
        while (name := stream.next()) is not None:
            found.append(name)
            if len(found) % _SLOWLY == 0:
                self._serial += 1
                other = self._place / f"v{self._serial}"
                other.touch()
                other.rename(other.with_name(f"w{self._serial}"))
                if self._serial % 3:
                    other.with_name(f"w{self._serial}").unlink()
        stream.close()
        self._expect_all("listing that changes", [name for name in found if name.startswith("f")])
        for left in self._place.glob("w*"):
            left.unlink()

    def _read(self, stream: Stream, pause_after: int) -> tuple[list[str], list[int]]:
        """Return all names, and where each of them is."""
        found, positions = [], [stream.tell()]
        while (name := stream.next()) is not None:
            found.append(name)
            positions.append(stream.tell())
            if pause_after and len(found) % pause_after == 0:
                time.sleep(_PAUSE_S)
        return found, positions[: len(found)]

    def _expect_all(self, what: str, found: list[str]) -> None:
        if sorted(found) != self._names:
            missing = sorted(set(self._names) - set(found))
            doubled = sorted({name for name in found if found.count(name) > 1})
            strange = sorted(set(found) - set(self._names))
            self._tally.complain(
                f"{what}: {len(found)} names, missing {missing[:9]}, doubled {doubled[:9]}, strange {strange[:9]}"
            )


def lister(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """List a large directory again and again, slowly and fast, from anywhere: every name once."""
    listing = Lister(place, dice, tally)
    while goes_on():
        listing.step()
    listing.end()
