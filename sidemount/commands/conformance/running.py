"""A stand that runs: a keeper and a daemon as a pod has them, the client in it, and what they have told."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sidecar.probe import ask
from sidemount.commands.conformance.plan import Stand, stand_dir
from sidemount.host import mount_api
from sidemount.host.mount_table import read_mount_table
from sidemount.model.mountspec import KeeperConfig, KeeperMount, View, encode_keeper_config
from sidemount.model.names import MOUNTS_ENV, POD_UID_ENV

_POLL_S = 0.03
_ASK_S = 2.0
_STOP_S, _FLUSH_S = 5.0, 10.0
_ENDS_S = 30.0
_SECRET_MODE = 0o444  # as a pod's: kubelet gives them to root, so another user needs the bit for others
_PASSED_ON = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
_OURS = str(
    Path(__file__).resolve().parents[3]
)  # where our own modules are found, whatever the working directory


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How a stand ended. `daemon` is its exit code, None if it had to be killed; `left` is what was still there."""

    keeper: int | None
    daemon: int | None
    took_s: float
    left: tuple[str, ...]


class Running:
    """One stand. Its processes are of this PID namespace; none outlives `close`."""

    def __init__(self, base: str, stand: Stand, capabilities: Sequence[str], views: Sequence[View]) -> None:
        self.stand = stand
        self._dir = Path(base) / stand.name
        self._capabilities = tuple(capabilities)
        self._mount = KeeperMount(spec=stand.spec, views=tuple(views))
        for name in ("mounts", "run", "secrets", "cache"):
            (self._dir / name).mkdir(parents=True)
        self._dir.chmod(0o755)
        os.chown(self._dir / "cache", stand.spec.uid, stand.spec.uid)
        for key, content in stand.secrets.items():
            path = Path(stand_dir(base, stand.name, "secrets")) / key
            path.write_text(content, errors="surrogateescape")
            path.chmod(_SECRET_MODE)
        self.keeper = self._start("keeper", self._keeper_argv())
        self.daemon = self._start("daemon", self._daemon_argv())

    # What it shows ------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """Where the volume is shown. For children alone."""
        return self.place(self.stand.spec.volume)

    def place(self, view: str) -> str:
        """Where a view is shown. For children alone."""
        return f"{self._dir}/mounts/{view}"

    def connection(self) -> int | None:
        """Return the number of the connection that applications see."""
        here = [mount for mount in read_mount_table() if mount.mount_point == self.root]
        return here[-1].minor if here else None

    def wait_live(self, timeout_s: float) -> str:
        """Return "" once every view is live, or why that does not come."""
        until = time.monotonic() + timeout_s
        while True:
            answer = ask(f"{self._dir}/run/{self.stand.spec.volume}", timeout_s=_ASK_S)
            if answer == "ready" or answer.startswith("ready: "):
                return ""
            if (code := self.daemon.poll()) is not None:
                return f"it has ended with code {code}{self._last_words()}"
            if self.keeper.poll() is not None:
                return f"the keeper has ended: {self._told('keeper')[-1:]}"
            if time.monotonic() > until:
                return f"not live after {timeout_s:g} s: {answer.removeprefix('not ready: ')}{self._last_words()}"
            time.sleep(_POLL_S)

    def restart_ended(self) -> None:
        """Start the daemon's container again if it has ended, as kubelet does."""
        if self.daemon.poll() is not None:
            self.daemon = self._start("daemon", self._daemon_argv())

    # Who serves ---------------------------------------------------------------------------------------

    def serving(self) -> int:
        """Return the process that serves at present, by the daemon's log; 0 if none has yet."""
        name = "serving" if self.stand.spec.filesystem else "client_started"
        found = [event for event in self.events("daemon") if event.get("event") == name]
        return int(found[-1]["pid"]) if found else 0

    def output(self) -> list[str]:
        """Return the lines that the client has written, as the log has them."""
        return [
            str(event["line"]) for event in self.events("daemon") if event.get("event") == "client_output"
        ]

    def events(self, program: str) -> list[dict[str, Any]]:
        """Return what a program has logged."""
        found = []
        for line in self._told(program):
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def faults(self) -> list[str]:
        """Return what our own programs have found wrong on the daemon's side."""
        return [str(event["fault"]) for event in self.events("daemon") if event.get("fault")]

    def log_text(self) -> str:
        """Return all that keeper and daemon have logged."""
        return "\n".join((*self._told("keeper"), *self._told("daemon")))

    # The end ------------------------------------------------------------------------------------------

    def end(self) -> Ending:
        """End it as a pod ends, and tell what was left of it."""
        began = time.monotonic()
        family = family_of(self.daemon.pid)
        for process in (self.daemon, self.keeper):
            process.send_signal(signal.SIGTERM)
        codes: list[int | None] = []
        for process in (self.keeper, self.daemon):
            try:
                codes.append(process.wait(max(0.1, began + _ENDS_S - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        took_s = time.monotonic() - began
        mounts = [mount.mount_point for mount in self._mounts()]
        lived = [f"process {pid} ({name})" for pid, name in family.items() if _is_alive(pid)]
        return Ending(keeper=codes[0], daemon=codes[1], took_s=took_s, left=(*mounts, *lived))

    def close(self) -> None:
        """Kill whatever is left, and take its mounts away."""
        family = family_of(self.daemon.pid)
        for process in (self.daemon, self.keeper):
            process.kill()
        for pid in family:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for mount in self._mounts():
            _abort(mount.minor)
        for mount in reversed(self._mounts()):
            with suppress(Exception):
                mount_api.detach(mount.mount_point)
        for process in (self.daemon, self.keeper):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_S)

    # Helpers ------------------------------------------------------------------------------------------

    def _mounts(self) -> list[Any]:
        return [m for m in read_mount_table() if m.mount_point.startswith(f"{self._dir}/mounts/")]

    def _last_words(self) -> str:
        """Return what it said last: the client, or our own programs if that said nothing."""
        lines = self.output()
        if lines:
            return f": {lines[-1]}"
        said = self.faults() or self._told("daemon")  # not even a log: a traceback, or what setpriv says
        return f": {said[-1]}" if said else ""

    def _told(self, program: str) -> list[str]:
        return (self._dir / f"{program}.log").read_text(errors="replace").splitlines()

    def _start(self, program: str, argv: Sequence[str]) -> "subprocess.Popen[bytes]":
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_OURS, os.environ.get("PYTHONPATH", ""))))
        if program == "keeper":
            environment[MOUNTS_ENV] = encode_keeper_config(KeeperConfig(mounts=(self._mount,)))
            environment[POD_UID_ENV] = f"check-{self.stand.name}"
        with (self._dir / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/"
            )

    def _keeper_argv(self) -> tuple[str, ...]:
        places = ("--mounts-dir", f"{self._dir}/mounts", "--run-dir", f"{self._dir}/run")
        return (sys.executable, "-m", "sidecar", "keeper", *places)

    def _daemon_argv(self) -> tuple[str, ...]:
        spec, here = self.stand.spec, str(self._dir)
        argv = [sys.executable, "-m", "sidecar", "daemon", "--run-dir", f"{here}/run/{spec.volume}"]
        argv += ["--secrets", f"{here}/secrets", "--cache", f"{here}/cache", "--mounts-dir", f"{here}/mounts"]
        argv += ["--stop-seconds", str(_STOP_S), "--flush-seconds", str(_FLUSH_S)]
        if self.stand.source_dir:
            argv += ["--source", self.stand.source_dir]
        return (*_less_rights(spec.uid, self._capabilities), *argv) if spec.descriptor else tuple(argv)


