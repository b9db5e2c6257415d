"""How long applications may have to wait, and whether that held. Pure.

A machine that others load misses goals that it would meet alone; what is lost or wrong is no question of speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.torture.outcome import Outcome
from e2e.torture.stalls import Spread, spread
from e2e.torture.variants import VARIANTS

KILLS = 1000
_RECOVERY_MS = 100.0  # what recovery may add to a container's own start
_NOTICE_MS = 1000.0  # within which a hang is noticed once its deadline is over, and succeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One goal, what was found, and whether that meets it."""

    variant: str
    goal: str
    found: str
    is_met: bool


def judge(outcomes: Sequence[Outcome]) -> list[Judgement]:
    """Return a judgement for every goal that the outcomes say something about."""
    judgements = []
    for outcome in outcomes:
        if outcome.spread is not None:
            judgements += _judge_stalls(outcome, outcome.spread)
    if {outcome.variant for outcome in outcomes} == set(VARIANTS):
        kills = sum(outcome.kills for outcome in outcomes)
        judgements.append(
            Judgement(variant="all", goal=f"kills ≥ {KILLS}", found=str(kills), is_met=kills >= KILLS)
        )
    return judgements


def _judge_stalls(outcome: Outcome, stalls: Spread) -> list[Judgement]:
    match outcome.variant:
        case "quiet":
            return [_within(outcome, "p50", stalls.p50, 10), _within(outcome, "p99", stalls.p99, 100)]
        case "child" | "blocks" | "writeback":
            return [_within(outcome, "p50", stalls.p50, 50)]
        case "container":
            return _judge_starts(outcome, stalls)
        case "hang":
            deadline_ms = VARIANTS["hang"].hung_after_s * 1000
            return [_within(outcome, "p50", stalls.p50, deadline_ms + _NOTICE_MS)]
    return []


def _judge_starts(outcome: Outcome, stalls: Spread) -> list[Judgement]:
    """Compare a container's death with what its start alone takes: half of all, and the worst."""
    starts = spread(outcome.starts_ms)
    if starts is None:
        return []
    return [
        _within(outcome, f"{name} beyond a start of {start:.0f} ms", stall - start, _RECOVERY_MS)
        for name, stall, start in (("p50", stalls.p50, starts.p50), ("p99", stalls.p99, starts.p99))
    ]


def _within(outcome: Outcome, what: str, found_ms: float, limit_ms: float) -> Judgement:
    return Judgement(
        variant=outcome.variant,
        goal=f"{what} ≤ {limit_ms:g} ms",
        found=f"{found_ms:.1f} ms",
        is_met=found_ms <= limit_ms,
    )
