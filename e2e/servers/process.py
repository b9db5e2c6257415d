"""A server that runs as a process of its own: started on free ports, asked until it answers, ended as a whole."""

import errno
import http.client
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_LEASH = Path(__file__).with_name("leash.py")
_PORTS = range(20_000, 32_000)  # below those that the kernel gives to clients
_TRIES = 3
_READY_S = 120.0
_ENDED_S = 10.0
_ASK_S = 5.0
_TAIL_CHARS = 2_000
LOOPBACK = "127.0.0.1"


class ServerFault(Exception):
    """A server that did not start. The text has the end of its log."""


def free_port(*, above: int = 0) -> int:
    """Return a port of loopback that nobody listens on at this moment; with `above`, the one so far below it is free, too."""
    for port in random.sample(_PORTS, 200):
        if _is_free(port) and (not above or _is_free(port - above)):
            return port
    raise ServerFault(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


class ServerProcess:
    """One running server. `log` is what it prints; it stays after the end."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._name = Path(argv[0]).name
        with log.open("ab") as printed:
            # A bare interpreter: -I takes no environment, -S no site-packages.
            self._leash = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LEASH), *argv],
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=log.parent,
                env=dict(environment),
            )

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._leash.poll() is not None

    @property
    def pid(self) -> int:
        """The server's own, for what is measured of it: the only child of the process that holds it."""
        children = Path(f"/proc/{self._leash.pid}/task/{self._leash.pid}/children").read_text().split()
        return int(children[0])

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float = _READY_S) -> None:
        """Wait for the first true answer. An OSError or an HTTP one is a no. Raises ServerFault."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self.has_ended:
                raise ServerFault(f"{self._name} has ended with {self._leash.returncode}{self._tail()}")
            try:
                if is_ready():
                    return
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() > deadline:
                raise ServerFault(f"{self._name} does not answer after {timeout_s:g} s{self._tail()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it and all that it has started."""
        assert self._leash.stdin is not None
        self._leash.stdin.close()
        try:
            self._leash.wait(_ENDED_S)
        except subprocess.TimeoutExpired:
            self._leash.kill()
            self._leash.wait()

    def _tail(self) -> str:
        return f":\n{self.log.read_text(errors='replace')[-_TAIL_CHARS:]}"


def start(
    plan: Callable[[], tuple[Sequence[str], Callable[[], bool]]],
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> ServerProcess:
    """Start what `plan` says: an argv and how to ask whether it is ready. Planned again where it ended: its port was taken meanwhile.

    Raises ServerFault.
    """
    for left in reversed(range(_TRIES)):
        argv, is_ready = plan()
        server = ServerProcess(argv, log, environment or {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        try:
            server.wait_until(is_ready)
        except BaseException as fault:
            has_ended = server.has_ended
            server.stop()
            if isinstance(fault, ServerFault) and has_ended and left:
                continue
            raise
        return server
    raise AssertionError("not reached")


def answers(port: int, path: str = "/", *, method: str = "GET", body: bytes = b"", below: int = 500) -> bool:
    """Tell whether a request is answered with a status below that."""
    return status_of(port, path, method=method, body=body) < below


def status_of(port: int, path: str, *, method: str = "GET", body: bytes = b"") -> int:
    """Return the status that a request is answered with. Raises OSError, HTTPException."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_ASK_S)
    try:
        connection.request(method, path, body or None)
        return connection.getresponse().status
    finally:
        connection.close()
