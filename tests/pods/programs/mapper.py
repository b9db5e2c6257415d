"""Maps a file and checks every byte: what it writes through the mapping, what it reads through it and through the descriptor.

Arguments: the file, to be made. It ends with 1 at the first byte that is wrong, with 0 after SIGTERM, and tells its rounds.
"""

import mmap
import os
import signal
import sys

SIZE = 1 << 18


def main() -> None:
    """Map, write and compare until SIGTERM."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
    os.truncate(descriptor, SIZE)
    mapped = mmap.mmap(descriptor, SIZE)
    with open("/dev/termination-log", "w") as ready:
        ready.write("up")
    rounds = 0
    while not ended:
        rounds += 1
        pattern = rounds.to_bytes(8, "big") * (SIZE // 8)
        mapped[:] = pattern
        mapped.flush()
        mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if mapped[:] != pattern or os.pread(descriptor, SIZE, 0) != pattern:
            raise SystemExit(f"wrong bytes in round {rounds}")
    print(rounds, flush=True)


if __name__ == "__main__":
    main()
