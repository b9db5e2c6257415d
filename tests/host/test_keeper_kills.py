"""Kills at any moment: whatever order keeper and daemons die in, what must hold holds. KILL_SEEDS=n plays n games."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, is_running, view
from tests.host.mount_node import eventually

pytestmark = [pytest.mark.fuse, pytest.mark.root]

WRITER = """
import os, sys, time
place, log = sys.argv[1:]
number = 0
with open(log, "w", buffering=1) as out:
    while True:
        number += 1
        try:
            with open(f"{place}/w{number}", "w") as file:
                file.write(str(number))
            out.write(f"{number}\\n")
        except OSError:
            time.sleep(0.01)
"""


class Kubelet:
    """Restarts what has ended, at once."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        pod.start_keeper()
        for mount in pod.mounts:
            pod.start_daemon(mount.spec.volume)

    def restart_what_ended(self) -> None:
        """Do what kubelet does."""
        if not is_running(self.pod.keeper):
            self.pod.start_keeper()
        for volume, daemon in list(self.pod.daemons.items()):
            if not is_running(daemon):
                self.pod.start_daemon(volume)

    def settle(self) -> None:
        """Wait until every volume is live."""
        until = time.monotonic() + 40
        for volume in self.pod.daemons:
            while (answer := self.pod.probe(volume)) != "ready":
                assert time.monotonic() < until, f"{answer}\n{self.pod.log_text()}"
                self.restart_what_ended()
                time.sleep(0.05)


def check_nothing_was_lost(pod: Pod, log: Path, volume: str) -> None:
    """Check that every file whose write and close succeeded is on the source."""
    numbers = log.read_text().split()
    missing = [n for n in numbers if (pod.source(volume) / f"w{n}").read_text() != n]
    assert missing == []


@pytest.mark.parametrize("seed", range(int(os.environ.get("KILL_SEEDS", "1"))))
def test_random_kills_of_keeper_and_daemons_lose_nothing_and_leave_nothing(
    make_pod: MakePod, seed: int
) -> None:
    dice = random.Random(seed)
    mounts = [
        KeeperMount(
            spec=directory_spec(name, hung_after_s=3), views=(view(name), view(name, "sub", read_only=True))
        )
        for name in ("one", "two")
    ]
    pod = make_pod(*mounts, flags=("--adopt-seconds", "3", "--flush-seconds", "4"))
    for name in ("one", "two"):
        (pod.source(name) / "sub").mkdir()
    kubelet = Kubelet(pod)
    kubelet.settle()
    log = pod.node.work / "writer.txt"
    writer = pod.node.start(["python3", "-c", WRITER, pod.place("one"), log])
    until = time.monotonic() + 8
    while time.monotonic() < until:
        time.sleep(dice.choice([0.0, 0.02, 0.1, 0.3, 0.6, 1.0]))
        victims = dice.choice([["keeper"], ["one"], ["two"], ["keeper", "one"], ["one", "keeper"]])
        for victim in victims:
            process = pod.keeper if victim == "keeper" else pod.daemons[victim]
            if is_running(process):
                process.send_signal(
                    dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
                )
                if dice.random() < 0.5:
                    process.kill()
                process.kill() if victim == "keeper" else None
        time.sleep(dice.choice([0.0, 0.05]))
        kubelet.restart_what_ended()
    for daemon in pod.daemons.values():
        os.kill(daemon.pid, signal.SIGCONT) if is_running(daemon) else None
    kubelet.settle()
    (pod.seen("one") / "last").write_text("words")
    assert (pod.source("one") / "last").read_text() == "words"
    before = len(log.read_text().split())
    eventually(lambda: len(log.read_text().split()) > before + 20, what="the writer goes on by itself")
    writer.kill()
    writer.wait(10)
    check_nothing_was_lost(pod, log, "one")
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []
    assert [str(path) for path in pod.seen("").rglob("*") if not path.is_dir()] == []
    assert "keeper_failed" not in pod.names()


def test_a_keeper_killed_at_every_moment_of_its_start_is_succeeded(make_pod: MakePod) -> None:
    """S3-15: the moments are swept in steps of 8 ms, over everything from the first instruction to the served volume."""
    pod = make_pod(flags=("--adopt-seconds", "3"))
    (pod.source("train") / "file").write_text("content")
    kubelet = Kubelet(pod)
    kubelet.settle()
    for step in range(24):
        pod.keeper.kill()
        pod.keeper.wait(20)
        pod.start_keeper()
        time.sleep(0.06 + step * 0.008)
        if step % 5 == 4:
            pod.kill_daemon()
    kubelet.restart_what_ended()
    kubelet.settle()
    assert (pod.seen("train") / "file").read_text() == "content"
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []


def test_a_pod_that_ends_while_everything_dies_leaves_nothing(make_pod: MakePod) -> None:
    """The last row of the failure table: SIGTERM meets every state a daemon can be in."""
    pod = make_pod(flags=("--flush-seconds", "2", "--adopt-seconds", "2"))
    for step in range(6):
        kubelet = Kubelet(pod)
        if step % 2:
            kubelet.settle()
        else:
            time.sleep(0.15 + step * 0.08)
        if step % 3 == 1:
            pod.daemons["train"].send_signal(signal.SIGSTOP)
        elif step % 3 == 2:
            pod.daemons["train"].kill()
        eventually(lambda: is_ready_for_signals(pod.keeper.pid), every_s=0.002)
        assert pod.end() == 0, pod.log_text()
        assert pod.node.fuse_mounts() == []
        pod.kill_daemon()


def is_ready_for_signals(pid: int) -> bool:
    """Tell whether SIGTERM would not simply end a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("SigBlk", "SigCgt")) and int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1):
            return True
    return False
