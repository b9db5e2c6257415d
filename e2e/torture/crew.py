"""The applications: programs that work on the mount, and what they report."""

import contextlib
import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.torture.log_tail import LogTail
from e2e.torture.stage import ROOT, TortureError
from e2e.torture.stalls import Call

_LATE_S = 60.0
_KILLED_S = 1.0
_PROBER_LONGER_S = 1.0  # it sees how the last blow ends
_APPS_LONGER_S = 2.0  # what they do in the end, all at once, is no matter of blows
_APPS = "e2e.torture.apps"
_PROBER = "prober"


@dataclass(slots=True)
class Findings:
    """What all applications together have done and found."""

    operations: int = 0
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    slow_calls: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class Member:
    """One running application. What it says while it runs goes into a file."""

    name: str
    program: "subprocess.Popen[str]"
    said: LogTail


class Crew:
    """Running applications, each in a directory of its own, and the prober. They go on a little longer than they are told."""

    def __init__(
        self, place: Path, apps: tuple[str, ...], seconds: float, seed: int, *, work: Path, source: Path
    ) -> None:
        """`place` is the mount, `source` what it shows; in `work` they write what they have to say."""
        self._seconds = seconds
        self._work = work
        self._source = source
        self._members = []
        for number, kind in enumerate(apps):
            name = f"{kind}{number}"
            arguments = (kind, str(place / name), str(seconds + _APPS_LONGER_S), str(seed + number))
            self._members.append(self._start(name, _APPS, *arguments))
        self._prober = self._start(_PROBER, "e2e.torture.prober", str(place), str(seconds + _PROBER_LONGER_S))

    def stop(self) -> None:
        """Have all of them finish now what they do, and check it: the prober first."""
        self._prober.program.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._prober.program.wait(_LATE_S)
        for member in self._members:
            member.program.terminate()

    def so_far(self) -> Findings:
        """Return what they have complained of until now, and which calls were slow."""
        found = Findings()
        for member in self._all():
            member.said.read()
            for line in member.said.lines:
                found.errors += [f"{member.name}: {line['error']}"] if "error" in line else []
                found.wrong += [f"{member.name}: {line['wrong']}"] if "wrong" in line else []
                found.slow_calls += [tuple(line["slow"])] if "slow" in line else []
        return found

    def findings(self) -> Findings:
        """Wait for the end of all and return what they say. Raises TortureError if one hangs."""
        found = Findings()
        for member in self._members:
            report = self._report(member)
            found.operations += report["operations"]
            found.errors += [f"{member.name}: {error}" for error in report["errors"]]
            found.wrong += [f"{member.name}: {what}" for what in report["wrong"]]
            found.wrong += self._differences(member.name, report["leaves"])
        probed = self._report(self._prober)
        found.operations += probed["calls"]
        found.errors += [f"prober: {error}" for error in probed["errors"]]
        found.slow_calls = self.so_far().slow_calls
        return found

    def kill(self) -> None:
        """End all of them."""
        for member in self._all():
            member.program.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a mount that is not served
                member.program.wait(_KILLED_S)
            if member.program.stdout is not None:
                member.program.stdout.close()
            member.said.close()

    def _all(self) -> list[Member]:
        return [*self._members, self._prober]

    def _differences(self, name: str, leaves: dict[str, str]) -> list[str]:
        """Return which files are in the source other than the application has left them."""
        return [
            f"{name}: {file} is another one in the source than in the mount"
            for file, digest in leaves.items()
            if hashlib.sha256((self._source / name / file).read_bytes()).hexdigest() != digest
        ]

    def _report(self, member: Member) -> dict[str, Any]:
        try:
            output, _ = member.program.communicate(timeout=self._seconds + _LATE_S)
        except subprocess.TimeoutExpired:
            state = Path(f"/proc/{member.program.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            raise TortureError(f"application {member.name} hangs (process state {state})") from None
        if member.program.returncode != 0 or not output:
            faults = member.said.path.read_text()[-2000:]
            raise TortureError(
                f"application {member.name} has ended with code {member.program.returncode}: {faults}"
            )
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return report

    def _start(self, name: str, module: str, *arguments: str) -> Member:
        said = LogTail(self._work / f"{name}.said")
        with said.path.open("ab") as errors:
            program = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        return Member(name, program, said)
