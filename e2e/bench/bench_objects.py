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
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    Figure(name="write small", what="1,000 files of 16 KiB written, 8 at once", unit="s", goal=_COST),
    Figure(name="read back", what="1 GiB read from a mount that has not seen it", unit="MB/s", **_RATE),
    Figure(name="read back again", what="the same again", unit="MB/s", **_RATE),
    Figure(name="back several", what="16 stretches of 64 MiB of it at once, cold", unit="MB/s", **_RATE),
    Figure(name="back 4k", what="4 KiB of it at random", unit="/s", **_RATE),
    Figure(name="back 1m", what="1 MiB of it at random", unit="MB/s", **_RATE),
    Figure(name="back small", what="1,000 files of 16 KiB read back, cold", unit="s", goal=_READ_TIME),
    Figure(name="back small again", what="1,000 files of 16 KiB read back, again, 8 at once", unit="s", goal=_READ_TIME),
    Figure(name=MEMORY, what="most memory of the serving process", unit="MiB"),
)  # fmt: skip


def rows() -> Iterator[Row]:
    """Measure, and make the picture."""
    grounds = measure(ROUNDS)
    for ground, found in grounds.items():
        yield Row(what=ground)
        for subject, reason in found["absent"].items():
            yield Row(what=f"without {subject}" if subject not in found["rounds"] else subject, note=reason)
        yield from render_rows(found["rounds"], found["absent"], found["aside"])
    panels = [panel for found in grounds.values() for panel in render_panels(found["rounds"])]
    _CHART.write_text(
        render_chart(
            f"Medians of {ROUNDS} rounds, taken in turns; the lines reach from the least to the most",
            OURS,
            panels,
        )
    )


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


def render_rows(rounds: Rounds, absent: Mapping[str, str], aside: Collection[str] = ()) -> Iterator[Row]:
    """Yield a row for every figure that ours has here. Nobody is judged against those aside."""
    for figure in FIGURES:
        found = _values(rounds, figure.name)
        if OURS in absent:
            yield Row(what=figure.what, goal=figure.goal, fault=absent[OURS])
            return
        if OURS not in found:
            continue
        medians = {subject: statistics.median(values) for subject, values in found.items()}
        peers = [subject for subject in medians if subject not in (OURS, DIRECT) and subject not in aside]
        best = (max if figure.more_is_better else min)(peers, key=medians.__getitem__, default="")
        against = DIRECT if figure.direct and DIRECT in medians else best
        others = [subject for subject in found if subject not in (OURS, against)]
        yield Row(
            what=figure.what,
            ours=medians[OURS],
            unit=figure.unit,
            against=against,
            theirs=medians.get(against),
            goal=figure.goal if against else None,
            note="; ".join(
                [
                    " and ".join(f"±{_spread(found[one]):.0%}" for one in (OURS, against) if one),
                    *(f"{one} {_short(medians[one])} ±{_spread(found[one]):.0%}" for one in others),
                ]
            ),
        )


def render_panels(rounds: Rounds) -> Iterator[Panel]:
    """Yield a panel for every figure that ours has here."""
    for figure in FIGURES:
        found = _values(rounds, figure.name)
        if OURS not in found:
            continue
        ordered = {OURS: found.pop(OURS), **found}
        yield Panel(
            title=figure.what,
            unit=figure.unit,
            more_is_better=figure.more_is_better,
            bars={subject: statistics.median(values) for subject, values in ordered.items()},
            ranges={subject: (min(values), max(values)) for subject, values in ordered.items()},
        )


def _values(rounds: Rounds, name: str) -> dict[str, list[float]]:
    """Return a figure's values by subject, of those that have it."""
    found = {
        subject: [sample[name] for sample in samples if name in sample] for subject, samples in rounds.items()
    }
    return {subject: values for subject, values in found.items() if values}


def _spread(values: Sequence[float]) -> float:
    """Return how far values are from their median, both ways."""
    median = statistics.median(values)
    return (max(values) - min(values)) / median / 2 if median else 0.0


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
