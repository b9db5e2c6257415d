"""An application for a pod that tells what happens to its files, and how long it was kept waiting.

Arguments: a directory of the volume that has the file `blob`, and a name for what it makes there; each life of it adds a number
of its own, for there may be others. Two threads go round and
round, so that one which waits keeps no other waiting: `held` reads `blob` and appends to a journal through descriptors that it
opened at the start, with fsync, and reads back what it has appended; `fresh` opens `blob`, writes a file and reads it back.
Every block of `blob` holds its own number.

It prints a line of JSON whenever an outcome changes, whenever it was kept waiting, and every quarter of a second one with what
was done so far. It ends with SIGTERM, and never by itself.
"""

import contextlib
import errno
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

BLOCK = 4096
PAUSE_S, TELL_S = 0.01, 0.25
STALL_MS = 20.0


class Track:
    """What one thread has seen. `acknowledged` counts appended lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcome = ""
        self.rounds = 0
        self.good = 0
        self.acknowledged = 0

    def attempt(self, once: Callable[[], None]) -> None:
        """Do it once, and tell of an outcome that is another one than before."""
        began = time.monotonic()
        outcome = "ok"
        try:
            once()
        except OSError as error:
            outcome = errno.errorcode.get(error.errno or 0, str(error))
        except ValueError as error:
            outcome = f"wrong: {error}"
        took_ms = (time.monotonic() - began) * 1000
        self.rounds += 1
        self.good += outcome == "ok"
        if outcome != self.outcome:
            self.outcome = outcome
            tell({"op": "outcome", "of": self.name, "outcome": outcome})
        if took_ms > STALL_MS:
            tell({"op": "stall", "of": self.name, "ms": round(took_ms, 1)})


def tell(message: dict[str, object]) -> None:
    """Print a message, whole."""
    os.write(1, json.dumps(message).encode() + b"\n")


def check_block(content: bytes, number: int) -> None:
    """Raise ValueError unless a block is the one of that number."""
    if content != b"%08d" % number * (BLOCK // 8):
        raise ValueError(f"block {number} begins with {content[:16]!r}")


def new_journal(directory: str, name: str) -> tuple[int, str]:
    """Make a journal that nobody has made yet; return its descriptor, and the name with the number that it got."""
    for number in itertools.count():
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_EXCL
        with contextlib.suppress(FileExistsError):
            return os.open(f"{directory}/journal-{name}.{number}", flags, 0o644), f"{name}.{number}"
    raise AssertionError("there is always another number")


def main(directory: str, name: str) -> None:
    """Use the files until SIGTERM."""
    held, fresh = Track("held"), Track("fresh")
    blob = os.open(f"{directory}/blob", os.O_RDONLY)
    journal, name = new_journal(directory, name)
    blocks = os.fstat(blob).st_size // BLOCK
    size = 0

    def use_held() -> None:
        nonlocal size
        number = held.rounds * 7 % blocks
        os.posix_fadvise(blob, 0, 0, os.POSIX_FADV_DONTNEED)  # what is in the page cache outlives any daemon
        check_block(os.pread(blob, BLOCK, number * BLOCK), number)
        line = b"%d\n" % held.acknowledged
        if os.write(journal, line) != len(line):
            raise ValueError("a short write")
        os.fsync(journal)
        held.acknowledged += 1
        os.posix_fadvise(journal, 0, 0, os.POSIX_FADV_DONTNEED)
        seen = os.pread(journal, len(line), size)
        size += len(line)
        if seen != line:
            raise ValueError(f"appended {line!r}, read {seen!r}")

    def use_fresh() -> None:
        number = fresh.rounds * 5 % blocks
        with open(f"{directory}/blob", "rb") as file:
            file.seek(number * BLOCK)
            check_block(file.read(BLOCK), number)
        note, text = f"{directory}/note-{name}", str(fresh.rounds)
        with open(f"{note}.new", "w") as written:
            written.write(text)
        os.rename(f"{note}.new", note)
        with open(note) as read:
            if (seen := read.read()) != text:
                raise ValueError(f"wrote {text}, read {seen!r}")

    def go_round(track: Track, once: Callable[[], None]) -> None:
        while True:
            track.attempt(once)
            time.sleep(PAUSE_S)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for track, once in ((held, use_held), (fresh, use_fresh)):
        threading.Thread(target=go_round, args=(track, once), daemon=True).start()
    ended = False
    while not ended:
        ended = signal.sigtimedwait({signal.SIGTERM}, TELL_S) is not None
        good = {each.name: each.good for each in (held, fresh)}
        tell({"op": "sum", "acknowledged": held.acknowledged, "ended": ended, "good": good})
    os._exit(0)  # a thread that waits for the volume keeps nobody


if __name__ == "__main__":
    main(*sys.argv[1:])
