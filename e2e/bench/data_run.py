"""`python -m e2e.bench.data_run`: measure everything that serves a directory, in turns, and print the samples as JSON.

To be run in namespaces of its own (mounts, processes): nothing is left behind, however it ends. Mounts are fresh for every turn,
and every directory is looked at once in a turn: the kernel's caches are cold. Those of the source are warm.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.bench.data_cost import UntraceableError, count_calls, spent
from e2e.bench.data_subjects import NotServedError, Serve, Served, foreign, ours
from e2e.bench.rows import ROUNDS

OURS, TRIO, EXAMPLE, BINDFS = "ours", "trio", "example", "bindfs"
OURS_PLAIN, EXAMPLE_PLAIN = "ours, no xattrs", "example, no xattrs"
CALLS = "read calls"
NAMES = 10_000
_FILES = 1000
_FILE_BYTES = 64 << 20
_TRACED = 500
_FOUND = ("found1", "found2", "found3")
_LONG = ("long",)  # one, for the example keeps every file open that it has told of
_LISTED = (*_FOUND, *_LONG)
_LISTED_S = 60.0
_SETTLED_S = (
    0.3  # whatever a server does after it has begun to serve, like making its spares, is over by then
)
_CLIENTS = (1, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to measure. `seconds`: how long each rate is measured in one turn. No round is begun that would end after `limit_s`."""

    load: Path
    example: Path | None
    seconds: float
    rounds: int
    names: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Samples:
    """By subject: figures by name, one mapping a round; and why a subject has none."""

    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def measure_all(settings: Settings, work: Path) -> Samples:
    """Measure every subject in turns: A B C, B C A, …"""
    source = work / "source"
    make_source(source, settings.names)
    samples = Samples()
    subjects = list(_subjects(settings.example).items())
    began = time.monotonic()
    for number in range(settings.rounds):
        elapsed_s = time.monotonic() - began
        if number and elapsed_s / number * (number + 1) > settings.limit_s:
            break
        _warm(source)
        turn = number % len(subjects)
        for name, serve in subjects[turn:] + subjects[:turn]:
            if name in samples.absent:
                continue
            try:
                sample = _measure(name, serve, settings, work, source, traces=number == 0)
            except (NotServedError, subprocess.SubprocessError) as error:
                samples.absent[name] = str(error)
                samples.rounds.pop(name, None)
            else:
                samples.rounds.setdefault(name, []).append(sample)
    return samples


def make_source(source: Path, names: int) -> None:
    """Make what is served: one big file, and directories of many names."""
    source.mkdir()
    content = bytes(range(256)) * 4096
    with (source / "big").open("wb") as big:
        for _ in range(_FILE_BYTES // len(content)):
            big.write(content)
    for directory in _LISTED:
        (source / directory).mkdir()
        for number in range(names):
            (source / directory / f"name{number:06d}").touch()
    for directory in ("made", "seen"):
        (source / directory).mkdir()
    for number in range(_FILES):
        (source / "seen" / f"file{number:06d}").touch()


def _subjects(example: Path | None) -> Mapping[str, Serve]:
    """Return what is measured. The example as it is has no extended attributes; with `xattr` it does what ours does."""
    subjects: dict[str, Serve] = {OURS: ours(), TRIO: ours("trio")}
    if example is not None:
        subjects[EXAMPLE] = foreign(str(example), "-f", "-o", "source=SOURCE,xattr", "TARGET")
    subjects[BINDFS] = foreign("bindfs", "-f", "SOURCE", "TARGET")
    subjects[OURS_PLAIN] = ours(extendedAttributes=False)
    if example is not None:
        subjects[EXAMPLE_PLAIN] = foreign(str(example), "-f", "-o", "source=SOURCE", "TARGET")
    return subjects


def _measure(
    name: str, serve: Serve, settings: Settings, work: Path, source: Path, *, traces: bool
) -> dict[str, float]:
    place = Path(tempfile.mkdtemp(prefix="turn-", dir=work))
    try:
        with serve(place, source) as served:
            time.sleep(_SETTLED_S)
            sample = _list(served)
            if name in (OURS_PLAIN, EXAMPLE_PLAIN):
                return sample
            load = Load(settings.load, served)
            sample |= _content(load, served, settings.seconds)
            sample |= _names(load, served)
            return sample | (_calls(load, served, place) if traces else {})
    finally:
        shutil.rmtree(source / "made")
        (source / "made").mkdir()
        shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Load:
    """Runs the load on one mount, and tells what it costs."""

    program: Path
    served: Served

    def run(self, what: str, place: Path, seconds: float, last: int) -> tuple[int, float]:
        """Return operations and seconds."""
        argv = [str(self.program), what, str(place), f"{seconds:g}", str(last)]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=_LISTED_S + seconds, check=True)
        operations, elapsed = ended.stdout.split()
        return int(operations), float(elapsed)

    def figures(self, figure: str, what: str, place: Path, seconds: float, last: int) -> dict[str, float]:
        """Return the rate, and what an operation costs the server in µs."""
        before = spent(self.served.pid)
        operations, elapsed = self.run(what, place, seconds, last)
        cost = spent(self.served.pid) - before
        return {
            figure: operations / elapsed,
            f"{figure} user": cost.user_s / operations * 1e6,
            f"{figure} system": cost.system_s / operations * 1e6,
        }


