"""What a limit costs: writing on a volume with one against writing in a directory, both through our daemon."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from e2e.bench.quota_run import APPENDS, DIRECTORY, OVERWRITES, REMOVALS, VOLUME
from e2e.bench.rows import ROUNDS, Goal, Row

SECONDS = 0.5
_ROOT = Path(__file__).parents[2]
_LONGEST_S = 300.0
_FIGURES = (
    (OVERWRITES, "4 KiB overwrites", Goal(at_least=0.8)),
    (APPENDS, "4 KiB appends", None),  # exact at the price of a lock: see docs/quota.md
    (REMOVALS, "files removed", None),
)


def rows(seconds: float = SECONDS) -> Iterator[Row]:
    """Measure in turns, in a mount namespace of its own."""
    command = ["unshare", "--mount", sys.executable, "-m", "e2e.bench.quota_run"]
    command += ["--seconds", str(seconds), "--rounds", str(ROUNDS)]
    run = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_LONGEST_S)
    if run.returncode:
        raise RuntimeError(run.stderr.strip().splitlines()[-1])
    samples = json.loads(run.stdout)
    for name, what, goal in _FIGURES:
        ours, theirs = (
            statistics.median(sample[name] for sample in samples[subject]) for subject in (VOLUME, DIRECTORY)
        )
        yield Row(what=what, ours=ours, unit="1/s", against="directory", theirs=theirs, goal=goal)
