"""An application for a pod: reads a file that it holds open, and appends to another; ends with 1 at the first thing that is wrong.

Every block of `blob` holds its own number, so that a wrong block is told from the right one.
"""

import os
import signal
import sys
import time

BLOCK = 4096


def main(directory: str) -> None:
    """Read and write until ended; print one line a round."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a first process has no default for it
    blob = os.open(f"{directory}/blob", os.O_RDONLY)
    journal = os.open(f"{directory}/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    blocks = os.fstat(blob).st_size // BLOCK
    for number in range(sys.maxsize):
        block = number * 7 % blocks
        # Read from the filesystem, not from memory.
        os.posix_fadvise(blob, 0, 0, os.POSIX_FADV_DONTNEED)
        content = os.pread(blob, BLOCK, block * BLOCK)
        if content != b"%08d" % block * (BLOCK // 8):
            raise SystemExit(f"block {block} is wrong: {content[:32]!r}")
        os.write(journal, b"%d\n" % number)
        print(number, flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
