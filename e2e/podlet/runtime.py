"""crun as the node's OCI runtime."""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.podlet.command import Completed, run_command
from e2e.podlet.errors import PodletError
from e2e.podlet.init import Exits

_REQUEST_S = 120.0  # kubelet's runtimeRequestTimeout
_REAP_S = 2.0
_IDLE_S = 10.0


class RuntimeFailed(PodletError):
    """crun said no."""


class Crun:
    """One state directory of crun. Every call is bounded."""

    def __init__(self, state: Path, exits: Exits) -> None:
        self.exits = exits
        self._idle = threading.Condition()
        self._executing = 0
        self._scratch = state.with_name("exec")
        for directory in (state, self._scratch):
            directory.mkdir(parents=True, exist_ok=True)
        self._argv = ["crun", f"--root={state}", "--cgroup-manager=cgroupfs"]

    def create(self, container: str, bundle: Path, output: int) -> int:
        """Create a container whose process waits to be started; return the process id. Raises RuntimeFailed."""
        pid_file = bundle / "pid"
        errors = bundle / "crun.log"
        argv = [
            *self._argv,
            f"--log={errors}",
            "create",
            f"--bundle={bundle}",
            f"--pid-file={pid_file}",
            container,
        ]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process:
            try:
                status = process.wait(_REQUEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise RuntimeFailed(f"crun create: no answer within {_REQUEST_S:g} s") from None
        if status != 0:
            raise RuntimeFailed(_last_line(errors) or f"crun create: exit status {status}")
        return int(pid_file.read_text())

    def start(self, container: str) -> None:
        """Let the created process go on. Raises RuntimeFailed."""
        self._run(["start", container])

    def delete(self, container: str) -> None:
        """Forget a container, killing what is left of it. Repeatable."""
        self._run(["delete", "--force", container])

    def execute(
        self, container: str, bundle: Path, argv: tuple[str, ...], timeout_s: float, stdin: bytes = b""
    ) -> Completed:
        """Run a command in a container with its own user, environment and confinement.

        At the deadline the command is killed, as by a kubelet.
        """
        with self._counted(), tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
            place = Path(scratch)
            pid_file = place / "pid"
            (place / "in").write_bytes(stdin)
            # Without the whole process crun would run the command as root.
            process = json.loads((bundle / "config.json").read_text())["process"]
            (place / "process").write_text(json.dumps({**process, "args": argv}))
            whole = [
                *self._argv,
                "exec",
                f"--process={place / 'process'}",
                f"--pid-file={pid_file}",
                container,
            ]
            with (
                (place / "in").open("rb") as given,
                (place / "out").open("wb") as out,
                (place / "err").open("wb") as err,
            ):
                # Files, not pipes: a grandchild that keeps a pipe open must not keep us waiting.
                monitor = subprocess.Popen(whole, stdin=given, stdout=out, stderr=err)
            code = _wait_or_kill(monitor, pid_file, timeout_s)
            return Completed(exit_code=code, stdout=_text(place / "out"), stderr=_text(place / "err"))

    def wait_until_idle(self) -> None:
        """Return when no command of execute() is under way: a probe may outlive its container by a moment."""
        with self._idle:
            if not self._idle.wait_for(lambda: not self._executing, _IDLE_S):
                raise RuntimeFailed(f"{self._executing} commands in containers have not ended")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._idle:
            self._executing += 1
        try:
            yield
        finally:
            with self._idle:
                self._executing -= 1
                self._idle.notify_all()

    def _run(self, arguments: list[str]) -> None:
        done = run_command([*self._argv, *arguments], _REQUEST_S)
        if done.fault:
            raise RuntimeFailed(done.fault)


def _wait_or_kill(process: subprocess.Popen[bytes], pid_file: Path, timeout_s: float) -> int | None:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    deadline = time.monotonic() + _REAP_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        except (OSError, ValueError):
            process.kill()  # it has not got as far as starting the command
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    if process.poll() is None:
        process.kill()  # the command is beyond signals; only its monitor goes
    return None


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape")


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1] if lines else ""


def write_bundle(bundle: Path, spec: dict[str, object]) -> None:
    """Write config.json."""
    (bundle / "config.json").write_text(json.dumps(spec))
