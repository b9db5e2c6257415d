"""`python -m e2e.bench.quota_run`: measure writing on a volume with a limit and on a directory, in turns; print the samples as JSON.

To be run in a mount namespace of its own. Both are mounted all the time, over the same disk.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from e2e.bench.data_subjects import ours
from sidemount.host import budget

DIRECTORY, VOLUME = "directory", "volume"
APPENDS, OVERWRITES, REMOVALS = "appends", "overwrites", "removals"
_PAGE = b"x" * 4096
_PAGES = 1024


def main() -> int:
    """Measure for as many rounds as asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    given = parser.parse_args()
    samples: dict[str, list[dict[str, float]]] = {DIRECTORY: [], VOLUME: []}
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as until_done:
        places = {}
        for name in samples:
            work = Path(scratch, name)
            (work / "source" / "data").mkdir(parents=True)
            budget.create(str(work / "source"), 1 << 40)
            source = work / "source" if name == VOLUME else work / "source" / "data"
            places[name] = until_done.enter_context(ours(filesystem=name)(work, source)).path
        for number in range(given.rounds):
            for name in sorted(samples, reverse=bool(number % 2)):
                samples[name].append(_measure(places[name], given.seconds))
    json.dump(samples, sys.stdout)
    return 0


def _measure(place: Path, seconds: float) -> dict[str, float]:
    """Return rates a second."""
    path = place / "file"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    appends = _rate(lambda number: os.write(file, _PAGE), seconds)
    os.close(file)
    file = os.open(path, os.O_RDWR)
    os.ftruncate(file, _PAGES * len(_PAGE))
    overwrites = _rate(lambda number: os.pwrite(file, _PAGE, number % _PAGES * len(_PAGE)), seconds)
    os.close(file)
    path.unlink()
    return {APPENDS: appends, OVERWRITES: overwrites, REMOVALS: _removals(place, seconds)}


def _removals(place: Path, seconds: float) -> float:
    """Return how many small files a second are removed."""
    spent, count = 0.0, 0
    while spent < seconds / 2:
        for number in range(50):
            (place / str(number)).write_bytes(b"x")
        began = time.perf_counter()
        for number in range(50):
            os.unlink(place / str(number))
        spent += time.perf_counter() - began
        count += 50
    return count / spent


def _rate(operation: Callable[[int], object], seconds: float) -> float:
    began = time.perf_counter()
    number = 0
    while (spent := time.perf_counter() - began) < seconds:
        for _ in range(50):
            operation(number)
            number += 1
    return number / spent


if __name__ == "__main__":
    sys.exit(main())
