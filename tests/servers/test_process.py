"""A server ends with the one that started it, whatever that dies of, and takes its children along."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.servers.process import ServerFault, ServerProcess, free_port, start

_SPAWNS = "import subprocess, sys, time; p = subprocess.Popen(['/bin/sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
_HOLDS = """
import sys, time
from pathlib import Path
from e2e.servers.process import ServerProcess
server = ServerProcess([sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]), {})
server.wait_until(lambda: bool(server.log.read_text()))
print("ready", flush=True)
time.sleep(600)
"""


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait_gone(*pids: int) -> None:
    deadline = time.monotonic() + 20
    while not all(_is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


def test_stopping_ends_the_server_and_its_children(tmp_path: Path) -> None:
    server = ServerProcess([sys.executable, "-c", _SPAWNS], tmp_path / "log", {})
    server.wait_until(lambda: bool(server.log.read_text()))
    pid, child = server.pid, int(server.log.read_text())
    server.stop()
    _wait_gone(pid, child)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_a_killed_owner(tmp_path: Path, number: int) -> None:
    log = tmp_path / "log"
    argv = [sys.executable, "-c", _HOLDS, str(log), _SPAWNS]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path.cwd()) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        child = int(log.read_text())
        os.kill(owner.pid, number)
    _wait_gone(child)


def test_a_server_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    def plan() -> tuple[list[str], Callable[[], bool]]:
        return ["/bin/sh", "-c", "echo no disk; exit 3"], lambda: False

    with pytest.raises(ServerFault, match=r"(?s)ended with 3.*no disk"):
        start(plan, tmp_path / "log")


def test_a_server_whose_port_was_taken_gets_another(tmp_path: Path) -> None:
    tried: list[int] = []

    def plan() -> tuple[list[str], Callable[[], bool]]:
        tried.append(free_port())
        script = "exit 1" if len(tried) == 1 else "exec sleep 600"
        return ["/bin/sh", "-c", script], lambda: len(tried) == 2

    start(plan, tmp_path / "log").stop()
    assert len(tried) == 2


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = ServerProcess(["/no/such/program"], tmp_path / "log", {})
    with pytest.raises(ServerFault, match="/no/such/program: No such file"):
        server.wait_until(lambda: False)
    server.stop()
