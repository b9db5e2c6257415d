"""Holds a volume in every way there is, and waits. Arguments: the volume's directory, a file in it, "ignore" or "obey" SIGTERM.

It has the file open, mapped, and half read; a new file written and not synced; the volume as its working directory.
"""

import mmap
import os
import signal
import sys
import time


def main() -> None:
    """Hold until killed, or until SIGTERM if told to obey."""
    directory, name, manner = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.SIG_IGN if manner == "ignore" else lambda number, frame: os._exit(0))
    os.chdir(directory)
    reading = os.open(name, os.O_RDONLY)
    os.read(reading, 1)
    mapped = mmap.mmap(reading, 0, prot=mmap.PROT_READ)
    listing = os.scandir(".")
    next(listing)
    writing = os.open("inbox/unsynced", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(writing, b"x" * 100_000)
    with open("/dev/termination-log", "w") as ready:
        ready.write("up")
    while True:
        time.sleep(3600)
        mapped[0]


if __name__ == "__main__":
    main()
