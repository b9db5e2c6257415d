"""A pod of one volume without a kubelet: its keeper, its daemon in a process namespace as in a container, and restarts at once.

The process that runs this never looks into the mount, or it would wait for what it has just killed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.torture.log_tail import LogTail
from e2e.torture.variants import Variant
from sidecar.probe import ask
from sidemount.host.mount_table import is_fuse, read_mount_table
from sidemount.model.mountinfo import Mount, mounts_beneath
from sidemount.model.mountspec import KeeperConfig, KeeperMount, MountSpec, View, encode_keeper_config

VOLUME = "train"
ROOT = Path(__file__).parents[2]
_READY_S = 30.0
_END_S = 40.0
_CAPABILITIES = "-all,+chown,+dac_override,+fowner,+fsetid"  # what injection gives a `directory` daemon
_POLL_S = 0.002


class TortureError(Exception):
    """What must not happen has happened; the message says what."""


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of one run."""

    work: Path

    @property
    def mounts(self) -> Path:
        """Where the volume is shown."""
        return self.work / "mounts"

    @property
    def run(self) -> Path:
        """Sockets and state."""
        return self.work / "run"

    @property
    def source(self) -> Path:
        """What the volume shows."""
        return self.work / "source"

    @property
    def volume(self) -> Path:
        """The mount."""
        return self.mounts / VOLUME

    @property
    def daemon_log(self) -> Path:
        """What the daemon writes."""
        return self.work / "daemon.log"

    @property
    def keeper_log(self) -> Path:
        """What the keeper writes."""
        return self.work / "keeper.log"


class Stage:
    """The pod. `daemon_entry` is the module that runs as the daemon."""

    def __init__(self, work: Path, variant: Variant, daemon_entry: Sequence[str] = ("sidecar",)) -> None:
        self.places = Places(work)
        self._variant = variant
        self._daemon_entry = daemon_entry
        for directory in (self.places.mounts, self.places.run, self.places.source):
            directory.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "emptydir", self.places.mounts], check=True)
        subprocess.run(["mount", "--make-shared", self.places.mounts], check=True)
        self.daemon_events = LogTail(self.places.daemon_log)
        self.keeper_events = LogTail(self.places.keeper_log)
        self.keeper = self._start_keeper()
        self.daemon_started = 0.0  # of the monotonic clock
        self.daemon = self._start_daemon()

    # Processes ----------------------------------------------------------------------------------------

    def first_process(self) -> int:
        """Return the id of the daemon's first process, 0 if it is not there now."""
        return next(iter(_children(self.daemon.pid)), 0)

    def serving(self) -> int:
        """Return the id of the process that serves, 0 if none does now."""
        first = self.first_process()
        return next((pid for pid in _children(first) if _has_device(pid)), 0) if first else 0

    def processes(self) -> list[int]:
        """Return the ids of all processes of the daemon."""
        first = self.first_process()
        return [first, *_children(first)] if first else []

    def restart_what_ended(self) -> None:
        """Do what a kubelet does that is in no hurry to wait."""
        if self.keeper.poll() is not None:
            self.keeper = self._start_keeper()
        if self.daemon.poll() is not None:
            self.daemon = self._start_daemon()

    def is_live(self) -> bool:
        """Tell whether the keeper says so."""
        answer = ask(str(self.places.run / VOLUME), timeout_s=10)
        return answer == "ready" or answer.startswith("ready: ")

    def wait_live(self) -> None:
        """Wait until the volume is live, restarting what ends. Raises TortureError."""
        self.wait_for(self.is_live, "the volume to be live")

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition, restarting what ends. Raises TortureError with the logs."""
        until = time.monotonic() + _READY_S
        while not condition():
            self.restart_what_ended()
            if time.monotonic() > until:
                raise TortureError(f"waited {_READY_S:g} s in vain for {what}\n{self.log_tails()}")
            time.sleep(_POLL_S)

    def end(self) -> list[str]:
        """End the pod as a kubelet would, and return what was not as it must be."""
        faults = []
        self.daemon_events.read()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first_process() or self.daemon.pid, signal.SIGTERM)
        self.keeper.terminate()
        for name, process in (("keeper", self.keeper), ("daemon", self.daemon)):
            try:
                code = process.wait(_END_S)
            except subprocess.TimeoutExpired:
                faults.append(f"the {name} does not end")
                process.kill()
                process.wait(5)
                continue
            if code != 0:
                faults.append(f"the {name} has ended with code {code}")
        left = [mount for mount in self._mounts() if is_fuse(mount)]
        faults += [f"left mounted: {mount}" for mount in left]
        for line in (self.daemon_events, self.keeper_events):
            line.close()
        subprocess.run(["umount", "-l", self.places.mounts], check=False)
        return faults

    def kill_all(self) -> None:
        """End everything, whatever state it is in, and leave nothing mounted in the way of whoever tidies up."""
        for process in (self.daemon, self.keeper):
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        for mount in reversed(self._mounts()):
            subprocess.run(["umount", "-l", mount.mount_point], check=False)

    def log_tails(self) -> str:
        """Return the last lines of both logs."""
        tails = []
        for path in (self.places.keeper_log, self.places.daemon_log):
            lines = path.read_text().splitlines()[-15:]
            tails.append(f"--- {path.name}\n" + "\n".join(lines))
        return "\n".join(tails)

    def _mounts(self) -> tuple[Mount, ...]:
        return mounts_beneath(read_mount_table(), str(self.places.work))

    # Starting -----------------------------------------------------------------------------------------

    def _start_keeper(self) -> "subprocess.Popen[bytes]":
        spec = MountSpec(
            volume=VOLUME,
            driver_class="directory",
            source=f"dir://{self.places.source}",
            filesystem="directory",
            options=self._variant.options,
            takeover=True,
            uid=0,
            hung_after_s=self._variant.hung_after_s,
        )
        mount = KeeperMount(spec=spec, views=(View(name=VOLUME),))
        config = encode_keeper_config(KeeperConfig(mounts=(mount,)))
        argv = [sys.executable, "-S", "-E", "-m", "sidecar", "keeper", "--run-dir", str(self.places.run)]
        environment = {**os.environ, "SIDEMOUNT_MOUNTS": config}
        return self._start(
            [*argv, "--mounts-dir", str(self.places.mounts)], self.places.keeper_log, environment
        )

    def _start_daemon(self) -> "subprocess.Popen[bytes]":
        container = ["unshare", "--pid", "--fork", "--kill-child=SIGKILL"]
        bounds = ["setpriv", f"--bounding-set={_CAPABILITIES}", "--inh-caps=-all", "--no-new-privs"]
        entry = [sys.executable, "-m", *self._daemon_entry, "daemon"]
        places = ["--run-dir", str(self.places.run / VOLUME), "--source", str(self.places.source)]
        self.daemon_started = time.monotonic()
        return self._start([*container, *bounds, *entry, *places], self.places.daemon_log, dict(os.environ))

    def _start(self, argv: list[str], log: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        with log.open("ab") as output:
            return subprocess.Popen(
                argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )


def _children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _has_device(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return any(_link(f"/proc/{pid}/fd/{fd}") == "/dev/fuse" for fd in os.listdir(f"/proc/{pid}/fd"))
    return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
