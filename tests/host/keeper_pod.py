"""A pod's keeper and daemons on a MountNode, the way kubelet would start them, and what their tests look at."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidemount.model.mountinfo import layers_at
from sidemount.model.mountspec import KeeperConfig, KeeperMount, MountSpec, View, encode_keeper_config
from sidemount.model.names import view_name
from tests.host.mount_node import MountNode, eventually

PYTHON = sys.executable


def directory_spec(volume: str = "train", **changes: Any) -> MountSpec:
    """Return the spec of a `directory` volume that root serves."""
    given = {
        "volume": volume,
        "driver_class": "directory",
        "source": "dir:///srv/data",
        "filesystem": "directory",
        "uid": 0,
        **changes,
    }
    return MountSpec(**given)


def view(volume: str, sub_path: str = "", *, read_only: bool = False) -> View:
    """Return a view as the webhook names it."""
    return View(name=view_name(volume, sub_path, read_only), sub_path=sub_path, read_only=read_only)


@dataclass
class Pod:
    """One keeper and its daemons."""

    node: MountNode
    mounts: list[KeeperMount]
    keeper_flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    keeper: "subprocess.Popen[bytes]" = field(init=False)
    daemons: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        for directory in (self.mounts_dir, self.run_dir):
            directory.mkdir(exist_ok=True)
        self.node.run("mount", "-t", "tmpfs", "emptydir", self.mounts_dir)
        self.node.run("mount", "--make-shared", self.mounts_dir)
        for mount in self.mounts:
            self.source(mount.spec.volume).mkdir(exist_ok=True)

    @property
    def mounts_dir(self) -> Path:
        """The Memory emptyDir of mount points, as the keeper sees it."""
        return self.node.work / "mounts"

    @property
    def run_dir(self) -> Path:
        """The emptyDir of sockets."""
        return self.node.work / "run"

    @property
    def keeper_log(self) -> Path:
        """The keeper's output."""
        return self.node.work / "keeper.log"

    def source(self, volume: str) -> Path:
        """What a `directory` volume shows."""
        return self.node.work / f"source-{volume}"

    def daemon_log(self, volume: str) -> Path:
        """A daemon's output."""
        return self.node.work / f"daemon-{volume}.log"

    def place(self, name: str) -> Path:
        """Where a view is, for programs in the node."""
        return self.mounts_dir / name

    def seen(self, name: str) -> Path:
        """Where a view is, for this process. Never for what may hang."""
        return Path(f"/proc/{self.node.pid}/root") / str(self.place(name)).lstrip("/")

    def start_keeper(self, *entry: str) -> "subprocess.Popen[bytes]":
        """Start the keeper's container. `entry` is another module than ours, with its arguments."""
        config = encode_keeper_config(KeeperConfig(mounts=tuple(self.mounts)))
        module = entry or ("sidecar", "keeper")
        argv = [PYTHON, "-S", "-E", "-m", *module, "--mounts-dir", self.mounts_dir]
        self.keeper = self.node.start(
            [*map(str, argv), "--run-dir", str(self.run_dir), *self.keeper_flags],
            log=self.keeper_log,
            environment={"SIDEMOUNT_MOUNTS": config, **self.environment},
        )
        return self.keeper

    def start_daemon(
        self, volume: str = "train", *flags: str, entry: tuple[str, ...] = ("sidecar", "daemon")
    ) -> "subprocess.Popen[bytes]":
        """Start a daemon's container, with its user. `entry` is the module to run, with its first arguments."""
        spec = next(mount.spec for mount in self.mounts if mount.spec.volume == volume)
        argv: list[str | Path] = [PYTHON, "-m", *entry, "--run-dir", self.run_dir / volume]
        process = self.node.start(
            [*argv, "--source", self.source(volume), "--mounts-dir", self.mounts_dir, *flags],
            log=self.daemon_log(volume),
            uid=spec.uid or None,
        )
        self.daemons[volume] = process
        return process

    def start(self) -> "Pod":
        """Start everything and wait until every volume is live."""
        self.start_keeper()
        for mount in self.mounts:
            self.start_daemon(mount.spec.volume)
        self.wait_ready()
        return self

    def wait_ready(self, *volumes: str, timeout_s: float = 40.0) -> None:
        """Wait until the probe of every volume says so."""
        for volume in volumes or tuple(mount.spec.volume for mount in self.mounts):
            until = time.monotonic() + timeout_s
            while (answer := self.probe(volume)) != "ready":
                assert time.monotonic() < until, f"{volume}: {answer}\n{self.log_text()}"
                time.sleep(0.05)

    def probe(self, volume: str = "train") -> str:
        """Return what a probe container says."""
        probe = (PYTHON, "-S", "-E", "-m", "sidecar", "probe", "--run-dir")
        done = self.node.run(*probe, self.run_dir / volume, timeout_s=30, check=False)
        answer = done.stdout.strip()
        is_live = answer == "ready" or answer.startswith("ready: ")
        assert done.returncode == (0 if is_live else 1), done
        return answer

    def probe_hung(self, volume: str = "train") -> str:
        """Return what a container's liveness probe says."""
        probe = (PYTHON, "-S", "-E", "-m", "sidecar", "probe", "--ask", "hung", "--run-dir")
        done = self.node.run(*probe, self.run_dir / volume, timeout_s=30, check=False)
        answer = done.stdout.strip()
        assert done.returncode == answer.startswith("hung: "), done
        return answer

    def end(self, *, timeout_s: float = 30.0) -> int:
        """End the pod as a kubelet does whose time is short, everything at once, and return the keeper's exit code."""
        for process in (*self.daemons.values(), self.keeper):
            process.send_signal(signal.SIGTERM)
        return self.keeper.wait(timeout_s)

    def kill_daemon(self, volume: str = "train") -> None:
        """SIGKILL a daemon's first process, and wait for the end of all."""
        processes = self.processes(volume)
        self.daemons[volume].kill()
        self.daemons[volume].wait(5)
        eventually(lambda: not any(map(is_alive, processes)), what="the daemon's processes end")

    def processes(self, volume: str = "train") -> list[int]:
        """Return the process ids of a daemon: its first process, and those that serve or wait."""
        return _with_children(self.daemons[volume].pid)

    def stop_daemon(self, volume: str = "train") -> None:
        """Stop all processes of a daemon, the first one first: it would replace the others."""
        for pid in self.processes(volume):
            wait_stopped(pid)

    def serving(self, volume: str = "train") -> int:
        """Return the id of the process that serves, as the daemon's log tells it last."""
        events = self.events(self.daemon_log(volume))
        return int(next(event["pid"] for event in reversed(events) if event["event"] == "serving"))

    def layers(self, name: str) -> int:
        """Return how many mounts are stacked at a view."""
        return len(layers_at(self.node.mounts(), str(self.place(name))))

    def events(self, log: Path | None = None) -> list[dict[str, Any]]:
        """Return the events of a log; every line must be one. The last one may be being written."""
        text = (log or self.keeper_log).read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def names(self, log: Path | None = None) -> list[str]:
        """Return the names of a log's events."""
        return [str(event["event"]) for event in self.events(log)]

    def log_text(self) -> str:
        """Return all logs, for a failure's message."""
        return "".join(
            f"--- {path.name}\n{path.read_text()}" for path in sorted(self.node.work.glob("*.log"))
        )


def _with_children(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(found for child in children for found in _with_children(int(child)))]


def is_running(process: "subprocess.Popen[bytes]") -> bool:
    """Tell whether a process has not ended."""
    return process.poll() is None


def is_alive(pid: int) -> bool:
    """Tell whether a process has not ended; one that nobody has reaped yet has."""
    try:
        return process_state(pid) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between open and read
        return False


def process_state(pid: int) -> str:
    """Return a process's state letter."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_stopped(pid: int) -> None:
    """Wait until a SIGSTOP has taken effect."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: process_state(pid) in "tT", what=f"{pid} stopped")
