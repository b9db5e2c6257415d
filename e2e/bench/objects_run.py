"""`python -m e2e.bench.objects_run`: measure everything that serves a bucket, in turns, and print the samples as JSON.

To be run in namespaces of its own (mounts, processes): nothing is left behind, however it ends. A mount is fresh for every turn, so what
is read first is cold in the client; the server's files are in the machine's memory for everybody.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from e2e.bench import objects_grounds as grounds
from e2e.bench.data_cost import spent
from e2e.bench.data_subjects import NotServedError, Served
from e2e.bench.objects_direct import NAME as DIRECT
from e2e.bench.objects_direct import Direct
from e2e.bench.objects_grounds import (
    AT_RANDOM,
    BIG,
    LISTS,
    READS,
    SEVERAL,
    SMALL,
    WRITES,
    Ground,
    Sizes,
    directory_of,
)
from e2e.bench.rows import ROUNDS
from e2e.cluster.errors import ClusterFault
from e2e.servers.process import ServerFault

_ROOT = Path(__file__).parents[2]
_STEP_S = 240.0
_GIB = 1 << 30
_PYTHON_S = 0.15  # what a load needs to begin and to end; nobody's time
MEMORY = "memory"
_SLOW_MS = 20_000.0  # what takes as long is measured once

Samples = dict[str, list[dict[str, float]]]
Open = Callable[[], AbstractContextManager[Ground]]


class Progress:
    """Says on standard error what is being measured, and since when."""

    def __init__(self, rounds: int) -> None:
        self._began = time.monotonic()
        self._rounds = rounds

    def tell(self, ground: str, subject: str, number: int) -> None:
        """Say that a subject's turn has come to its end."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(
            f"{minutes:02d}:{seconds:02d} {ground}: round {number + 1} of {self._rounds}: {subject}",
            file=sys.stderr,
            flush=True,
        )


class Measuring:
    """The figures of one ground: of each subject, a mapping a round; and why a subject has none."""

    def __init__(self, work: Path, sizes: Sizes, kinds: Sequence[str], progress: Progress) -> None:
        self._work = work
        self._sizes = sizes
        self._kinds = kinds
        self._progress = progress
        self.name = ""
        self.samples: Samples = {}
        self.absent: dict[str, str] = {}
        self.aside: frozenset[str] = frozenset()

    def take_turns(self, ground: Ground, number: int) -> None:
        """Measure every subject once: A B C in one round, B C A in the next, …"""
        self.name, self.aside = ground.name, ground.aside
        for subject, reason in ground.without.items():
            self.absent.setdefault(subject, reason)
        kinds = ground.kinds.intersection(self._kinds)
        order = list(ground.subjects)
        turn = number % len(order)
        if ground.direct is not None:
            figures = _directly(ground, ground.direct, self._sizes, kinds)
            self.samples.setdefault(DIRECT, []).append(figures)
        for name in order[turn:] + order[:turn]:
            if name in self.absent and name not in ground.aside:
                continue
            before = self.samples.get(name, [])
            try:
                sample = _measure(ground, name, self._work, self._sizes, kinds, before)
            except (NotServedError, subprocess.SubprocessError, OSError) as error:
                self.absent[name] = _reason(error)
                self.samples.pop(name, None)
            else:
                self.samples.setdefault(name, []).append(sample)
            self._progress.tell(ground.name, name, number)


