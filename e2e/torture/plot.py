"""Stall times as a picture: one line of dots a variant on a logarithmic scale, SVG by hand."""

from collections.abc import Sequence
from html import escape
from math import log10

from e2e.torture.outcome import Outcome

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _BOTTOM = 960, 150, 40, 52, 84, 62
_LOW_MS, _HIGH_MS = 0.5, 20_000.0
_TICKS_MS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
_DOT, _MARK, _WORDS, _LINES = "#2b6cb0", "#c53030", "#222", "#ddd"


def svg(outcomes: Sequence[Outcome]) -> str:
    """Return the picture as text."""
    rows = [outcome for outcome in outcomes if outcome.stalls_ms]
    height = _TOP + _ROW * len(rows) + _BOTTOM
    floor = height - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12" fill="{_WORDS}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="26" font-size="16">How long applications wait when what serves them dies</text>',
        f'<text x="{_LEFT}" y="46">A dot for every blow; lines at p50 and p99. '
        f"Waits below {_LOW_MS:g} ms stand at the left edge.</text>",
    ]
    for tick in _TICKS_MS:
        x = _x(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{floor}" stroke="{_LINES}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{_label(tick)}</text>')
    parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{floor}" y2="{floor}" stroke="{_WORDS}"/>')
    parts.append(f'<line x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{floor}" stroke="{_WORDS}"/>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{height - 14}" text-anchor="middle">'
        "longest wait of a call that the blow hit (logarithmic)</text>"
    )
    parts.append(
        f'<text transform="translate(18 {(_TOP + floor) / 2:.0f}) rotate(-90)" text-anchor="middle">variant</text>'
    )
    for number, outcome in enumerate(rows):
        parts += _line(outcome, _TOP + number * _ROW + _ROW / 2)
    return "\n".join([*parts, "</svg>", ""])


def _line(outcome: Outcome, y: float) -> list[str]:
    stalls = outcome.spread
    if stalls is None:
        return []
    name, count = escape(outcome.variant), f"{stalls.count} blows"
    parts = [
        f'<text x="{_LEFT - 10}" y="{y - 1:.1f}" text-anchor="end" font-size="13">{name}</text>',
        f'<text x="{_LEFT - 10}" y="{y + 13:.1f}" text-anchor="end" font-size="10" fill="#666">{count}</text>',
    ]
    for number, stall in enumerate(outcome.stalls_ms):
        shift = (number * 7919 % 23 - 11) * 0.9  # spread, so that equal values do not hide each other
        parts.append(
            f'<circle cx="{_x(stall):.1f}" cy="{y + shift:.1f}" r="2" fill="{_DOT}" fill-opacity="0.45"/>'
        )
    for value, percentile, above in ((stalls.p50, "p50", True), (stalls.p99, "p99", False)):
        x = _x(value)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 15:.1f}" y2="{y + 15:.1f}" stroke="{_MARK}" stroke-width="2">'
            f"<title>{percentile} {value:.1f} ms</title></line>"
        )
        at = y - 14 if above else y + 22  # apart, for they may be next to each other
        parts.append(
            f'<text x="{x + 4:.1f}" y="{at:.1f}" font-size="10" fill="{_MARK}">{percentile} {value:.0f} ms</text>'
        )
    return parts


def _x(stall_ms: float) -> float:
    clamped = min(max(stall_ms, _LOW_MS), _HIGH_MS)
    share = log10(clamped / _LOW_MS) / log10(_HIGH_MS / _LOW_MS)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _label(tick_ms: int) -> str:
    return f"{tick_ms} ms" if tick_ms < 1000 else f"{tick_ms // 1000} s"
