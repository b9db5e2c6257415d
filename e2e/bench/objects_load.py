"""`python -m e2e.bench.objects_load WHAT …`: what an application does on a mount, and its figure as JSON. Knows nothing of what serves."""

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_PIECE = 1 << 20
_SMALL_BYTES, _WRITERS = 16 << 10, 8


def sequential(place: Path, _: int, __: float) -> float:
    """Read a file from its beginning to its end, in pieces of 1 MiB. Return MB/s."""
    began = time.perf_counter()
    read = _read_whole(place)
    return read / (time.perf_counter() - began) / 1e6


def parallel(place: Path, threads: int, _: float) -> float:
    """Read every file of a directory, several at once. Return MB/s."""
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        read = sum(pool.map(_read_whole, sorted(place.iterdir())))
    return read / (time.perf_counter() - began) / 1e6


def stretches(place: Path, threads: int, _: float) -> float:
    """Read a file from as many places on as there are threads, each to where the next one began. Return MB/s."""
    length = place.stat().st_size // threads
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        read = sum(pool.map(lambda number: _read_stretch(place, number * length, length), range(threads)))
    return read / (time.perf_counter() - began) / 1e6


def small(place: Path, threads: int, _: float) -> float:
    """Read every file of a directory whole. Return seconds."""
    began = time.perf_counter()
    names = sorted(place.iterdir())
    if threads == 1:
        read = sum(map(_read_whole, names))
    else:
        with ThreadPoolExecutor(threads) as pool:
            read = sum(pool.map(_read_whole, names))
    if not read:
        raise ValueError(f"{place} has nothing to read")
    return time.perf_counter() - began


def at_random(place: Path, size: int, seconds: float) -> float:
    """Read pieces of a size at random places of a file for a while. Return how many a second."""
    file = os.open(place, os.O_RDONLY)
    places = os.fstat(file).st_size // size
    buffer = bytearray(size)
    chosen = random.Random(7)
    done = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        if os.preadv(file, [buffer], chosen.randrange(places) * size) != size:
            raise ValueError(f"{place}: a short read")
        done += 1
    elapsed = time.perf_counter() - began
    os.close(file)
    return done / elapsed


def write(place: Path, size: int, _: float) -> float:
    """Write a new file in pieces of 1 MiB and close it. Return seconds."""
    piece = random.Random(7).randbytes(_PIECE)
    began = time.perf_counter()
    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    for _number in range(size // _PIECE):
        view = memoryview(piece)
        while view:
            view = view[os.write(file, view) :]
    os.close(file)
    return time.perf_counter() - began


def write_small(place: Path, files: int, _: float) -> float:
    """Write as many new files of 16 KiB into a new directory, eight at once. Return seconds."""
    place.mkdir()
    content = random.Random(7).randbytes(_SMALL_BYTES)
    began = time.perf_counter()
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(lambda number: (place / f"{number:05d}").write_bytes(content), range(files)))
    return time.perf_counter() - began


_BUFFERS = threading.local()


def _read_stretch(path: Path, offset: int, length: int) -> int:
    buffer = bytearray(_PIECE)
    file = os.open(path, os.O_RDONLY)
    try:
        read = 0
        while read < length:
            got = os.preadv(file, [memoryview(buffer)[: min(_PIECE, length - read)]], offset + read)
            if not got:
                raise ValueError(f"{path}: a short read")
            read += got
        return read
    finally:
        os.close(file)


def _read_whole(path: Path) -> int:
    buffer = _BUFFERS.__dict__.setdefault("buffer", bytearray(_PIECE))
    file = os.open(path, os.O_RDONLY)
    try:
        read = 0
        while got := os.readv(file, [buffer]):
            read += got
        return read
    finally:
        os.close(file)


WORK: dict[str, Callable[[Path, int, float], float]] = {
    "sequential": sequential,
    "parallel": parallel,
    "small": small,
    "random": at_random,
    "stretches": stretches,
    "write": write,
    "write-small": write_small,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figure."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.objects_load", description=__doc__)
    parser.add_argument("what", choices=sorted(WORK))
    parser.add_argument("place", type=Path)
    parser.add_argument("--number", type=int, default=1, help="threads, or bytes")
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args(argv)
    json.dump(WORK[given.what](given.place, given.number, given.seconds), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
