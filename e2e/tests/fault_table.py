"""What applications saw of each fault: rows, and the table that docs/failures.md shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BEGIN, _END = "<!-- begin of what was seen{} -->\n", "<!-- end of what was seen{} -->\n"
_HEADINGS = ("event", "the application saw", "longest wait", "started anew", "pod gone after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One event. `stall_ms` is None where nothing was waiting any more, `gone_s` where the pod lived on."""

    event: str
    saw: str
    stall_ms: float | None = None
    restarts: str = ""
    gone_s: float | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the row's texts in the order of the headings."""
        stall = "" if self.stall_ms is None else f"{self.stall_ms:.0f} ms"
        gone = "" if self.gone_s is None else f"{self.gone_s:.1f} s"
        return (self.event, self.saw, stall, self.restarts, gone)


def render(rows: Sequence[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = [_HEADINGS, ("---",) * len(_HEADINGS), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_page(page: Path, rows: Sequence[Row], *, of: str = "") -> None:
    """Put the table into a page, between its two marks; `of` is in them if there are several. Raises ValueError for a page without them."""
    text, which = page.read_text(), f" {of}" if of else ""
    before, begin, rest = text.partition(_BEGIN.format(which))
    _, end, after = rest.partition(_END.format(which))
    if not (begin and end):
        raise ValueError(f"{page} has no place for the table")
    page.write_text(f"{before}{begin}\n{render(rows)}\n{end}{after}")
