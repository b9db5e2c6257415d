"""Where the daemons of a node have their files, by the name of their target, and how a running one is found again."""

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import BinaryIO

from csi.credentials import read_credentials
from csi.targets import is_free_of_mounts
from sidemount.model.errors import HostFailure

INSTANCE_FILE = "instance"
_LOG_MAX_BYTES = 1 << 20


class DaemonPlaces:
    """The state directory's parts that belong to daemons."""

    def __init__(self, state_dir: str) -> None:
        """Make them. Raises OSError."""
        self._state_dir = state_dir
        self.make()

    def make(self) -> None:
        """Make what is not there, or not any more. Raises OSError."""
        for name, mode in (("run", 0o711), ("daemons", 0o700), ("logs", 0o700)):
            os.makedirs(f"{self._state_dir}/{name}", mode=mode, exist_ok=True)

    def instance(self) -> str:
        """Return what tells this state from every other, whatever it is called."""
        path = Path(self._state_dir) / INSTANCE_FILE
        with contextlib.suppress(FileNotFoundError):
            known = path.read_text("ascii", "replace").strip()
            if re.fullmatch("[0-9a-f]{16}", known):
                return known
        made = os.urandom(8).hex()
        aside = path.with_suffix(".new")
        aside.write_text(made)
        aside.rename(path)
        return made

    def run_dir(self, name: str) -> str:
        """Return the daemon's own directory."""
        return f"{self._state_dir}/run/{name}"

    def pid_file(self, name: str) -> str:
        """Return the file that a daemon writes before it becomes one."""
        return f"{self._state_dir}/daemons/{name}.pid"

    def log_file(self, name: str) -> str:
        """Return the daemon's log."""
        return f"{self._state_dir}/logs/{name}.log"

    def living(self, name: str) -> int:
        """Return the process of a target's daemon, 0 if none lives. A number that another process has by now is none."""
        try:
            with open(self.pid_file(name), encoding="ascii") as file:
                pid = int(file.read(32))
        except (OSError, ValueError):
            return 0
        return pid if self.run_dir(name) in arguments_of(pid) else 0

    def strangers(self, name: str) -> list[int]:
        """Return processes of an earlier state's daemon of a target: in our mount namespace, known to no file.

        Every process of a daemon has its arguments; of two targets with one name, one is in another namespace.
        """
        found = []
        for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]:
            arguments = arguments_of(pid)
            if "--run-dir" in arguments[:-1] and arguments[arguments.index("--run-dir") + 1].endswith(
                f"/run/{name}"
            ):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
                        found.append(pid)
        return found

    def open_log(self, name: str) -> BinaryIO:
        """Return the daemon's log, empty: what an earlier one wrote was told when it ended.

        That there cannot be one, on a full disk, is no reason not to serve.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.fdopen(os.open(self.log_file(name), flags, 0o600), "ab")
        except OSError:
            return open(os.devnull, "ab")

    def bound_log(self, name: str) -> None:
        """Empty a log that is too long. It is written at its end, wherever that is."""
        with contextlib.suppress(OSError):
            if os.stat(self.log_file(name)).st_size > _LOG_MAX_BYTES:
                os.truncate(self.log_file(name), 0)

    def credentials(self, name: str) -> list[str]:
        """Return what must never be told."""
        with contextlib.suppress(OSError):
            return list(read_credentials(f"{self.run_dir(name)}/secrets").values())
        return []

    def clear(self, name: str) -> None:
        """Take away what a daemon had that has ended. Raises HostFailure, OSError."""
        run_dir = self.run_dir(name)
        if not is_free_of_mounts(run_dir):
            raise HostFailure(f"something is still mounted in {run_dir}")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(run_dir)
        for path in (self.log_file(name), self.pid_file(name)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def arguments_of(pid: int) -> list[str]:
    """Return a process's arguments, none if there is no such process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read()).split("\0")
    except OSError:
        return []
