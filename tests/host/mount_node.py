"""A mount namespace for a test: what it mounts and starts there is gone afterwards, whatever hangs."""

import contextlib
import ctypes
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sidemount.host.fusectl import FuseControl
from sidemount.host.readiness import wait_readable
from sidemount.model.mountinfo import Mount, parse_mountinfo

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x20000


class MountNode:
    """One mount namespace, private to the machine's or a slave of another node's, as a container's is of its host's."""

    def __init__(self, work: Path, parent: "MountNode | None" = None) -> None:
        self.work = work
        self._processes: list[subprocess.Popen[bytes]] = []
        propagation = "private" if parent is None else "slave"
        into = [] if parent is None else ["nsenter", "-t", str(parent.pid), "-m"]
        self._holder = subprocess.Popen(
            [*into, "unshare", "-m", "--propagation", propagation, "sh", "-c", "echo up; exec sleep 1000000"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        self.pid: int = self._holder.pid
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"
        self._holder.stdout.close()

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path | None = None,
        uid: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program in the node; its pid is the program's own. Its output goes to `log`."""
        enter = ["nsenter", "-t", str(self.pid), "-m", f"--wd={ROOT}"]
        become = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        with contextlib.ExitStack() as stack:
            output: Any = stack.enter_context(log.open("ab")) if log is not None else subprocess.DEVNULL
            process = subprocess.Popen(
                [*enter, *become, *map(str, argv)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
            )
        self._processes.append(process)
        return process

    def run(
        self, *argv: str | Path, timeout_s: float = 30.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the node and return what it wrote."""
        return subprocess.run(
            ["nsenter", "-t", str(self.pid), "-m", f"--wd={ROOT}", *map(str, argv)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=check,
            stdin=subprocess.DEVNULL,
        )

    def call(self, function: Callable[[], T], *, timeout_s: float = 30.0) -> T:
        """Return `function()`, called by a child in the node; what it raises is raised here. Late is a TimeoutError."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _call_in(self.pid, function, writer)
        os.close(writer)
        try:
            value: T = _result(reader, timeout_s)
            return value
        finally:
            os.close(reader)
            os.kill(pid, signal.SIGKILL)
            _reap(pid)

    def mounts(self) -> tuple[Mount, ...]:
        """Return the node's mount table."""
        text = Path(f"/proc/{self.pid}/mountinfo").read_text("utf-8", "surrogateescape")
        return parse_mountinfo(text)

    def mounts_beneath(self, path: Path) -> list[Mount]:
        """Return the node's mounts at or below a directory."""
        return [
            m for m in self.mounts() if m.mount_point == str(path) or m.mount_point.startswith(f"{path}/")
        ]

    def fuse_mounts(self) -> list[Mount]:
        """Return the node's FUSE mounts below its working directory."""
        return [m for m in self.mounts_beneath(self.work) if m.fstype.startswith("fuse")]

    def close(self) -> None:
        """End everything. Connections first: nothing that waits on one can be killed."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            abort_connections({m.minor for m in self.fuse_mounts()})
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        self._holder.kill()
        self._holder.wait(5)


def abort_connections(numbers: set[int]) -> None:
    """Abort FUSE connections by number."""
    control = FuseControl()
    try:
        for number in numbers:
            control.abort(number, lambda: True)
    finally:
        control.close()


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Return a directory with short, open parents, and remove it."""
    path = Path(tempfile.mkdtemp(prefix="sm", dir="/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def eventually(
    condition: Callable[[], Any], *, timeout_s: float = 30.0, what: str = "", every_s: float = 0.02
) -> Any:
    """Return the condition's value as soon as it is true; fail with `what` if it never is."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not within {timeout_s:g} s: {what or condition}"
        time.sleep(every_s)


def _call_in(target: int, function: Callable[[], Any], writer: int) -> None:
    try:
        namespace = os.open(f"/proc/{target}/ns/mnt", os.O_RDONLY)
        if _LIBC.setns(namespace, _CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        outcome: tuple[bool, Any] = (True, function())
    except BaseException as error:
        outcome = (False, error)
    try:
        with os.fdopen(writer, "wb") as file:
            file.write(pickle.dumps(outcome))
    except BaseException as error:
        sys.stderr.write(f"{outcome!r}: {error!r}\n")
    finally:
        os._exit(0)


def _result(reader: int, timeout_s: float) -> Any:
    data = b""
    until = time.monotonic() + timeout_s
    while True:
        if not wait_readable(reader, max(0.0, until - time.monotonic())):
            raise TimeoutError(f"not within {timeout_s:g} s")
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        data += chunk
    is_good, value = pickle.loads(data)
    if is_good:
        return value
    raise value


def _reap(pid: int) -> None:
    for _ in range(100):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
