"""An application that wants as much as it can get: files grow, shrink, move, vanish while they are open, at random.

    python -m tests.sidecar.volume.greedy DIRECTORY SEED OPERATIONS

Prints how often which errno came. Names are few, so that several of these get into each other's way.
"""

import errno
import json
import os
import random
import sys
from collections import Counter

_SIZES = (1, 100, 4096, 5000, 20_000, 70_000)
_OFFSETS = (0, 0, 10, 4096, 30_000)


class Greedy:
    """One such application."""

    def __init__(self, directory: str, seed: int) -> None:
        self._directory = directory
        self._dice = random.Random(seed)
        self._open: list[int] = []
        self._calls = [
            self._write,
            self._write,
            self._append,
            self._append,
            self._truncate,
            self._truncate_open,
            self._empty,
            self._unlink,
            self._rename,
            self._link,
            self._keep_open,
            self._write_open,
            self._close,
        ]

    def work(self, operations: int) -> Counter[str]:
        """Do so many operations; return how often which errno came, or none."""
        came: Counter[str] = Counter()
        for _ in range(operations):
            try:
                self._dice.choice(self._calls)()
            except OSError as error:
                came[errno.errorcode.get(error.errno or 0, "?")] += 1
            else:
                came["done"] += 1
        while self._open:
            os.close(self._open.pop())
        return came

    def _path(self) -> str:
        return f"{self._directory}/{self._dice.choice('abcdef')}"

    def _once(self, flags: int, size: int, offset: int | None) -> None:
        file = os.open(self._path(), flags, 0o644)
        try:
            if offset is None:
                os.write(file, b"x" * size)
            else:
                os.pwrite(file, b"x" * size, offset)
        finally:
            os.close(file)

    def _write(self) -> None:
        self._once(os.O_WRONLY | os.O_CREAT, self._dice.choice(_SIZES), self._dice.choice(_OFFSETS))

    def _append(self) -> None:
        self._once(os.O_WRONLY | os.O_CREAT | os.O_APPEND, self._dice.choice(_SIZES), None)

    def _empty(self) -> None:
        self._once(os.O_WRONLY | os.O_TRUNC, self._dice.choice(_SIZES), 0)

    def _truncate(self) -> None:
        os.truncate(self._path(), self._dice.choice((0, *_SIZES, 1 << 40, 1 << 62)))

    def _truncate_open(self) -> None:
        if self._open:
            os.ftruncate(self._dice.choice(self._open), self._dice.choice(_SIZES))

    def _unlink(self) -> None:
        os.unlink(self._path())

    def _rename(self) -> None:
        os.rename(self._path(), self._path())

    def _link(self) -> None:
        os.link(self._path(), self._path())

    def _keep_open(self) -> None:
        if len(self._open) < 4:
            self._open.append(os.open(self._path(), os.O_RDWR | os.O_CREAT, 0o644))

    def _write_open(self) -> None:
        if self._open:
            os.pwrite(
                self._dice.choice(self._open), b"y" * self._dice.choice(_SIZES), self._dice.choice(_OFFSETS)
            )

    def _close(self) -> None:
        if self._open:
            os.close(self._open.pop(self._dice.randrange(len(self._open))))


if __name__ == "__main__":
    print(json.dumps(Greedy(sys.argv[1], int(sys.argv[2])).work(int(sys.argv[3]))))
