"""Outcomes as tables for people and as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from e2e.torture.counts import Counts
from e2e.torture.goals import Judgement, judge
from e2e.torture.outcome import Outcome

_HEADINGS = (
    "variant",
    "seconds",
    "blows",
    "kills",
    "app ops",
    "errors",
    "wrong",
    "stall p50",
    "p99",
    "max ms",
    "verdict",
)
_FAULTS_SHOWN = 8


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a row for every variant, and what was found wrong beneath."""
    rows = [_HEADINGS, *(_row(outcome) for outcome in outcomes)]
    if len(outcomes) > 1:
        rows.append(_sums(outcomes))
    lines = _aligned(rows)
    for outcome in outcomes:
        found = [*outcome.errors, *outcome.wrong, *outcome.faults]
        lines += [f"{outcome.variant}: {fault}" for fault in found[:_FAULTS_SHOWN]]
        if len(found) > _FAULTS_SHOWN:
            lines.append(f"{outcome.variant}: … and {len(found) - _FAULTS_SHOWN} more")
    return "\n".join(lines)


def whole_report(outcomes: Sequence[Outcome]) -> str:
    """Return all there is to say: outcomes, goals, and what there was of everything before and after."""
    parts = [table(outcomes), goals_table(judge(outcomes)), baseline_table(outcomes)]
    return "\n\n".join(part for part in parts if part)


def goals_table(judgements: Sequence[Judgement]) -> str:
    """Return a row for every goal."""
    if not judgements:
        return ""
    rows = [("variant", "goal", "found", "verdict")]
    rows += [(j.variant, j.goal, j.found, "met" if j.is_met else "MISSED") for j in judgements]
    return "\n".join(_aligned(rows))


def baseline_table(outcomes: Sequence[Outcome]) -> str:
    """Return what there was before and after each variant."""
    counted = [(o.variant, o.before, o.after) for o in outcomes if o.before and o.after]
    if not counted:
        return ""
    names = [field.name for field in fields(Counts)]
    rows = [("before → after", *(name.replace("_", " ").replace("kib", "KiB") for name in names))]
    for variant, before, after in counted:
        pairs = ((getattr(before, name), getattr(after, name)) for name in names)
        rows.append((variant, *(f"{was} → {now}" for was, now in pairs)))
    return "\n".join(_aligned(rows))


def as_json(outcomes: Sequence[Outcome]) -> str:
    """Return everything."""
    return json.dumps([_plain(outcome) for outcome in outcomes], indent=1)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _row(outcome: Outcome) -> tuple[str, ...]:
    stalls = outcome.spread
    figures = (
        ("-", "-", "-")
        if stalls is None
        else tuple(f"{v:.1f}" for v in (stalls.p50, stalls.p99, stalls.most))
    )
    return (
        outcome.variant,
        f"{outcome.seconds:.0f}",
        str(outcome.blows),
        str(outcome.kills),
        str(outcome.operations),
        str(len(outcome.errors)),
        str(len(outcome.wrong)),
        *figures,
        "good" if outcome.is_good else "BAD",
    )


def _sums(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    return (
        "all",
        f"{sum(o.seconds for o in outcomes):.0f}",
        str(sum(o.blows for o in outcomes)),
        str(sum(o.kills for o in outcomes)),
        str(sum(o.operations for o in outcomes)),
        str(sum(len(o.errors) for o in outcomes)),
        str(sum(len(o.wrong) for o in outcomes)),
        "",
        "",
        "",
        "good" if all(o.is_good for o in outcomes) else "BAD",
    )


def _plain(outcome: Outcome) -> dict[str, Any]:
    stalls = outcome.spread
    return {
        "variant": outcome.variant,
        "seconds": round(outcome.seconds, 1),
        "blows": outcome.blows,
        "kills": outcome.kills,
        "operations": outcome.operations,
        "errors": list(outcome.errors),
        "wrong": list(outcome.wrong),
        "faults": list(outcome.faults),
        "stall_p50_ms": None if stalls is None else round(stalls.p50, 2),
        "stall_p99_ms": None if stalls is None else round(stalls.p99, 2),
        "stall_max_ms": None if stalls is None else round(stalls.most, 2),
        "stalls_ms": [round(stall, 2) for stall in outcome.stalls_ms],
        "starts_ms": [round(start, 2) for start in outcome.starts_ms],
        "before": asdict(outcome.before) if outcome.before else None,
        "after": asdict(outcome.after) if outcome.after else None,
    }
