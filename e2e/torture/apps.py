"""Applications: each works on a mounted directory, knows what it must find there, and counts what is wrong.

Run as a program: `apps KIND DIRECTORY SECONDS SEED`; SIGTERM ends it before. Prints one JSON line: how many operations, which
errors, which wrong bytes.
"""

import contextlib
import fcntl
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_BLOCK = 1 << 20
_MANY = 2000


class Tally:
    """What an application has found."""

    def __init__(self) -> None:
        self.operations = 0
        self.errors: list[str] = []
        self.wrong: list[str] = []

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Note what is not as it must be."""
        if found != wanted:
            self.wrong.append(f"{what}: {_short(found)} instead of {_short(wanted)}")


GoesOn = Callable[[], bool]
Application = Callable[[Path, GoesOn, random.Random, Tally], None]


def writer(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Write, cut and sync a file anywhere, and compare it with what it must be."""
    path = place / "file"
    content = bytearray()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    while goes_on():
        tally.operations += 1
        match dice.randrange(12):
            case 0:
                size = dice.randrange(1 << 18)
                os.ftruncate(file, size)
                content[size:] = bytes(max(0, size - len(content)))
            case 1:
                os.fsync(file)
            case 2:
                os.close(file)
                file = os.open(path, os.O_RDWR)
            case 3:
                at = dice.randrange(len(content) + 1)
                found = os.pread(file, 1 << 16, at)
                tally.expect(f"read at {at}", found, bytes(content[at : at + (1 << 16)]))
            case _:
                at = dice.randrange(1 << 18)
                what = dice.randbytes(dice.choice((1, 100, 4096, 50_000)))
                written = os.pwrite(file, what, at)
                tally.expect("written", written, len(what))
                content[len(content) : at] = bytes(max(0, at - len(content)))
                content[at : at + len(what)] = what
    os.close(file)
    tally.expect("all", path.read_bytes(), bytes(content))


