"""An application that uses the rarer calls on a file's contents."""

import ctypes
import errno
import os
import random
from pathlib import Path

from e2e.torture.apps.tally import GoesOn, Tally

_SIZE = 1 << 18
_MODES = {"allocate": 0, "keep size": 1, "punch": 3, "zero": 0x10}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Ranges:
    """Two files and what must be in them."""

    def __init__(self, place: Path, dice: random.Random, tally: Tally) -> None:
        self._dice = dice
        self._tally = tally
        self._paths = (place / "one", place / "two")
        self._files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) for path in self._paths]
        self._contents = (bytearray(), bytearray())

    def step(self) -> None:
        """Do one thing with one of the files."""
        which = self._dice.randrange(2)
        steps = (self.write, self.write, self.cut, self.cut_by_path, self.allocate, self.fallocate)
        self._dice.choice((*steps, self.copy, self.copy, self.seek, self.read, self.empty))(which)

    def end(self) -> None:
        """Compare all of it."""
        for which, path in enumerate(self._paths):
            os.fsync(self._files[which])
            os.posix_fadvise(self._files[which], 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(self._files[which])
            self._tally.expect("all", path.read_bytes(), bytes(self._contents[which]))
            self._tally.leave(path, bytes(self._contents[which]))

    def write(self, which: int) -> None:
        """Write, mostly beyond the end: what is between is a hole."""
        at, what = self._dice.randrange(_SIZE), self._dice.randbytes(self._dice.choice((1, 5000, 20_000)))
        pieces = [what[: len(what) // 2], what[len(what) // 2 :]]
        self._tally.expect("written", os.pwritev(self._files[which], pieces, at), len(what))
        self._grow(which, at)
        self._contents[which][at : at + len(what)] = what

    def cut(self, which: int) -> None:
        """Set the size."""
        size = self._dice.randrange(_SIZE)
        os.ftruncate(self._files[which], size)
        self._cut(which, size)

    def cut_by_path(self, which: int) -> None:
        """Set the size of a file that is open elsewhere."""
        size = self._dice.randrange(_SIZE)
        os.truncate(self._paths[which], size)
        self._cut(which, size)

    def empty(self, which: int) -> None:
        """Open it anew, at times with O_TRUNC."""
        truncate = self._dice.choice((0, 0, os.O_TRUNC))
        os.close(self._files[which])
        self._files[which] = os.open(self._paths[which], os.O_RDWR | truncate)
        if truncate:
            self._contents[which].clear()

    def allocate(self, which: int) -> None:
        """Have space, which reads as zeros."""
        at, length = self._dice.randrange(_SIZE), self._dice.randrange(1, 30_000)
        os.posix_fallocate(self._files[which], at, length)
        self._grow(which, at + length)

    def fallocate(self, which: int) -> None:
        """Ask for what many filesystems do not have: then nothing may have changed."""
        mode = self._dice.choice(tuple(_MODES))
        at, length = self._dice.randrange(_SIZE), self._dice.randrange(1, 30_000)
        if _libc.fallocate(self._files[which], _MODES[mode], at, length):
            number = ctypes.get_errno()
            self._tally.expect(f"errno of fallocate {mode}", number, errno.EOPNOTSUPP)
            return
        content = self._contents[which]
        if mode in ("punch", "zero"):
            end = min(at + length, len(content))
            content[at:end] = bytes(max(0, end - at))
        if mode in ("allocate", "zero"):
            self._grow(which, at + length)

    def copy(self, which: int) -> None:
        """Have the kernel copy from one file to the other."""
        source, content = self._contents[which], self._contents[1 - which]
        at, to = self._dice.randrange(len(source) + 1), self._dice.randrange(_SIZE)
        left = min(self._dice.randrange(60_000), len(source) - at)
        while left:
            count = os.copy_file_range(self._files[which], self._files[1 - which], left, at, to)
            if not count:
                self._tally.complain(f"a copy ends {left} bytes before its source does")
                return
            self._grow(1 - which, to)
            content[to : to + count] = source[at : at + count]
            at, to, left = at + count, to + count, left - count

    def seek(self, which: int) -> None:
        """Look for data and holes. What is called a hole must read as zeros, and the end of a file is one."""
        file, content = self._files[which], self._contents[which]
        at = self._dice.randrange(len(content) + 2)
        data, hole = _seek(file, at, os.SEEK_DATA), _seek(file, at, os.SEEK_HOLE)
        if at >= len(content):
            self._tally.expect("a search beyond the end", (data, hole), (None, None))
            return
        until = len(content) if data is None else data
        self._tally.expect("a hole", any(content[at:until]), False)
        if hole is None or not at <= hole <= len(content) or (hole < len(content) and content[hole]):
            self._tally.complain(f"no hole at {hole}, which was found from {at} on")
        self._tally.expect("the end", os.lseek(file, 0, os.SEEK_END), len(content))

    def read(self, which: int) -> None:
        """Read all of it, from the daemon."""
        file = self._files[which]
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        self._tally.expect("a file", os.pread(file, 2 * _SIZE, 0), bytes(self._contents[which]))

    def _grow(self, which: int, size: int) -> None:
        content = self._contents[which]
        content.extend(bytes(max(0, size - len(content))))

    def _cut(self, which: int, size: int) -> None:
        self._grow(which, size)
        del self._contents[which][size:]


def ranges(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Cut, allocate, copy, search for holes in two files."""
    files = Ranges(place, dice, tally)
    while goes_on():
        files.step()
        tally.operations += 1
    files.end()


def _seek(file: int, at: int, whence: int) -> int | None:
    try:
        return os.lseek(file, at, whence)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None
