"""An application whose every state is recognisable: it makes A, then B; where there is a B, there is its A.

    python -m tests.sidecar.volume.pairs DIRECTORY NAME

Ends with SIGTERM, and prints how many pairs it has made. What it checks of a copy: `broken`.
"""

import os
import signal
import sys
from pathlib import Path

_KEPT = 5


def main() -> None:
    """Make pairs: of numbers in two files, of files, and of names."""
    directory, name = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    first, second = (os.open(f"{directory}/{name}.{half}", os.O_RDWR | os.O_CREAT) for half in "AB")
    number = 0
    while not ended:
        number += 1
        os.pwrite(first, b"%012d" % number, 0)
        os.pwrite(second, b"%012d" % number, 0)
        for half in "AB":
            with open(f"{directory}/{name}.{number}.{half}", "wb") as file:
                file.write(b"%012d" % number)
        if number > _KEPT:
            for half in "BA":
                os.unlink(f"{directory}/{name}.{number - _KEPT}.{half}")
        os.rename(f"{directory}/{name}.{number}.A", f"{directory}/{name}.{number}.a")
        os.rename(f"{directory}/{name}.{number}.a", f"{directory}/{name}.{number}.A")
    print(number)


def broken(copy: Path, name: str) -> list[str]:
    """Return what a copy has that never was."""
    wrong = []
    first, second = ((copy / f"{name}.{half}").read_bytes() or b"0" for half in "AB")
    if not int(second) <= int(first) <= int(second) + 1:
        wrong.append(f"{name}: A is {first!r}, B is {second!r}")
    names = set(os.listdir(copy))
    for there in names:
        if there.startswith(f"{name}.") and there.endswith(".B") and there != f"{name}.B":
            stem = there[:-2]
            if not {f"{stem}.A", f"{stem}.a"} & names:
                wrong.append(f"{there} is there without its A")
    return wrong


if __name__ == "__main__":
    main()
