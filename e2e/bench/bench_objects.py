"""Object stores: reads, listings and writes through our daemon against s3fs, rclone, JuiceFS, SeaweedFS' client and gcsfuse, and against no filesystem.

Makes the picture in docs/objects.svg of what it has measured.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.bench.objects_chart import Panel, render_chart
from e2e.bench.objects_direct import NAME as DIRECT
from e2e.bench.objects_run import MEMORY
from e2e.bench.objects_subjects import OURS
from e2e.bench.rows import ROUNDS, Goal, Row
from e2e.cluster.errors import ClusterFault
from e2e.cluster.go_tools import GoModule, go_programs
from e2e.cluster.progress import Progress

_ROOT = Path(__file__).parents[2]
_BUILD = _ROOT / "build" / "bench"
_CHART = _ROOT / "docs" / "objects.svg"
_GCSFUSE = GoModule("gcsfuse", "gcsfuse", "-s -w", "4 minutes", root=_ROOT / "e2e" / "clients")
_LIMIT_S = 3600.0
_READ = Goal(at_least=1.5)
_READ_TIME = Goal(at_most=round(1 / 1.5, 3))
_LISTING = Goal(at_most=1.0)
_COST = Goal(at_most=1.0)

Rounds = Mapping[str, Sequence[Mapping[str, float]]]
"""Figures by name, a mapping a round, by subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A row to be. Judged against the best peer, or against no filesystem where `direct`."""

    name: str
    what: str
    unit: str
    more_is_better: bool = False
    goal: Goal | None = None
    direct: bool = False


_RATE: dict[str, Any] = {"more_is_better": True, "goal": _READ}
_LISTED = {"ls": "ls", "long": "ls -l", "find": "find"}
FIGURES = (
    Figure(name="sequential", what="1 GiB in order, cold", unit="MB/s", **_RATE),
    Figure(name="sequential again", what="1 GiB in order, again", unit="MB/s", **_RATE),
    Figure(name="sequential cpu", what="processor time of a GiB read", unit="s", goal=_COST),
    Figure(name="several", what="16 files of 64 MiB at once", unit="MB/s", **_RATE),
    Figure(name="random 4k", what="4 KiB at random", unit="/s", **_RATE),
    Figure(name="random 1m", what="1 MiB at random", unit="MB/s", **_RATE),
    Figure(name="small", what="1,000 files of 16 KiB, cold", unit="s", goal=_READ_TIME),
    Figure(name="small again", what="1,000 files of 16 KiB, again, 8 at once", unit="s", goal=_READ_TIME),
    *(
        Figure(name=f"{what} {count}", what=f"{command}, {count:,} names, cold", unit="ms", goal=_LISTING)
        for count in (10_000, 100_000)
        for what, command in _LISTED.items()
    ),
    Figure(name="write", what="1 GiB written, until it has arrived", unit="MB/s", more_is_better=True, goal=Goal(at_least=0.95), direct=True),
    Figure(name="write cpu", what="processor time of a GiB written", unit="s", goal=_COST),
    Figure(name="read back", what="1 GiB read from a mount that has not seen it", unit="MB/s", **_RATE),
    Figure(name=MEMORY, what="most memory of the serving process", unit="MiB"),
)  # fmt: skip


def rows() -> Iterator[Row]:
    """Measure, and make the picture."""
    grounds = measure(ROUNDS)
    for ground, found in grounds.items():
        yield Row(what=ground, note=_spread(found["rounds"]))
        for subject, reason in found["absent"].items():
            yield Row(what=f"without {subject}", note=reason)
        yield from render_rows(found["rounds"], found["absent"])
    panels = [panel for found in grounds.values() for panel in render_panels(found["rounds"])]
    _CHART.write_text(render_chart(f"Medians of {ROUNDS} rounds, taken in turns", OURS, panels))


def measure(rounds: int, *arguments: str) -> dict[str, Any]:
    """Return what `objects_run` prints. Raises RuntimeError if nothing can be measured here."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise RuntimeError("needs root and /dev/fuse")
    _BUILD.mkdir(parents=True, exist_ok=True)
    given = ["--rounds", str(rounds), *arguments]
    with suppress(ClusterFault):  # then without it
        programs = go_programs(_BUILD.parent / "servers", Progress("bench"), (_GCSFUSE,))
        given += ["--gcsfuse", str(programs["gcsfuse"])]
    work = Path(tempfile.mkdtemp(prefix="objects-", dir=_BUILD))
    try:
        return _run_apart([str(work), *given])
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_apart(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure in namespaces of its own: whatever happens, no process and no mount is left. Progress goes to standard error."""
    apart = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]  # fmt: skip
    argv = [*apart, sys.executable, "-m", "e2e.bench.objects_run", *arguments]
    try:
        ended = subprocess.run(
            argv, cwd=_ROOT, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"not done after {_LIMIT_S:g} s") from error
    try:
        answer: dict[str, Any] = json.loads(ended.stdout)
    except ValueError as error:
        raise RuntimeError(f"it has ended with {ended.returncode}") from error
    return answer


def render_rows(rounds: Rounds, absent: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for every figure that ours has here."""
    medians = _medians(rounds)
    for figure in FIGURES:
        found = {
            subject: figures[figure.name] for subject, figures in medians.items() if figure.name in figures
        }
        if OURS in absent:
            yield Row(what=figure.what, goal=figure.goal, fault=absent[OURS])
            return
        if OURS not in found:
            continue
        ours, direct = found.pop(OURS), found.get(DIRECT)
        peers = {subject: value for subject, value in found.items() if subject != DIRECT}
        best = (max if figure.more_is_better else min)(peers, key=peers.__getitem__, default="")
        against = DIRECT if figure.direct and direct is not None else best
        yield Row(
            what=figure.what,
            ours=ours,
            unit=figure.unit,
            against=against,
            theirs=found.get(against),
            goal=figure.goal if against else None,
            note=", ".join(
                f"{subject} {_short(value)}" for subject, value in found.items() if subject != against
            ),
        )


def render_panels(rounds: Rounds) -> Iterator[Panel]:
    """Yield a panel for every figure that ours has here."""
    medians = _medians(rounds)
    for figure in FIGURES:
        found = {
            subject: figures[figure.name] for subject, figures in medians.items() if figure.name in figures
        }
        if OURS in found:
            bars = {OURS: found.pop(OURS), **found}
            yield Panel(title=figure.what, unit=figure.unit, more_is_better=figure.more_is_better, bars=bars)


def _medians(rounds: Rounds) -> dict[str, dict[str, float]]:
    return {
        subject: {
            name: statistics.median(sample[name] for sample in samples if name in sample)
            for name in {name for sample in samples for name in sample}
        }
        for subject, samples in rounds.items()
    }


def _spread(rounds: Rounds) -> str:
    """Return how far ours is from its median in the worst of its figures."""
    worst, which = 0.0, ""
    medians = _medians(rounds).get(OURS, {})
    for name, median in medians.items():
        values = [sample[name] for sample in rounds[OURS] if name in sample]
        spread = (max(values) - min(values)) / median / 2 if median else 0.0
        if spread > worst:
            worst, which = spread, name
    return f"ours within ±{worst:.0%} ({which})" if which else ""


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
