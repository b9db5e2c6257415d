"""Outcomes as a table for people and as JSON for programs."""

import json
from collections.abc import Sequence
from typing import Any

from e2e.torture.run import Outcome

_HEADINGS = (
    "variant",
    "seconds",
    "blows",
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
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    for outcome in outcomes:
        found = [*outcome.errors, *outcome.wrong, *outcome.faults]
        lines += [f"{outcome.variant}: {fault}" for fault in found[:_FAULTS_SHOWN]]
        if len(found) > _FAULTS_SHOWN:
            lines.append(f"{outcome.variant}: … and {len(found) - _FAULTS_SHOWN} more")
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome]) -> str:
    """Return everything."""
    return json.dumps([_plain(outcome) for outcome in outcomes], indent=1)


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
        str(outcome.operations),
        str(len(outcome.errors)),
        str(len(outcome.wrong)),
        *figures,
        "good" if outcome.is_good else "BAD",
    )


def _plain(outcome: Outcome) -> dict[str, Any]:
    stalls = outcome.spread
    return {
        "variant": outcome.variant,
        "seconds": round(outcome.seconds, 1),
        "blows": outcome.blows,
        "operations": outcome.operations,
        "errors": list(outcome.errors),
        "wrong": list(outcome.wrong),
        "faults": list(outcome.faults),
        "stall_p50_ms": None if stalls is None else round(stalls.p50, 2),
        "stall_p99_ms": None if stalls is None else round(stalls.p99, 2),
        "stall_max_ms": None if stalls is None else round(stalls.most, 2),
        "stalls_ms": [round(stall, 2) for stall in outcome.stalls_ms],
        "keeper_kib": list(outcome.keeper_kib),
        "daemon_kib": list(outcome.daemon_kib),
    }
