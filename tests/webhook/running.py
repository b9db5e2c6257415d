"""The real server as a process of its own, with certificates and facts in a temporary directory."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from certs.development import DevelopmentFiles, ensure_development
from certs.hosts import parse_hosts
from sidemount.host.readiness import wait_readable

SERVICE = "webhook.sidemount-system.svc"
ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sidemount" / "samples"
START_S = 30.0
STOP_S = 40.0


class RunningServer:
    """A started server. `port` and `ready_line` are what it printed."""

    def __init__(
        self, directory: Path, arguments: Sequence[str] = (), environ: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.files = make_certificates(directory / "tls")
        self.facts = directory / "facts"
        if not self.facts.exists():
            shutil.copytree(SAMPLES, self.facts)
        self.log = directory / f"log-{len(list(directory.glob('log-*')))}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "webhook", *self.arguments(), *arguments],
                cwd=ROOT,
                env={**os.environ, **(environ or {})},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            self.ready_line = self._ready_line()
            match = re.search(r"https://127\.0\.0\.1:(\d+)", self.ready_line)
            assert match is not None, self.ready_line
            self.port = int(match[1])
        except BaseException:
            self.kill()
            raise

    def arguments(self) -> list[str]:
        """Return the flags that every server here gets."""
        return [
            "--listen", "127.0.0.1:0",
            "--tls-cert", str(self.files.serving),
            "--tls-key", str(self.files.serving_key),
            "--facts", str(self.facts),
        ]  # fmt: skip

    def _ready_line(self) -> str:
        assert self.process.stdout is not None
        readable = wait_readable(self.process.stdout.fileno(), START_S)
        line = self.process.stdout.readline().decode() if readable else ""
        assert line, f"it did not become ready: {self.log.read_text()}"
        return line

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code; the process must end in time."""
        assert self.process.stdout is not None
        code = self.process.wait(STOP_S)
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        """End it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(AssertionError, ValueError):
            self.wait()

    def resident_bytes(self) -> int:
        """Return how much memory it holds."""
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_certificates(directory: Path, *, force: bool = False) -> DevelopmentFiles:
    """Return certificates for the service's name and for loopback."""
    files = DevelopmentFiles(directory)
    ensure_development(
        files, parse_hosts([SERVICE, "localhost", "127.0.0.1"]), now=datetime.now(UTC), force=force
    )
    return files


@contextlib.contextmanager
def running_server(
    directory: Path, arguments: Sequence[str] = (), environ: dict[str, str] | None = None
) -> Iterator[RunningServer]:
    """Run a server for as long as the block lasts."""
    server = RunningServer(directory, arguments, environ)
    try:
        yield server
    finally:
        server.kill()
