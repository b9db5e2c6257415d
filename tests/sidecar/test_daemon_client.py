"""A daemon whose client is a program: what it does when the program dies, and when the keeper says stop at the same moment."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar import daemon_codes
from sidemount.host.handover import Bye, GiveUp, Hello, Ready, Serve, Stop
from sidemount.model.mountspec import MountSpec
from tests.host.keeper_pod import is_alive, wait_stopped
from tests.host.mount_node import eventually, scratch_directory
from tests.sidecar.fake_keeper import FakeKeeper, Line

WORKED_S = 1.1  # a client that lived shorter is not started again
DEADLINE_S = 20.0


class Daemon:
    """A daemon's first process, with a keeper of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.keeper = FakeKeeper(directory)
        self.keeper.listener.settimeout(DEADLINE_S)
        argv = [
            sys.executable,
            "-m",
            "sidecar",
            "daemon",
            "--run-dir",
            str(directory),
            "--mounts-dir",
            str(directory),
        ]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def serve(self, *command: str) -> Line:
        """Take the daemon and have it start a client."""
        line = self.keeper.accept()
        line.connection.settimeout(DEADLINE_S)
        hello = line.hear_until(Hello)
        assert isinstance(hello, Hello)
        assert hello.generation == 0, "it has nothing to bring back"
        spec = MountSpec(
            volume="v", driver_class="c", source="x://y", command=command, descriptor=False, uid=os.geteuid()
        )
        line.say(Serve(spec=spec, generation=1, continued=False, init=b"", heartbeat_ms=200))
        line.hear_until(Ready)
        return line

    @property
    def client(self) -> int:
        """Return the client's process id."""
        (pid,) = children(self.process.pid)
        return pid

    def close(self) -> None:
        """End everything."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self.keeper.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """Return a daemon that has not been taken."""
    with scratch_directory() as directory:
        daemon = Daemon(directory)
        yield daemon
        daemon.close()


def test_a_client_that_dies_after_it_has_worked_is_given_a_new_connection(daemon: Daemon) -> None:
    line = daemon.serve("sleep", "1000")
    first = daemon.client
    time.sleep(WORKED_S)
    os.kill(first, signal.SIGKILL)
    bye = line.hear_until(Bye)
    assert isinstance(bye, Bye)
    assert not bye.clean
    line.hear_until(GiveUp)
    line.close()
    daemon.serve("sleep", "1000")
    assert daemon.client != first
    assert daemon.process.poll() is None


def test_a_stop_that_comes_with_its_death_ends_nothing_else(daemon: Daemon) -> None:
    """The keeper has seen the end of the client's mount first. Whatever the daemon hears of first, it asks for a new connection."""
    line = daemon.serve("sleep", "1000")
    time.sleep(WORKED_S)
    client = daemon.client
    wait_stopped(daemon.process.pid)
    os.kill(client, signal.SIGKILL)
    line.say(Stop())
    os.kill(daemon.process.pid, signal.SIGCONT)
    line.hear_until(GiveUp)
    line.close()
    again = daemon.serve("sleep", "1000")
    assert daemon.process.poll() is None
    again.say(Stop())
    assert daemon.process.wait(DEADLINE_S) == 0


def test_a_client_that_dies_at_once_ends_its_container(daemon: Daemon) -> None:
    daemon.serve("sh", "-c", "exit 7")
    assert daemon.process.wait(DEADLINE_S) == 7


def test_a_client_that_ends_at_once_as_if_all_were_well_has_failed(daemon: Daemon) -> None:
    daemon.serve("sh", "-c", "echo no such bucket; exit 0")
    assert daemon.process.wait(DEADLINE_S) == daemon_codes.NOT_STARTED


def test_a_shell_s_code_for_our_own_signal_is_no_failure(daemon: Daemon) -> None:
    line = daemon.serve("sh", "-c", "trap 'exit 143' TERM; sleep 1000 & wait")
    time.sleep(WORKED_S)
    line.say(Stop())
    assert daemon.process.wait(DEADLINE_S) == 0


def test_what_a_client_has_started_ends_before_the_next_one_is_asked_for(daemon: Daemon) -> None:
    line = daemon.serve("sh", "-c", "(setsid sh -c 'sleep 1000 & sleep 1001') & exec sleep 1002")
    shell = daemon.client
    found = eventually(lambda: _sleepers(shell), what="the client's helpers run")
    time.sleep(WORKED_S)
    os.kill(shell, signal.SIGKILL)
    line.hear_until(GiveUp)
    assert not [pid for pid in found if is_alive(pid)]


def _sleepers(client: int) -> list[int]:
    """Return the client's two helpers, once both are there."""
    family = [client]
    for pid in family:
        family += children(pid)
    found = [pid for pid in family[1:] if _program(pid) == "sleep"]
    return found if len(found) == 2 else []


def children(pid: int) -> list[int]:
    """Return the ids of a process's children, none if it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


MET_BY_A_SIGNAL = """
import os, signal
from unittest.mock import MagicMock
from sidecar.daemon_client_server import ClientServer, Restarts
from sidecar.daemon_settings import DaemonSettings, Order
from sidemount.host.handover import Serve
from sidemount.host.logs import log
from sidemount.model.mountspec import MountSpec

spec = MountSpec(volume="v", driver_class="c", source="x://y", command=("sleep", "1000"), descriptor=False, uid=0)
order = Order(Serve(spec=spec, generation=1, continued=False, init=b"", heartbeat_ms=200), -1)
master = MagicMock()
server = ClientServer(order, MagicMock(DaemonSettings, secrets="", mounts_dir="/"), master, Restarts(), log("daemon"))
server.start()
child = int(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read())
os.kill(child, signal.SIGKILL)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
server.kill(1)
server.reap()
print(master.ended.call_args)
"""


def test_the_end_of_a_client_that_a_signal_was_too_late_for_is_noticed() -> None:
    """Sending a signal looks whether the program is there, and takes it off the process table if not."""
    done = subprocess.run(
        [sys.executable, "-c", MET_BY_A_SIGNAL],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout == "call(137, clean=False)\n", done
