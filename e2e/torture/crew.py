"""The applications: programs that work on the mount, and what they report in the end."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.torture.stage import ROOT, TortureError
from e2e.torture.stalls import Call

_LATE_S = 60.0
_PROGRAMS = {"reopener": "e2e.torture.reopener"}
_APPS = "e2e.torture.apps"


@dataclass(slots=True)
class Findings:
    """What all applications together have done and found."""

    operations: int = 0
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    slow_calls: list[Call] = field(default_factory=list)


class Crew:
    """Running applications, each in a directory of its own, and the prober."""

    def __init__(self, place: Path, apps: tuple[str, ...], seconds: float, seed: int) -> None:
        self._seconds = seconds
        self._running = [
            (
                f"{kind}{number}",
                self._start(_PROGRAMS.get(kind, _APPS), kind, place / f"{kind}{number}", seed + number),
            )
            for number, kind in enumerate(apps)
        ]
        self._prober = _program("e2e.torture.prober", str(place), str(seconds))

    def stop(self) -> None:
        """Have all of them finish now what they do, and check it."""
        for _, program in [*self._running, ("prober", self._prober)]:
            program.terminate()

    def findings(self) -> Findings:
        """Wait for the end of all and return what they say. Raises TortureError if one hangs."""
        found = Findings()
        for name, program in self._running:
            report = self._report(name, program)
            found.operations += report["operations"]
            found.errors += [f"{name}: {error}" for error in report["errors"]]
            found.wrong += [f"{name}: {what}" for what in report["wrong"]]
        probed = self._report("prober", self._prober)
        found.operations += probed["calls"]
        found.errors += [f"prober: {error}" for error in probed["errors"]]
        found.slow_calls = [(begin, end) for begin, end in probed["slow"]]
        return found

    def kill(self) -> None:
        """End all of them."""
        for _, program in [*self._running, ("prober", self._prober)]:
            program.kill()

    def _start(self, module: str, kind: str, place: Path, seed: int) -> "subprocess.Popen[str]":
        return _program(module, kind, str(place), str(self._seconds), str(seed))

    def _report(self, name: str, program: "subprocess.Popen[str]") -> dict[str, Any]:
        try:
            output, faults = program.communicate(timeout=self._seconds + _LATE_S)
        except subprocess.TimeoutExpired:
            state = Path(f"/proc/{program.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            raise TortureError(f"application {name} hangs (process state {state})") from None
        if program.returncode != 0 or not output:
            raise TortureError(
                f"application {name} has ended with code {program.returncode}: {faults[-2000:]}"
            )
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return report


def _program(module: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
