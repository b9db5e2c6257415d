"""A mounted `directory` volume for tests, and what tests look at."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidemount.host.readiness import wait_readable
from sidemount.model.mountspec import OptionValue

_START_S = 20.0
_REPOSITORY = Path(__file__).parents[3]


@dataclass
class Mounted:
    """A volume that is being served. `path` leads into the daemon's own mount namespace; only root can follow it."""

    process: "subprocess.Popen[bytes]"
    path: Path
    source: Path
    log_path: Path
    allowed: set[str] = field(default_factory=set)

    def records(self) -> list[dict[str, Any]]:
        """Return the daemon's log."""
        return [_parse(line) for line in self.log_path.read_text().splitlines()]

    def alarms(self) -> list[dict[str, Any]]:
        """Return what the daemon complained about, apart from the events that the test expects."""
        return [
            record
            for record in self.records()
            if record["level"] not in ("DEBUG", "INFO") and record["event"] not in self.allowed
        ]

    def is_alive(self) -> bool:
        """Tell whether the daemon runs."""
        return self.process.poll() is None

    def descriptors(self) -> int:
        """Return how many descriptors the daemon has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextlib.contextmanager
def mounted(
    scratch: Path,
    source: Path,
    *arguments: str,
    allowed: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, OptionValue] | None = None,
) -> Iterator[Mounted]:
    """Serve a source for as long as the block runs; fail if the daemon died or complained.

    `allowed` are the events it may complain about, `options` those of the volume.
    """
    mountpoint = scratch / "mountpoint"
    mountpoint.mkdir(exist_ok=True)
    log_path = scratch / "daemon.log"
    command = [sys.executable, "-X", "dev", "-W", "error::DeprecationWarning"]
    command += [
        "-m",
        "tests.sidecar.directory.daemon",
        "--mountpoint",
        str(mountpoint),
        "--source",
        str(source),
    ]
    command += ["--options", json.dumps(options or {}), *arguments]
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=_REPOSITORY,
            env={**os.environ, **(environment or {})},
        )
    volume = Mounted(process, Path(f"/proc/{process.pid}/root{mountpoint}"), source, log_path, set(allowed))
    try:
        _wait_until_ready(volume)
        yield volume
        assert volume.is_alive(), f"the daemon died:\n{log_path.read_text()}"
        assert not volume.alarms(), f"the daemon complained: {volume.alarms()}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def run_as(uid: int, gid: int, root: Path, scenario: Callable[[], Any], groups: Sequence[int] = ()) -> Any:
    """Return what a scenario returns in a child of other credentials, whose working directory is `root`.

    The result travels as JSON. An OSError comes back as its errno's name.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read_end)
            os.chdir(root)
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            os.write(write_end, json.dumps(scenario()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    content = b""
    with open(read_end, "rb") as answer:
        content = answer.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"
    return json.loads(content)


def outcome(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what an operation returns, or the name of its errno."""
    try:
        return operation(*args, **kwargs)
    except OSError as error:
        import errno

        return errno.errorcode.get(error.errno or 0, "no errno")


def _wait_until_ready(volume: Mounted) -> None:
    assert volume.process.stdout is not None
    ready = wait_readable(volume.process.stdout.fileno(), _START_S)
    line = volume.process.stdout.readline() if ready else b""
    if line != b"ready\n":
        volume.process.send_signal(signal.SIGKILL)
        raise AssertionError(f"the daemon did not start:\n{volume.log_path.read_text()}")


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {"level": "UNREADABLE", "event": line}