def log(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Append lines through two descriptors; none may be missing, doubled or out of order."""
    path = place / "log"
    files = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(2)]
    lines = 0
    while goes_on():
        tally.operations += 1
        os.write(files[lines % 2], b"%08d %s\n" % (lines, b"x" * (lines % 90)))
        lines += 1
        if not dice.randrange(50):
            os.fsync(files[0])
    wanted = b"".join(b"%08d %s\n" % (line, b"x" * (line % 90)) for line in range(lines))
    tally.expect("log", path.read_bytes(), wanted)


def blocks(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Write blocks of a MiB from four threads at once, and read them again."""

    def work(number: int) -> None:
        file = os.open(place / f"blocks{number}", os.O_RDWR | os.O_CREAT)
        turn = 0
        while goes_on():
            at = turn % 8 * _BLOCK
            what = (b"%08d" % (turn * 10 + number)) * (_BLOCK // 8)
            tally.expect("written", os.pwrite(file, what, at), _BLOCK)
            if turn % 3 == 0:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                tally.expect(f"block {turn}", os.pread(file, _BLOCK, at), what)
            tally.operations += 1
            turn += 1
        os.close(file)

    _in_threads(work, 4, tally)


def lister(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """List a large directory again and again, slowly and fast: every name once. Leave nothing."""
    for number in range(_MANY):
        (place / f"f{number:04}").touch()
        tally.operations += 1
    wanted = sorted(f"f{number:04}" for number in range(_MANY))
    while goes_on():
        found = []
        slowly = not dice.randrange(3)
        with os.scandir(place) as entries:
            for entry in entries:
                found.append(entry.name)
                if slowly and len(found) % 200 == 0:
                    time.sleep(0.02)
        tally.expect("listing", sorted(found), wanted)
        tally.operations += 1
    for name in wanted:
        (place / name).unlink()


def keeper(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Keep things that have no name, or another: removed files and directories, mappings, locks."""
    turn = 0
    while goes_on():
        turn += 1
        tally.operations += 1
        _keep_removed(place, turn, dice, tally)
        _keep_locked(place, turn, tally)
        _keep_inside(place, turn, tally)


def _keep_removed(place: Path, turn: int, dice: random.Random, tally: Tally) -> None:
    first, second = place / f"removed{turn}", place / f"replaced{turn}"
    one = os.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    two = os.open(second, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    content = dice.randbytes(5000)
    os.write(one, content)
    os.write(two, content)
    mapped = mmap.mmap(two, 5000)
    first.unlink()
    third = place / f"new{turn}"
    third.write_bytes(b"new")
    third.rename(second)
    for step in range(8):
        what = b"%d" % step * 10
        os.pwrite(one, what, step * 100)
        mapped[step * 100 : step * 100 + len(what)] = what
        content = content[: step * 100] + what + content[step * 100 + len(what) :]
        time.sleep(dice.random() * 0.02)
        tally.expect("a removed file", os.pread(one, 6000, 0), content)
        tally.expect("its size and links", (os.fstat(one).st_size, os.fstat(one).st_nlink), (5000, 0))
    mapped.flush()
    tally.expect("a mapping", mapped[:], content)
    mapped.close()
    tally.expect("a replaced file", os.pread(two, 6000, 0), content)
    tally.expect("what replaced it", second.read_bytes(), b"new")
    os.close(one)
    os.close(two)
    second.unlink()


def _keep_locked(place: Path, turn: int, tally: Tally) -> None:
    path = place / "locked"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.lockf(file, fcntl.LOCK_EX)
    try_it = (
        "import fcntl,os,sys\n"
        "try: fcntl.lockf(os.open(sys.argv[1],os.O_RDWR),fcntl.LOCK_EX|fcntl.LOCK_NB)\n"
        "except BlockingIOError: print('locked')\n"
    )
    if turn % 4 == 0:
        done = subprocess.run([sys.executable, "-ISc", try_it, str(path)], capture_output=True, text=True)
        tally.expect("a lock", done.stdout + done.stderr, "locked\n")
    os.close(file)


def _keep_inside(place: Path, turn: int, tally: Tally) -> None:
    directory = place / f"inside{turn}"
    directory.mkdir()
    before = os.getcwd()
    os.chdir(directory)
    pinned = os.open(directory, os.O_PATH)
    Path("here").write_text("here")
    moved = directory.with_name(f"moved{turn}")
    directory.rename(moved)
    time.sleep(0.01)
    tally.expect("what is here", Path("here").read_text(), "here")
    Path("here").unlink()
    moved.rmdir()
    for _ in range(5):
        tally.expect(
            "a removed directory", (os.stat(".").st_ino, os.listdir(".")), (os.fstat(pinned).st_ino, [])
        )
        time.sleep(0.004)
    os.chdir(before)
    os.close(pinned)


def _in_threads(work: Callable[[int], None], count: int, tally: Tally) -> None:
    def run(number: int) -> None:
        try:
            work(number)
        except OSError as error:
            tally.errors.append(repr(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _short(what: object) -> str:
    text = repr(what)
    return text if len(text) < 200 else f"{text[:90]}…{text[-90:]} ({len(text)})"


def _applications() -> dict[str, Application]:
    from e2e.torture.churn import churn

    return {
        "writer": writer,
        "log": log,
        "blocks": blocks,
        "lister": lister,
        "keeper": keeper,
        "churn": churn,
    }


def main() -> None:
    """Be one application for a while, then report."""
    kind, directory, seconds, seed = sys.argv[1:5]
    place = Path(directory)
    tally = Tally()
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    end = time.monotonic() + float(seconds)
    with contextlib.suppress(FileExistsError):
        place.mkdir()
    try:
        _applications()[kind](place, lambda: not told and time.monotonic() < end, random.Random(seed), tally)
    except OSError as error:
        import traceback

        tally.errors.append(f"{error!r} {traceback.format_exc().splitlines()[-3:]}")
    print(
        json.dumps(
            {
                "kind": kind,
                "operations": tally.operations,
                "errors": tally.errors[:20],
                "wrong": tally.wrong[:20],
            }
        )
    )


if __name__ == "__main__":
    main()
