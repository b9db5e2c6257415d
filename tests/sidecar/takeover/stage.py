"""A mount whose daemons die, and applications that work on it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidemount.host import budget
from sidemount.host.readiness import wait_readable
from tests.sidecar.takeover.serving import Fault

_REPOSITORY = Path(__file__).parents[3]
_START_S = 30.0
_END_S = 90.0


@dataclass
class Verdict:
    """What happened."""

    kills: int
    faults: list[str]
    takeovers: list[dict[str, Any]]
    applications: list[dict[str, Any]]
    hung: list[str]
    log: str = field(repr=False)

    @property
    def complaints(self) -> list[str]:
        """Everything that must not be."""
        found = [*self.faults, *(f"{kind} hangs" for kind in self.hung)]
        for application in self.applications:
            found += [
                f"{application['kind']}: {what}" for what in (*application["errors"], *application["wrong"])
            ]
        return found


class Stage:
    """A nursery and the way to its mount."""

    def __init__(self, process: "subprocess.Popen[str]", target: Path, log: Path) -> None:
        self._process = process
        self._log = log
        self._applications: list[tuple[str, subprocess.Popen[str]]] = []
        self.path = Path(f"/proc/{process.pid}/root{target}")
        self.report: dict[str, Any] = {}

    def start(self, *kinds: str, seconds: float = 600.0) -> None:
        """Start applications."""
        for number, kind in enumerate(kinds):
            command = [sys.executable, "-m", "e2e.torture.apps", kind]
            command += [str(self.path / f"{kind}{number}"), str(seconds), str(time.time())]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY)
            self._applications.append((kind, process))

    def order(self, *words: object) -> dict[str, Any]:
        """Have the nursery do something, and return what has happened so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self._process.stdin.flush()
        self.report = self._answer(120.0)
        return self.report

    def end(self, longest_s: float = _END_S) -> Verdict:
        """Have the applications come to their end, and return what happened."""
        deadline = time.monotonic() + longest_s
        while time.monotonic() < deadline and not all(_heeds(process) for _, process in self._applications):
            self.order("torture", 0.1, 1e9, 1e9)  # on a busy machine one may not even have begun
        for _, process in self._applications:
            process.send_signal(signal.SIGTERM)
        hung, said = [], []
        deadline = time.monotonic() + longest_s
        # Daemons may go on dying by themselves until the last application is done.
        while time.monotonic() < deadline and self._are_running():
            self.order("torture", 0.2, 1e9, 1e9)
            if self.report["faults"]:
                break
        for kind, process in self._applications:
            if process.poll() is None:
                hung.append(kind)
            else:
                assert process.stdout is not None
                said.append(json.loads(process.stdout.read()))
        report = self.report or self.order("report")
        return Verdict(
            report["kills"], report["faults"], report["takeovers"], said, hung, self._log.read_text()
        )

    def close(self) -> None:
        """End everything: the mount goes with the nursery, and whoever waits for it wakes up."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        for _, process in self._applications:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def wait_until_ready(self) -> None:
        """Return once the mount is served."""
        self._answer(_START_S)

    def _are_running(self) -> bool:
        return any(process.poll() is None for _, process in self._applications)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready = wait_readable(self._process.stdout.fileno(), timeout_s)
        line = self._process.stdout.readline() if ready else ""
        assert line, f"the nursery says nothing:\n{self._log.read_text()}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def _heeds(process: "subprocess.Popen[str]") -> bool:
    """Tell whether an application has said what it does at SIGTERM, or has ended."""
    if process.poll() is not None:
        return True
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


@contextmanager
def stage(
    scratch: Path, *arguments: str, fault: Fault = Fault.NONE, limit: int | None = None, **options: object
) -> Iterator[Stage]:
    """Serve a source for a block, by one daemon after another. With a `limit` it is a volume of that size."""
    places = {name: scratch / name for name in ("target", "source", "state")}
    for place in places.values():
        place.mkdir()
    if limit is not None:
        (places["source"] / "data").mkdir()
        budget.create(str(places["source"]), limit)
        arguments = (*arguments, "--filesystem", "volume")
    log = scratch / "log"
    command = [sys.executable, "-m", "tests.sidecar.takeover.nursery", "--fault", fault.value]
    command += ["--target", str(places["target"]), "--source", str(places["source"])]
    command += ["--state-dir", str(places["state"]), "--options", json.dumps(options), *arguments]
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=_REPOSITORY,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    here = Stage(process, places["target"], log)
    try:
        here.wait_until_ready()
        yield here
    finally:
        here.close()
