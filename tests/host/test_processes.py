"""Processes by descriptor, and what a process lets others do to it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sidemount.host import pidfd, process_attributes, syscalls
from sidemount.host.mount_table import connection_of
from sidemount.model.errors import HostFailure, Unsupported
from tests.host.mount_node import eventually


def test_a_process_is_watched_and_killed_by_descriptor() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    descriptor = pidfd.pidfd_open(process.pid)
    assert not os.get_inheritable(descriptor)
    assert not pidfd.has_exited(descriptor)
    pidfd.pidfd_send_signal(descriptor, signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    assert pidfd.has_exited(descriptor)
    with pytest.raises(HostFailure, match="pidfd_send_signal SIGKILL: No such process"):
        pidfd.pidfd_send_signal(descriptor, signal.SIGKILL)
    os.close(descriptor)


def test_the_peer_of_a_socket_is_known_by_descriptor(tmp_path: Path) -> None:
    """Kernel 6.5."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        script = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect({path!r}); s.recv(1)"
        peer = subprocess.Popen([sys.executable, "-c", script])
        connection, _ = listener.accept()
        with connection:
            descriptor = pidfd.peer_pidfd(connection)
            assert descriptor is not None
            assert not pidfd.has_exited(descriptor)
            peer.kill()
            peer.wait(20)
            assert eventually(lambda: pidfd.has_exited(descriptor))
            os.close(descriptor)


def test_something_that_is_no_socket_of_a_peer_has_none() -> None:
    with socket.socket(socket.AF_INET) as unconnected:
        assert pidfd.peer_pidfd(unconnected) is None


@pytest.mark.root
def test_a_process_that_forbids_inspection_gives_nothing_to_its_own_user(tmp_path: Path) -> None:
    """Its memory and descriptors hold credentials; an application may run as the same user."""
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from sidemount.host import process_attributes as p\n"
        "if sys.argv[2] == 'yes': p.forbid_inspection()\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    for forbids in ("yes", "no"):
        process = subprocess.Popen(
            [
                "setpriv",
                "--reuid=1234",
                "--regid=1234",
                "--clear-groups",
                sys.executable,
                "-c",
                script,
                os.getcwd(),
                forbids,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        look = subprocess.run(
            ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "ls", f"/proc/{process.pid}/fd"],
            capture_output=True,
            check=False,
        )
        process.kill()
        process.communicate()
        assert (look.returncode != 0) is (forbids == "yes"), look


def test_new_privileges_are_given_up_for_good() -> None:
    pid = os.fork()
    if pid == 0:
        process_attributes.forbid_new_privileges()
        status = Path("/proc/self/status").read_text()
        os._exit(0 if "NoNewPrivs:\t1" in status else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_machine_whose_numbers_are_unknown_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = os.uname_result(("Linux", "node", "6.18", "#1", "riscv64"))
    monkeypatch.setattr("os.uname", lambda: unknown)
    with pytest.raises(Unsupported, match=r"openat2: .*riscv64.*; run on one of x86_64, aarch64"):
        syscalls.call(syscalls.OPENAT2, 0, b"", 0, 0, target="x")


@pytest.mark.fuse
def test_a_device_without_a_connection_has_no_number() -> None:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    assert connection_of(device) is None
    os.close(device)
