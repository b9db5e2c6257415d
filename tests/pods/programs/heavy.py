"""Writes and reads many files at once, past the page cache, in the largest pieces there are. Arguments: directory, pieces a file.

Each thread ends at its first error; printed are the names of the errors as a JSON list.
"""

import errno
import json
import mmap
import os
import sys
import threading

THREADS = 32
PIECE = 1 << 20


def main() -> None:
    """Write and read."""
    directory, pieces = sys.argv[1], int(sys.argv[2])
    errors: list[str] = []
    threads = [
        threading.Thread(target=work, args=(f"{directory}/heavy-{number}", pieces, errors))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(sorted(errors)))


def work(path: str, pieces: int, errors: list[str]) -> None:
    """Write a file, then read it. A short or wrong read is an error too."""
    block = mmap.mmap(-1, PIECE)  # aligned, as O_DIRECT wants it
    pattern = os.path.basename(path).encode().ljust(16, b".") * (PIECE // 16)
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o644)
        block[:] = pattern
        for number in range(pieces):
            os.pwrite(file, block, number * PIECE)
        for number in range(pieces):
            block[:] = bytes(PIECE)
            if os.preadv(file, [block], number * PIECE) != PIECE or block[:] != pattern:
                errors.append("another content")
        os.close(file)
    except OSError as error:
        errors.append(errno.errorcode.get(error.errno or 0, str(error)))


if __name__ == "__main__":
    main()
