"""Rows run one after the other, and shown."""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.failures.rows import Row
from e2e.failures.scene import scene
from e2e.podlet.errors import PodletError
from sidemount.commands.output import table
from tests.pods.stage import Images

_HEADINGS = ("event", "delivery", "injected", "expected", "seen", "verdict")
_SEEN_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of a row. `fault` is "" if it held, and all that there is to say of it if not."""

    row: Row
    seen: str
    fault: str = ""

    @property
    def verdict(self) -> str:
        """Return a word."""
        return "FAILED" if self.fault else "holds"


def find(row: Row, images: Images) -> Finding:
    """Run a row."""
    with tempfile.TemporaryDirectory(prefix="failures-") as directory:
        try:
            with scene(Path(directory).resolve(), images, row.class_spec) as here:
                seen = row.act(here)
        except (AssertionError, PodletError) as error:
            fault = "\n".join([str(error), *getattr(error, "__notes__", ())])
            return Finding(row=row, seen=" ".join(str(error).split())[:_SEEN_CHARS], fault=fault)
    return Finding(row=row, seen=seen)


def find_all(rows: Sequence[Row], images: Images) -> list[Finding]:
    """Run rows, and tell on standard error how it goes."""
    findings = []
    for number, row in enumerate(rows, 1):
        began = time.monotonic()
        finding = find(row, images)
        findings.append(finding)
        took = f"{time.monotonic() - began:.1f} s"
        sys.stderr.write(f"{number}/{len(rows)} {row.name}: {finding.verdict} ({took})\n")
        sys.stderr.write(finding.fault + "\n" if finding.fault else "")
        sys.stderr.flush()
    return findings


def show(findings: Sequence[Finding]) -> str:
    """Return the table."""
    rows = [
        (f.row.event, f.row.delivery, f.row.injected, f.row.expected, f.seen, f.verdict) for f in findings
    ]
    return table(_HEADINGS, rows)
