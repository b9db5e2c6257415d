"""A large file of a read-only volume, which the kernel reads without our daemon, against libfuse's example, whose daemon reads it."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from e2e.bench.data_programs import EXAMPLE as EXAMPLE_NAME
from e2e.bench.data_programs import UnavailableError, build_example
from e2e.bench.passthrough_run import CLIENTS, EXAMPLE, OURS
from e2e.bench.rows import Goal, Row

_ROOT = Path(__file__).parents[2]
_BUILD = _ROOT / "build" / "bench"
_LIMIT_S = 300.0
_APART = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc")
_WHAT = f"4 KiB random reads of a read-only volume, {CLIENTS} clients, each page once"


def rows() -> Iterator[Row]:
    """Measure."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise RuntimeError("needs root and /dev/fuse")
    goal = Goal(at_least=1.3)
    _BUILD.mkdir(parents=True, exist_ok=True)
    try:
        example = build_example(_BUILD)
    except UnavailableError as error:
        yield Row(what=_WHAT, goal=goal, fault=str(error))
        return
    work = Path(tempfile.mkdtemp(prefix="run-", dir=_BUILD))
    try:
        argv = [
            *_APART,
            sys.executable,
            "-m",
            "e2e.bench.passthrough_run",
            str(work),
            "--example",
            str(example),
        ]
        ended = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if ended.returncode:
        raise RuntimeError((ended.stderr.strip().splitlines() or ["it said nothing"])[-1])
    found = json.loads(ended.stdout)
    yield Row(
        what=_WHAT,
        ours=statistics.median(found[OURS]),
        unit="/s",
        against=f"{EXAMPLE_NAME} (C)",
        theirs=statistics.median(found[EXAMPLE]),
        goal=goal,
    )
