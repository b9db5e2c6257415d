"""Writes new files all the time, each by its full path, and tells what became of them, one JSON line a round.

Argument: the volume's directory. A round writes "w<N>", reads the file of the round before, lists the directory and reads through
a descriptor held from the beginning. A line is {"n", "at", "write", "read", "list", "held", "longest_s"}, where an operation is "ok",
an errno's name, or what was seen instead.
"""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable

PAUSE_S = 0.02


def main() -> None:
    """Write until SIGTERM."""
    directory = sys.argv[1]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    with open(f"{directory}/held", "w") as file:
        file.write("held")
    held = os.open(f"{directory}/held", os.O_RDONLY)
    written = ""
    number = 0

    def write() -> str:
        nonlocal written
        name = f"{directory}/w{number}"
        with open(name, "x") as file:
            file.write(str(number))
        written = name
        return "ok"

    def read() -> str:
        if not written:
            return "ok"
        with open(written) as file:
            seen = file.read()
        return "ok" if written.endswith(f"/w{seen}") else f"another text: {seen!r}"

    def list_directory() -> str:
        names = os.listdir(directory)
        return "ok" if "held" in names else f"another listing: {names}"

    def read_held() -> str:
        os.posix_fadvise(held, 0, 0, os.POSIX_FADV_DONTNEED)  # what is in the page cache outlives any client
        seen = os.pread(held, 100, 0)
        return "ok" if seen == b"held" else f"another text: {seen!r}"

    operations = {"write": write, "read": read, "list": list_directory, "held": read_held}
    with open("/dev/termination-log", "w") as ready:
        ready.write("up")
    while not ended:
        number += 1
        line: dict[str, object] = {"n": number}
        longest_s = 0.0
        for name, operation in operations.items():
            began = time.monotonic()
            line[name] = attempt(operation)
            longest_s = max(longest_s, time.monotonic() - began)
        print(json.dumps({**line, "at": time.time(), "longest_s": round(longest_s, 3)}), flush=True)
        time.sleep(PAUSE_S)


def attempt(operation: Callable[[], str]) -> str:
    """Return what an operation came out as."""
    try:
        return operation()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


if __name__ == "__main__":
    main()
