"""An application that reads one large file in every way, past the kernel's cache, and knows what each byte must be.

    python -m tests.sidecar.objects.reading_application FILE SEED [KIND …]

Works until it is told to end, and has read a little, then prints what it has done and what went wrong as one JSON line.
"""

import json
import os
import random
import signal
import sys

from tests.sidecar.objects.scripted_store import content_of

SIZE = (24 << 20) + 12345
LEAST = 20

KINDS = ("on", "on", "random", "small", "again")


def main(path: str, seed: int, *kinds: str) -> None:
    """Read until told to end, and so often at least that it would have noticed something."""
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    dice, content, operations = random.Random(seed), content_of(SIZE), 0
    wrong: list[str] = []
    errors: list[str] = []
    descriptor = os.open(path, os.O_RDONLY)
    while (not is_over or operations <= LEAST) and not wrong and not errors:
        kind = dice.choice(kinds or KINDS)
        if kind == "again":
            os.close(descriptor)
            descriptor = os.open(path, os.O_RDONLY)
            continue
        offset = dice.randrange(SIZE)
        size = {"on": 1 << 20, "random": dice.randrange(1, 1 << 20), "small": 4096}[kind]
        for _ in range(8 if kind == "on" else 1):
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                got = os.pread(descriptor, size, offset)
            except OSError as error:
                errors.append(f"{kind} at {offset}: {error}")
                break
            if got != content[offset : offset + size]:
                wrong.append(f"{kind} {size} at {offset}: {len(got)} bytes are not what they should be")
            offset, operations = offset + len(got), operations + 1
    os.close(descriptor)
    print(json.dumps({"kind": "reads", "operations": operations, "errors": errors, "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
