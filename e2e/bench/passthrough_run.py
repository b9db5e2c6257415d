"""`python -m e2e.bench.passthrough_run`: read a large file through our read-only volume and through libfuse's example, in turns.

To be run in namespaces of its own, as `e2e.bench.data_run`. Every page is read once, in any order: none is in the mount's cache, and all are in the
source's. Prints reads per second of each, round by round, as JSON.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from e2e.bench.data_subjects import Serve, Served, foreign, serve_spec
from e2e.bench.rows import ROUNDS
from sidemount.model.mountspec import MountSpec

OURS, EXAMPLE = "ours", "example"
CLIENTS = 4
_PAGE = 4096
_PAGES_OF_CLIENT = 16384
_SETTLED_S = 0.3


def measure_all(example: Path, work: Path, rounds: int) -> dict[str, list[float]]:
    """Return reads per second of each, by round."""
    source = work / "source"
    source.mkdir()
    make_file(source / "big")
    subjects: list[tuple[str, Serve]] = [
        (OURS, _ours),
        (EXAMPLE, foreign(str(example), "-f", "-o", "source=SOURCE,xattr", "TARGET")),
    ]
    found: dict[str, list[float]] = {OURS: [], EXAMPLE: []}
    for number in range(rounds):
        for name, serve in subjects if number % 2 else reversed(subjects):
            place = Path(tempfile.mkdtemp(prefix="turn-", dir=work))
            with serve(place, source) as served:
                time.sleep(_SETTLED_S)
                found[name].append(reads_per_second(served.path / "big"))
    return found


def _ours(work: Path, source: Path) -> AbstractContextManager[Served]:
    spec = MountSpec(
        volume="bench",
        driver_class="directory",
        source=f"dir://{source}",
        filesystem="directory",
        read_only=True,
        takeover=True,
        uid=0,
    )
    return serve_spec(spec, work, ["--source", str(source)])


def make_file(path: Path) -> None:
    """Make what is read, and leave it in the source's cache."""
    content = bytes(range(256)) * 4096
    with path.open("wb") as file:
        for _ in range(CLIENTS * _PAGES_OF_CLIENT * _PAGE // len(content)):
            file.write(content)
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass


def reads_per_second(path: Path) -> float:
    """Have clients read at the same time, each its own part, and return what all do in a second."""
    go_reader, go = os.pipe()
    clients = [_fork_client(path, number, go_reader) for number in range(CLIENTS)]
    os.close(go_reader)
    for reader, _ in clients:
        os.read(reader, 1)  # it has opened the file
    began = time.perf_counter()
    os.close(go)
    for reader, pid in clients:
        _, status = os.waitpid(pid, 0)
        os.close(reader)
        if status:
            raise RuntimeError(f"a client ended with {status}")
    return CLIENTS * _PAGES_OF_CLIENT / (time.perf_counter() - began)


def _fork_client(path: Path, number: int, go: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    code = 1
    try:
        for descriptor in range(3, 256):
            if descriptor not in (go, writer):
                try:
                    os.close(descriptor)
                except OSError:
                    continue
        _read_all(path, number, go, writer)
        code = 0
    finally:
        os._exit(code)


def _read_all(path: Path, number: int, go: int, ready: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    pages = list(range(number * _PAGES_OF_CLIENT, (number + 1) * _PAGES_OF_CLIENT))
    random.Random(number).shuffle(pages)
    buffers = [bytearray(_PAGE)]
    os.write(ready, b".")
    os.read(go, 1)
    for page in pages:
        if os.preadv(descriptor, buffers, page * _PAGE) != _PAGE:
            raise RuntimeError("a short read")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.passthrough_run", description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--example", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(argv)
    json.dump(measure_all(given.example, given.work, given.rounds), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
