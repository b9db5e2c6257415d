"""Row: one figure with what it is measured against. alternate(): both in turns, so that drift hits both alike."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

ROUNDS = 5

Sample = Mapping[str, float]
Measure = Callable[[], Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound of the ratio ours/theirs, or of our own figure if `of_ours`. Exactly one of the two bounds is set."""

    at_least: float | None = None
    at_most: float | None = None
    of_ours: bool = False

    def holds(self, row: "Row") -> bool:
        """Whether a row meets this goal; a ratio that could not be had does not."""
        figure = row.ours if self.of_ours else row.ratio
        if figure is None:
            return False
        return figure >= self.at_least if self.at_least is not None else figure <= (self.at_most or 0.0)

    def __str__(self) -> str:
        bound = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        return bound if self.of_ours else f"ratio {bound}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. `theirs` is None where there is no peer; `fault` says why there is no figure at all."""

    what: str
    ours: float | None = None
    unit: str = ""
    against: str = ""
    theirs: float | None = None
    goal: Goal | None = None
    note: str = ""
    fault: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours by theirs."""
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    @property
    def verdict(self) -> str:
        """ "holds", "falls short", "not measured", or "" for a row without a goal."""
        if self.fault:
            return "not measured"
        if self.goal is None:
            return ""
        return "holds" if self.goal.holds(self) else "falls short"


@dataclass(frozen=True, slots=True)
class Pair:
    """Medians of both over all rounds."""

    ours: float
    theirs: float


def alternate(subject: Measure, peer: Measure, *, rounds: int = ROUNDS) -> dict[str, Pair]:
    """Return the medians of every figure that both measures give, taken in turns: A B, B A, A B, …

    One unrecorded turn each comes first: caches, connections and the processor's clock are warm then.
    """
    subject()
    peer()
    ours: list[Sample] = []
    theirs: list[Sample] = []
    for number in range(rounds):
        turns = [(subject, ours), (peer, theirs)]
        for measure, samples in turns if number % 2 == 0 else reversed(turns):
            samples.append(measure())
    return {
        name: Pair(
            statistics.median(sample[name] for sample in ours),
            statistics.median(sample[name] for sample in theirs),
        )
        for name in ours[0].keys() & theirs[0].keys()
    }


def repeat(measure: Callable[[], float], *, rounds: int = ROUNDS) -> float:
    """Return the median of a figure without a peer, after one unrecorded turn."""
    measure()
    return statistics.median(measure() for _ in range(rounds))


def render_table(rows: Iterable[Row]) -> str:
    """Return rows as a table for a person."""
    lines = [_HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    rendered = [_line(line, widths) for line in lines]
    return "\n".join([rendered[0], "  ".join("-" * width for width in widths), *rendered[1:]])


def render_verdict(rows: Sequence[Row]) -> str:
    """Return one line: how many goals hold, and which do not."""
    judged = [row for row in rows if row.verdict]
    short = [f"{row.what} ({row.verdict})" for row in judged if row.verdict != "holds"]
    held = len(judged) - len(short)
    return f"bench: {held} of {len(judged)} goals hold" + (f"; not: {', '.join(short)}" if short else "")


_HEADER = ("what", "ours", "against", "theirs", "ratio", "goal", "verdict")
_NUMBERS = (1, 3, 4)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.what,
        _figure(row.ours, row.unit),
        row.against,
        _figure(row.theirs, row.unit),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.goal is None else str(row.goal),
        " ".join(part for part in (row.verdict, row.fault or row.note) if part),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()