def _measure(
    ground: Ground,
    name: str,
    work: Path,
    sizes: Sizes,
    kinds: Collection[str],
    before: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    figures: dict[str, float] = {}
    memory: list[float] = []
    if LISTS in kinds:
        figures |= _listings(ground, name, work, before, memory)
    if READS in kinds:
        with _mounted(ground, name, work) as served:
            figures |= _reads(served)
            memory.append(_peak_mib(served.pid))
    if WRITES in kinds:
        with _mounted(ground, name, work) as served:
            direct = None if name in ground.apart else ground.direct
            figures |= _writes(served, direct, sizes, _written(served, name))
            memory.append(_peak_mib(served.pid))
        figures |= _reads_back(ground, name, work, sizes)
    return {**figures, MEMORY: max(memory)}


@contextlib.contextmanager
def _mounted(ground: Ground, name: str, work: Path) -> Iterator[Served]:
    place = Path(tempfile.mkdtemp(prefix="turn-", dir=work))
    try:
        with ground.subjects[name](place, place) as served:
            yield served
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _directly(ground: Ground, direct: Direct, sizes: Sizes, kinds: Collection[str]) -> dict[str, float]:
    figures: dict[str, float] = {}
    if WRITES in kinds:
        figures["write"] = direct.write("direct", sizes.big)
        direct.remove("direct")
    if LISTS in kinds:
        figures |= {f"ls {count}": direct.listing(f"{directory_of(count)}/") for count in ground.names}
    if READS in kinds:
        figures["sequential"] = direct.sequential(BIG)
        figures["random 4k"] = direct.at_random(AT_RANDOM, 4 << 10)
        figures["random 1m"] = direct.at_random(AT_RANDOM, 1 << 20) * (1 << 20) / 1e6
    return figures


def _reads(served: Served) -> dict[str, float]:
    path = served.path
    before = spent(served.pid)
    figures = {"sequential": _load("sequential", path / BIG)}
    cost = spent(served.pid) - before
    gib = (path / BIG).stat().st_size / _GIB
    figures["sequential cpu"] = (cost.user_s + cost.system_s) / gib
    figures["sequential again"] = _load("sequential", path / BIG)
    figures["several"] = _load("parallel", path / SEVERAL, 16)
    figures["small"] = _load("small", path / SMALL)
    figures["small again"] = _load("small", path / SMALL, 8)
    figures["random 4k"] = _load("random", path / AT_RANDOM, 4 << 10)
    figures["random 1m"] = _load("random", path / AT_RANDOM, 1 << 20) * (1 << 20) / 1e6
    return figures


def _listings(
    ground: Ground, name: str, work: Path, before: Sequence[Mapping[str, float]], memory: list[float]
) -> dict[str, float]:
    """List every directory with every command, each on a mount of its own."""
    commands = {"ls": ("ls", "-f"), "long": ("ls", "-l"), "find": ("find",)}
    figures: dict[str, float] = {}
    for count in ground.names:
        for what, command in commands.items():
            figure = f"{what} {count}"
            if any(sample.get(figure, 0.0) > _SLOW_MS for sample in before):
                continue
            with _mounted(ground, name, work) as served:
                figures[figure] = _timed((*command, str(served.path / directory_of(count))), count)
                memory.append(_peak_mib(served.pid))
    return figures


def _reads_back(ground: Ground, name: str, work: Path, sizes: Sizes) -> dict[str, float]:
    """Read what was written, on mounts that have not seen it."""
    with _mounted(ground, name, work) as served:
        written, small = _written(served, name)
        figures = {"read back": _load("sequential", written)}
        figures["read back again"] = _load("sequential", written)
        figures["back 4k"] = _load("random", written, 4 << 10)
        figures["back 1m"] = _load("random", written, 1 << 20) * (1 << 20) / 1e6
        figures["back small"] = _load("small", small)
        figures["back small again"] = _load("small", small, 8)
    with _mounted(ground, name, work) as served:
        figures["back several"] = _load("stretches", _written(served, name)[0], sizes.several)
    return figures


def _written(served: Served, name: str) -> tuple[Path, Path]:
    """Return where a subject writes its large file, and its small ones. The server is another one in each round."""
    slug = name.replace(" ", "-")
    return served.path / f"written-{slug}", served.path / f"small-{slug}"


def _writes(
    served: Served, direct: Direct | None, sizes: Sizes, places: tuple[Path, Path]
) -> dict[str, float]:
    """Write a file; it is written when the store has it."""
    target, small = places
    before = spent(served.pid)
    began = time.perf_counter()
    closed_s = _load("write", target, sizes.big)
    if direct is not None:
        direct.wait_for(target.name, sizes.big)
    seconds = max(closed_s, time.perf_counter() - began - _PYTHON_S)
    cost = spent(served.pid) - before
    return {
        "write": sizes.big / seconds / 1e6,
        "write cpu": (cost.user_s + cost.system_s) / (sizes.big / _GIB),
        "write small": _load("write-small", small, sizes.small),
    }


def _load(what: str, place: Path, number: int = 1) -> float:
    argv = [sys.executable, "-m", "e2e.bench.objects_load", what, str(place), "--number", str(number)]
    ended = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, timeout=_STEP_S, check=True)
    return float(json.loads(ended.stdout))


def _timed(command: Sequence[str], names: int) -> float:
    """Return how many milliseconds a command takes that prints so many names, or a few more."""
    began = time.perf_counter()
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, timeout=_STEP_S, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    elapsed = time.perf_counter() - began
    if ended.stdout.count(b"\n") < names:
        raise OSError(f"{command[0]} has not found all {names} names")
    return elapsed * 1e3


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise NotServedError("it has ended")


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        return str(error.stderr).strip().splitlines()[-1][:300]
    return str(error)[:300]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the samples, by ground."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.objects_run", description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--big", type=int, default=Sizes.big, help="bytes of the big file")
    parser.add_argument("--names", type=int, nargs="+", default=list(Sizes.names))
    parser.add_argument("--kinds", nargs="+", choices=(READS, LISTS, WRITES), default=[READS, LISTS, WRITES])
    parser.add_argument("--gcsfuse", type=Path)
    given = parser.parse_args(argv)
    sizes = Sizes(big=given.big, several_bytes=given.big // 16, names=tuple(given.names))
    progress, found = Progress(given.rounds), {}
    for opens, is_made_anew in _plans(given.work, sizes, given.kinds, given.gcsfuse):
        measuring = Measuring(given.work, sizes, given.kinds, progress)
        try:
            if is_made_anew:
                for number in range(given.rounds):
                    with opens() as ground:
                        measuring.take_turns(ground, number)
            else:
                with opens() as ground:
                    for number in range(given.rounds):
                        measuring.take_turns(ground, number)
        except (ServerFault, ClusterFault) as fault:
            print(f"left out: {fault}", file=sys.stderr)
        if measuring.name:
            found[measuring.name] = {
                "rounds": measuring.samples,
                "absent": measuring.absent,
                "aside": sorted(measuring.aside),
            }
    json.dump(found, sys.stdout)
    return 0


def _plans(
    work: Path, sizes: Sizes, kinds: Collection[str], gcsfuse: Path | None
) -> Iterator[tuple[Open, bool]]:
    """Yield what opens each ground, and whether it is to be made anew for each round: a server whose disk would fill up."""
    if READS in kinds:
        yield (lambda: grounds.reading(work, sizes)), False
    if LISTS in kinds:
        yield (lambda: grounds.listing(work, sizes)), False
    if gcsfuse is not None and {READS, LISTS}.intersection(kinds):
        yield (lambda: grounds.google(work, sizes, gcsfuse)), False
    if WRITES in kinds:
        yield (lambda: grounds.writing(work)), True


if __name__ == "__main__":
    sys.exit(main())
