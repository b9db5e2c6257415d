"""Stall times as a picture: one line of dots a variant on a logarithmic scale, SVG by hand."""

from collections.abc import Sequence
from html import escape
from math import log10

from e2e.torture.run import Outcome

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 110, 30, 46, 50
_LOW_MS, _HIGH_MS = 0.5, 20_000.0
_TICKS_MS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)


def svg(outcomes: Sequence[Outcome]) -> str:
    """Return the picture as text."""
    rows = [outcome for outcome in outcomes if outcome.stalls_ms]
    height = _TOP + _ROW * len(rows) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">How long applications wait when what serves them dies</text>',
    ]
    for tick in _TICKS_MS:
        x = _x(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 12}" y2="{height - 30}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 14}" text-anchor="middle">{_label(tick)}</text>')
    for number, outcome in enumerate(rows):
        parts += _line(outcome, _TOP + number * _ROW + _ROW / 2)
    return "\n".join([*parts, "</svg>", ""])


def _line(outcome: Outcome, y: float) -> list[str]:
    stalls = outcome.spread
    if stalls is None:
        return []
    parts = [f'<text x="{_LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(outcome.variant)}</text>']
    for number, stall in enumerate(outcome.stalls_ms):
        shift = (number * 7919 % 23 - 11) * 0.9  # spread, so that equal values do not hide each other
        parts.append(
            f'<circle cx="{_x(stall):.1f}" cy="{y + shift:.1f}" r="2" fill="#2b6cb0" fill-opacity="0.45"/>'
        )
    for value, name in ((stalls.p50, "p50"), (stalls.p99, "p99")):
        x = _x(value)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 15:.1f}" y2="{y + 15:.1f}" stroke="#c53030" stroke-width="2">'
            f"<title>{name} {value:.1f} ms</title></line>"
        )
        parts.append(
            f'<text x="{x + 3:.1f}" y="{y - 9:.1f}" font-size="9" fill="#c53030">{name} {value:.0f}</text>'
        )
    return parts


def _x(stall_ms: float) -> float:
    clamped = min(max(stall_ms, _LOW_MS), _HIGH_MS)
    share = log10(clamped / _LOW_MS) / log10(_HIGH_MS / _LOW_MS)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _label(tick_ms: int) -> str:
    return f"{tick_ms} ms" if tick_ms < 1000 else f"{tick_ms // 1000} s"
