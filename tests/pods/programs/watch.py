"""Uses a volume all the time and tells what it sees, one JSON line for each change.

Arguments: the volume's directory, the file to read, its text, where to create files ("" for nowhere). It goes through the same round again and again: open and read the file, read it through a descriptor
that is held from the beginning, list the directory, create a file. A line is {"op", "outcome", "at", "round"}, where outcome
is "ok", an errno's name, or what was seen instead. Every few rounds a
line {"op": "alive", "round"} says that it goes on. The last line, after SIGTERM, sums up; "longest_s" is how long the longest
operation took.
"""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable

PAUSE_S = 0.005
ALIVE_EVERY = 5


def main() -> None:
    """Watch until SIGTERM."""
    directory, name, text, inbox = sys.argv[1:]
    path = f"{directory}/{name}"
    held = os.open(path, os.O_RDONLY)
    told: dict[str, str] = {}
    rounds = dict.fromkeys(("read", "held", "list", "create"), 0)
    failed: list[int] = []
    longest_s = 0.0
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))

    def tell(op: str, attempt: Callable[[], str]) -> str:
        nonlocal longest_s
        began = time.monotonic()
        try:
            outcome = attempt()
        except OSError as error:
            outcome = errno.errorcode.get(error.errno or 0, str(error))
        longest_s = max(longest_s, time.monotonic() - began)
        rounds[op] += 1
        if told.get(op) != outcome:
            told[op] = outcome
            print(
                json.dumps({"op": op, "outcome": outcome, "at": time.time(), "round": rounds[op]}), flush=True
            )
        return outcome

    def read() -> str:
        with open(path) as file:
            seen = file.read()
        return "ok" if seen == text else f"another text: {seen!r}"

    def read_held() -> str:
        os.posix_fadvise(held, 0, 0, os.POSIX_FADV_DONTNEED)  # what is in the page cache outlives any daemon
        seen = os.pread(held, 65536, 0).decode()
        return "ok" if seen == text else f"another text: {seen!r}"

    def list_directory() -> str:
        names = os.listdir(directory)
        return "ok" if name.partition("/")[0] in names else f"another listing: {names}"

    def create() -> str:
        number = rounds["create"]
        with open(f"{inbox}/{number}", "x") as file:
            file.write(str(number))
        return "ok"

    with open("/dev/termination-log", "w") as ready:
        ready.write("up")
    while not ended:
        tell("read", read)
        tell("held", read_held)
        tell("list", list_directory)
        if inbox and tell("create", create) != "ok":
            failed.append(rounds["create"] - 1)
        if rounds["read"] % ALIVE_EVERY == 0:
            print(json.dumps({"op": "alive", "round": rounds["read"]}), flush=True)
        time.sleep(PAUSE_S)
    total = {"op": "sum", "outcome": "ok", "at": time.time(), "rounds": rounds, "failed": failed}
    print(json.dumps({**total, "longest_s": longest_s}), flush=True)


if __name__ == "__main__":
    main()
