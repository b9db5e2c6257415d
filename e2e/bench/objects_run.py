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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from e2e.bench import objects_grounds as grounds
from e2e.bench.data_cost import spent
from e2e.bench.data_subjects import NotServedError, Served
from e2e.bench.objects_direct import NAME as DIRECT
from e2e.bench.objects_direct import Direct
from e2e.bench.objects_grounds import AT_RANDOM, BIG, LISTED, SEVERAL, SMALL, Ground, Sizes
from e2e.bench.rows import ROUNDS
from e2e.cluster.errors import ClusterFault
from e2e.servers.process import ServerFault

_ROOT = Path(__file__).parents[2]
_STEP_S = 240.0
_GIB = 1 << 30
_PYTHON_S = 0.15  # what a load needs to begin and to end; nobody's time
READS, LISTS, WRITES = "reads", "lists", "writes"
MEMORY = "memory"

Samples = dict[str, list[dict[str, float]]]


def measure(
    ground: Ground, work: Path, sizes: Sizes, rounds: int, kinds: Sequence[str]
) -> tuple[Samples, dict[str, str]]:
    """Measure every subject in turns: A B C, B C A, … Return the figures of each, and why a subject has none."""
    samples: Samples = {}
    absent: dict[str, str] = {}
    order = list(ground.subjects)
    for number in range(rounds):
        turn = number % len(order)
        if ground.direct is not None:
            samples.setdefault(DIRECT, []).append(_directly(ground, ground.direct, sizes, kinds))
        for name in order[turn:] + order[:turn]:
            if name in absent:
                continue
            try:
                sample = _measure(ground, name, work, sizes, kinds)
            except (NotServedError, subprocess.SubprocessError, OSError) as error:
                absent[name] = _reason(error)
                samples.pop(name, None)
            else:
                samples.setdefault(name, []).append(sample)
                print(f"{ground.name}: {name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return samples, absent


def _measure(ground: Ground, name: str, work: Path, sizes: Sizes, kinds: Sequence[str]) -> dict[str, float]:
    figures: dict[str, float] = {}
    with _mounted(ground, name, work) as served:
        if ground.writes:
            direct = None if name in ground.apart else ground.direct
            figures |= _writes(served, direct, sizes)
        else:
            figures |= _listings(served.path, sizes) if LISTS in kinds else {}
            figures |= _reads(served) if READS in kinds else {}
        figures[MEMORY] = _peak_mib(served.pid)
    if ground.writes:
        with _mounted(ground, name, work) as served:
            (written,) = served.path.glob("written-*")
            figures["read back"] = _load("sequential", written)
            written.unlink()
    return figures


@contextlib.contextmanager
def _mounted(ground: Ground, name: str, work: Path) -> Iterator[Served]:
    place = Path(tempfile.mkdtemp(prefix="turn-", dir=work))
    try:
        with ground.subjects[name](place, place) as served:
            yield served
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _directly(ground: Ground, direct: Direct, sizes: Sizes, kinds: Sequence[str]) -> dict[str, float]:
    if ground.writes:
        figures = {"write": direct.write("direct", sizes.big)}
        direct.remove("direct")
        return figures
    if READS not in kinds:
        return {}
    return {
        "sequential": direct.sequential(BIG),
        "random 4k": direct.at_random(AT_RANDOM, 4 << 10),
        "random 1m": direct.at_random(AT_RANDOM, 1 << 20) * (1 << 20) / 1e6,
    }


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


def _listings(path: Path, sizes: Sizes) -> dict[str, float]:
    commands = {"ls": ("ls", "-f"), "long": ("ls", "-l"), "find": ("find",)}
    return {
        f"{what} {count}": _timed((*command, str(path / f"{LISTED}-{what}-{count}")))
        for count in sizes.names
        for what, command in commands.items()
    }


def _writes(served: Served, direct: Direct | None, sizes: Sizes) -> dict[str, float]:
    """Write a file; it is written when the store has it."""
    target = served.path / f"written-{time.time_ns()}"
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
    }


def _load(what: str, place: Path, number: int = 1) -> float:
    argv = [sys.executable, "-m", "e2e.bench.objects_load", what, str(place), "--number", str(number)]
    ended = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, timeout=_STEP_S, check=True)
    return float(json.loads(ended.stdout))


def _timed(command: Sequence[str]) -> float:
    """Return how many milliseconds a command takes."""
    began = time.perf_counter()
    subprocess.run(
        command, stdout=subprocess.DEVNULL, timeout=_STEP_S, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    return (time.perf_counter() - began) * 1e3


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
    plans: list[Callable[[], AbstractContextManager[Ground]]] = []
    if {READS, LISTS} & set(given.kinds):
        plans.append(lambda: grounds.reading(given.work, sizes))
        if given.gcsfuse is not None:
            plans.append(lambda: grounds.google(given.work, sizes, given.gcsfuse))
    if WRITES in given.kinds:
        plans.append(lambda: grounds.writing(given.work))
    found = {}
    for plan in plans:
        with contextlib.ExitStack() as stack:
            try:
                ground = stack.enter_context(plan())
            except (ServerFault, ClusterFault) as fault:
                print(f"left out: {fault}", file=sys.stderr)
                continue
            samples, absent = measure(ground, given.work, sizes, given.rounds, given.kinds)
            found[ground.name] = {"rounds": samples, "absent": absent}
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
