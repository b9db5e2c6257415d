"""The figures of the object-store benchmark as a picture: one panel a figure, one bar for each that was measured. SVG as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_WIDTH, _PANEL_WIDTH, _COLUMNS = 960, 300, 3
_BAR, _GAP, _HEAD, _MARGIN = 14, 6, 40, 18
_LABEL_WIDTH, _FIGURE_WIDTH = 92, 72
_OURS, _THEIRS, _INK, _QUIET = "#1f6feb", "#b6bec9", "#24292f", "#57606a"
_STYLE = f"text{{font:12px sans-serif;fill:{_INK}}} .title{{font-weight:bold}} .quiet{{fill:{_QUIET}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One figure: what it is, its unit, whether more is better, and the median of each subject, ours first; the least and the most of each."""

    title: str
    unit: str
    more_is_better: bool
    bars: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def render_chart(heading: str, ours: str, panels: Sequence[Panel]) -> str:
    """Return the picture. `ours` is the subject whose bars stand out."""
    parts: list[str] = []
    y = 2 * _MARGIN + 16
    for at in range(0, len(panels), _COLUMNS):
        row = panels[at : at + _COLUMNS]
        for column, panel in enumerate(row):
            parts += _panel(panel, ours, _MARGIN + column * (_PANEL_WIDTH + _MARGIN), y)
        y += _HEAD + max(len(panel.bars) for panel in row) * (_BAR + _GAP) + _MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>',
        _text(_MARGIN, _MARGIN + 12, heading, "title"),
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def _panel(panel: Panel, ours: str, x: int, y: int) -> list[str]:
    better = "more is better" if panel.more_is_better else "less is better"
    lines = [_text(x, y, panel.title, "title"), _text(x, y + 15, f"{panel.unit}, {better}", "quiet")]
    longest = max([*panel.bars.values(), *(most for _, most in panel.ranges.values())], default=0.0) or 1.0
    room = _PANEL_WIDTH - _LABEL_WIDTH - _FIGURE_WIDTH
    for number, (subject, figure) in enumerate(panel.bars.items()):
        top = y + _HEAD - 14 + number * (_BAR + _GAP)
        width = max(1.0, figure / longest * room)
        color = _OURS if subject == ours else _THEIRS
        lines.append(_text(x, top + _BAR - 3, subject))
        lines.append(
            f'<rect x="{x + _LABEL_WIDTH}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{color}"/>'
        )
        least, most = (one / longest * room for one in panel.ranges.get(subject, (figure, figure)))
        middle, left = top + _BAR / 2, x + _LABEL_WIDTH
        lines.append(
            f'<line x1="{left + least:.1f}" y1="{middle:g}" x2="{left + most:.1f}" y2="{middle:g}" stroke="{_INK}"/>'
        )
        lines.append(_text(round(left + max(width, most) + 5), top + _BAR - 3, _shown(figure)))
    return lines


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{of_kind}>{escape(text)}</text>'


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"