def _content(load: Load, served: Served, seconds: float) -> dict[str, float]:
    big = served.path / "big"
    load.run("read", big, 0.1, 1)
    figures: dict[str, float] = {}
    for clients in _CLIENTS:
        figures |= load.figures(f"read x{clients}", "read", big, seconds, clients)
    for what in ("big-read", "big-write"):
        figures |= load.figures(what, what, big, seconds / 2, 1)
    return figures


def _names(load: Load, served: Served) -> dict[str, float]:
    """Make files, look at others for the first time in this mount, and remove those that were made."""
    places = {"create": "made", "stat": "seen", "unlink": "made"}
    figures: dict[str, float] = {}
    for what, place in places.items():
        figures |= load.figures(what, what, served.path / place, 0, _FILES)
    return figures


def _list(served: Served) -> dict[str, float]:
    """List directories that nobody has looked at in this mount: of short listings the best of three."""
    figures = {}
    for figure, command, directories in (("find", ("find",), _FOUND), ("ls -l", ("ls", "-l"), _LONG)):
        times_ms = []
        for directory in directories:
            began = time.perf_counter()
            _quietly((*command, str(served.path / directory)))
            times_ms.append((time.perf_counter() - began) * 1e3)
        figures[figure] = min(times_ms)
    return figures


def _calls(load: Load, served: Served, scratch: Path) -> dict[str, float]:
    def read() -> None:
        load.run("read-count", served.path / "big", 0, _TRACED)

    try:
        return {CALLS: count_calls(served.pid, read, scratch) / _TRACED}
    except UntraceableError:
        return {}


def _warm(source: Path) -> None:
    """Have the source in the machine's caches, whoever is to serve it next."""
    for directory in (*_LISTED, "seen"):
        _quietly(("ls", "-l", str(source / directory)))
    with (source / "big").open("rb") as big:
        while big.read(1 << 20):
            pass


def _quietly(command: Sequence[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=_LISTED_S, check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the samples."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.data_run", description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--load", type=Path, required=True)
    parser.add_argument("--example", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--names", type=int, default=NAMES)
    parser.add_argument("--limit-seconds", type=float, default=200.0)
    given = parser.parse_args(argv)
    settings = Settings(
        load=given.load,
        example=given.example,
        seconds=given.seconds,
        rounds=given.rounds,
        names=given.names,
        limit_s=given.limit_seconds,
    )
    samples = measure_all(settings, given.work)
    json.dump({"rounds": samples.rounds, "absent": samples.absent}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
