"""A check run as a command of its own, and what it has left behind: other tests may run theirs meanwhile."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LIMIT_S = 550.0
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How it ended, and its output: `told` for machines, `said` with everything."""

    pid: int
    code: int
    told: str
    said: str

    def left(self) -> list[str]:
        """Return what is still there of it."""
        return left_of(self.pid)


def left_of(pid: int) -> list[str]:
    """Return directories and mounts of the check that such a process has run."""
    name = f"sidemount-check-{pid}-"
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [*map(str, Path("/run").glob(f"{name}*")), *(line for line in mounts if name in line)]


def start_check(
    arguments: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start it."""
    known = {**(environment or os.environ), "PYTHONPATH": str(_ROOT)}
    argv = [sys.executable, "-m", "sidemount.cli", "classes", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=known)


def run_check(arguments: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Done:
    """Run it to its end."""
    process = start_check(arguments, environment=environment)
    try:
        told, complained = process.communicate(timeout=_LIMIT_S)
    finally:
        process.kill()
        process.wait()
    return Done(pid=process.pid, code=process.returncode, told=told, said=told + complained)