@contextmanager
def running(base: str, stand: Stand, capabilities: Sequence[str], views: Sequence[View]) -> Iterator[Running]:
    """Start a stand, and leave nothing of it."""
    started = Running(base, stand, capabilities, views)
    try:
        yield started
    finally:
        started.close()


def parent_and_name(pid: int) -> tuple[int, str] | None:
    """Return a process's parent and name, None if it is gone or has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return None if fields[0] in "ZX" else (int(fields[1]), name)


def _less_rights(uid: int, capabilities: Sequence[str]) -> tuple[str, ...]:
    """Return what starts a program as a container without privilege does."""
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])
    sets = (f"--bounding-set={kept}", f"--inh-caps={kept}", f"--ambient-caps={kept}")
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *sets, "--no-new-privs")


def family_of(pid: int) -> dict[int, str]:
    """Return a process and all that descend from it, with their names."""
    everybody = {int(e): parent_and_name(int(e)) for e in os.listdir("/proc") if e.isdecimal()}
    found: dict[int, str] = {}
    wanted = [pid]
    while wanted:
        one = wanted.pop()
        known = everybody.get(one)
        if known is not None and one not in found:
            found[one] = known[1]
            wanted += [each for each, told in everybody.items() if told is not None and told[0] == one]
    return found


def _is_alive(pid: int) -> bool:
    return parent_and_name(pid) is not None


def _abort(connection: int) -> None:
    with suppress(OSError):
        Path(f"/sys/fs/fuse/connections/{connection}/abort").write_text("1")
