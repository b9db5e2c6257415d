"""An application that reads the files of a directory in the order of their names, over and over, and knows what each must be.

    python -m tests.sidecar.objects.walking_application DIRECTORY THREADS

Works until it is told to end, then prints what it has done and what went wrong as one JSON line.
"""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from tests.sidecar.objects.scripted_store import content_of

SIZE = 20_000


def read(path: Path) -> str:
    """Read a file past the kernel's cache, and return what is wrong with it, "" if nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            got = b""
            while part := os.read(descriptor, 1 << 20):
                got += part
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{path.name}: {error}"
    is_right = got == content_of(SIZE, int(path.name) % 251)
    return "" if is_right else f"{path.name}: {len(got)} bytes are not what they should be"


def main(directory: str, threads: int) -> None:
    """Read until told to end, all of it once at least."""
    over = Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    operations, wrong = 0, [""]
    with ThreadPoolExecutor(threads) as pool:
        while not (over.is_set() and operations) and not any(wrong):
            wrong = list(pool.map(read, sorted(Path(directory).iterdir())))
            operations += len(wrong)
    faults = [one for one in wrong if one]
    print(json.dumps({"kind": "walks", "operations": operations, "errors": [], "wrong": faults}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
