"""The data path: reads, writes, names and listings through our daemon against libfuse's own example, bindfs, and pyfuse3 on trio."""

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

from e2e.bench.data_programs import EXAMPLE as EXAMPLE_NAME
from e2e.bench.data_programs import UnavailableError, build_example, build_load
from e2e.bench.data_run import (
    BINDFS,
    CALLS,
    EXAMPLE,
    EXAMPLE_PLAIN,
    NAMES,
    OURS,
    OURS_PLAIN,
    TRIO,
)
from e2e.bench.rows import ROUNDS, Goal, Row

SECONDS = 0.5
_BUILD = Path(__file__).parents[2] / "build" / "bench"
_LIMIT_S = 600.0  # a machine that is too busy has fewer rounds, by far before this
_NEEDED = ("unshare", "setpriv", "find", "ls")

Rounds = Mapping[str, Sequence[Mapping[str, float]]]
"""Figures by name, a mapping a round, by subject."""
Medians = Mapping[str, Mapping[str, float]]
"""The median of each figure, by subject and figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row to be: a figure of ours and of a peer's, and what others have."""

    what: str
    name: str
    unit: str
    goal: Goal | None = None
    ours: str = OURS
    peer: str = EXAMPLE
    others: tuple[str, ...] = (TRIO, BINDFS)


_LABELS = {
    EXAMPLE: f"{EXAMPLE_NAME} (C)",
    EXAMPLE_PLAIN: f"{EXAMPLE_NAME} (C)",
    BINDFS: "bindfs",
    TRIO: "trio",
    OURS: "ours",
    OURS_PLAIN: "ours",
}
_USER_US = Goal(at_most=6, of_ours=True)
_FIGURES = (
    Figure(what="4 KiB random reads, 1 client", name="read x1", unit="/s"),
    Figure(what="4 KiB random reads, 4 clients", name="read x4", unit="/s", goal=Goal(at_least=1.3)),
    Figure(what="user time of a 4 KiB read, 1 client", name="read x1 user", unit="µs", goal=_USER_US),
    Figure(what="user time of a 4 KiB read, 4 clients", name="read x4 user", unit="µs", goal=_USER_US),
    Figure(what="system time of a 4 KiB read, 1 client", name="read x1 system", unit="µs"),
    Figure(what="system time of a 4 KiB read, 4 clients", name="read x4 system", unit="µs"),
    Figure(what="system calls of a 4 KiB read", name=CALLS, unit=""),
    Figure(what="1 MiB reads", name="big-read", unit="MiB/s"),
    Figure(what="1 MiB writes", name="big-write", unit="MiB/s"),
    Figure(what="create and close", name="create", unit="/s"),
    Figure(what="user time of a create", name="create user", unit="µs"),
    Figure(what="first stat of a file", name="stat", unit="/s"),
    Figure(what="user time of a stat", name="stat user", unit="µs"),
    Figure(what="unlink", name="unlink", unit="/s"),
    Figure(what="user time of an unlink", name="unlink user", unit="µs"),
    Figure(what=f"find, {NAMES:,} files", name="find", unit="ms", goal=Goal(at_most=2)),
    Figure(what=f"ls -l, {NAMES:,} files", name="ls -l", unit="ms", goal=Goal(at_most=1)),
    Figure(
        what=f"ls -l, {NAMES:,} files, neither with xattrs",
        name="ls -l",
        unit="ms",
        goal=Goal(at_most=1),
        ours=OURS_PLAIN,
        peer=EXAMPLE_PLAIN,
        others=(),
    ),
)


def rows(seconds: float = SECONDS) -> Iterator[Row]:
    """Measure; `seconds` is how long each rate is measured in a round."""
    rounds, absent = measure(seconds)
    fewest = min((len(samples) for samples in rounds.values()), default=0)
    if fewest < ROUNDS:
        yield Row(what=f"medians of {fewest} rounds", note="this machine is too busy for more")
    yield from render_rows(medians(rounds), absent)


def measure(seconds: float, *, rounds: int = ROUNDS, names: int = NAMES) -> tuple[Rounds, Mapping[str, str]]:
    """Return the figures, and why a subject has none. Raises RuntimeError if nothing can be measured here."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise RuntimeError("needs root and /dev/fuse")
    if missing := [name for name in _NEEDED if shutil.which(name) is None]:
        raise RuntimeError(f"not installed: {', '.join(missing)}")
    _BUILD.mkdir(parents=True, exist_ok=True)
    absent = {}
    arguments = ["--load", str(build_load(_BUILD)), "--seconds", f"{seconds:g}"]
    arguments += ["--rounds", str(rounds), "--names", str(names)]
    try:
        arguments += ["--example", str(build_example(_BUILD))]
    except UnavailableError as error:
        absent[EXAMPLE] = absent[EXAMPLE_PLAIN] = str(error)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=_BUILD))
    try:
        answer = _run_apart([str(work), *arguments])
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return answer["rounds"], absent | answer["absent"]


def _run_apart(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure in namespaces of its own: whatever happens, no process and no mount is left."""
    apart = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]  # fmt: skip
    argv = [*apart, sys.executable, "-m", "e2e.bench.data_run", *arguments]
    try:
        ended = subprocess.run(
            argv,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"not done after {_LIMIT_S:g} s") from error
    with suppress(ValueError):
        answer: dict[str, Any] = json.loads(ended.stdout)
        return answer
    raise RuntimeError((ended.stderr.strip().splitlines() or ["it said nothing"])[-1])


def medians(rounds: Rounds) -> Medians:
    """Return the median of each figure over the rounds that have it."""
    found: dict[str, dict[str, float]] = {}
    for subject, samples in rounds.items():
        names = {name for sample in samples for name in sample}
        found[subject] = {
            name: statistics.median(sample[name] for sample in samples if name in sample) for name in names
        }
    return found


def render_rows(figures: Medians, absent: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for every figure. Without the peer of a goal, the row says why it cannot be judged."""
    for subject in (BINDFS, TRIO):
        if subject in absent:
            yield Row(what=f"without {_LABELS[subject]}", note=absent[subject])
    for figure in _FIGURES:
        if figure.name == CALLS and OURS in figures and CALLS not in figures[OURS]:
            yield Row(what=figure.what, note="strace cannot be had")
        else:
            yield _row(figure, figures, absent)


def _row(figure: Figure, figures: Medians, absent: Mapping[str, str]) -> Row:
    own = figures.get(figure.ours, {}).get(figure.name)
    peer = figures.get(figure.peer, {}).get(figure.name)
    fault = ""
    if own is None:
        fault = absent.get(figure.ours, "no figure")
    elif peer is None and figure.goal is not None and not figure.goal.of_ours:
        fault = f"no {_LABELS[figure.peer]}: {absent.get(figure.peer, 'no figure')}"
    others = {
        _LABELS[subject]: figures[subject][figure.name]
        for subject in figure.others
        if figure.name in figures.get(subject, {})
    }
    return Row(
        what=figure.what,
        ours=own,
        unit=figure.unit,
        against=_LABELS[figure.peer] if peer is not None else "",
        theirs=peer,
        goal=figure.goal,
        note=", ".join(f"{label} {_short(value)}" for label, value in others.items()),
        fault=fault,
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
