"""An application that works on mapped memory."""

import mmap
import os
import random
from pathlib import Path

from e2e.torture.apps.tally import GoesOn, Tally

_PAGE = mmap.PAGESIZE
_PAGES = 64
_SIZE = _PAGES * _PAGE


class Mapped:
    """A file mapped three times: shared through two descriptors, and privately."""

    def __init__(self, path: Path, dice: random.Random, tally: Tally) -> None:
        self._dice = dice
        self._tally = tally
        self._content = bytearray(dice.randbytes(_SIZE))
        self._own: dict[int, bytearray] = {}
        path.write_bytes(self._content)
        self._file, other = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
        self._shared, self._second = mmap.mmap(self._file, _SIZE), mmap.mmap(other, _SIZE)
        os.close(other)  # a mapping needs no descriptor
        self._private = mmap.mmap(self._file, _SIZE, flags=mmap.MAP_PRIVATE)

    def step(self) -> None:
        """Write or read somewhere, and compare."""
        at = self._dice.randrange(_SIZE - 9000)
        what = self._dice.randbytes(self._dice.choice((1, 100, 9000)))
        match self._dice.randrange(7):
            case 0 | 1:
                self._shared[at : at + len(what)] = what
                self._content[at : at + len(what)] = what
                found = self._second[at : at + len(what)]
                self._tally.expect("the other mapping", found, what)
            case 2:
                begin = at & -_PAGE
                self._shared.flush(begin, min(2 * _PAGE, _SIZE - begin))
            case 3:
                self._tally.expect("written", os.pwrite(self._file, what, at), len(what))
                self._content[at : at + len(what)] = what
                self._tally.expect("a mapping", self._shared[at : at + len(what)], what)
            case 4:
                self._write_privately(at // _PAGE, what[:100])
            case 5:
                self._read_anew(at)
            case _:
                found = os.pread(self._file, 9000, at)
                self._tally.expect("read", found, bytes(self._content[at : at + 9000]))
        self._compare_own()

    def end(self, path: Path) -> None:
        """Write everything back, and compare."""
        self._shared.flush()
        self._tally.expect("the mapping", self._shared[:], bytes(self._content))
        for mapping in (self._shared, self._second, self._private):
            mapping.close()
        os.fsync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._file)
        self._tally.expect("the file", path.read_bytes(), bytes(self._content))
        self._tally.leave(path, bytes(self._content))

    def _write_privately(self, page: int, what: bytes) -> None:
        """Change a page that nobody else may see: it is a copy from then on."""
        begin = page * _PAGE
        own = self._own.setdefault(page, bytearray(self._content[begin : begin + _PAGE]))
        self._private[begin : begin + len(what)] = what
        own[: len(what)] = what

    def _compare_own(self) -> None:
        if self._own:
            page = self._dice.choice(tuple(self._own))
            found = self._private[page * _PAGE : (page + 1) * _PAGE]
            self._tally.expect("a page of one's own", found, bytes(self._own[page]))

    def _read_anew(self, at: int) -> None:
        """Write back, forget the pages, and have them read from the daemon by touching them."""
        self._shared.flush()
        for mapping in (self._shared, self._second):
            mapping.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        found = self._shared[at : at + 9000]
        self._tally.expect("a mapping read anew", found, bytes(self._content[at : at + 9000]))


def mapper(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Write through a shared mapping, sync it, and see to it that a private one stays one's own."""
    path = place / "mapped"
    mapped = Mapped(path, dice, tally)
    while goes_on():
        mapped.step()
        tally.operations += 1
    mapped.end(path)
