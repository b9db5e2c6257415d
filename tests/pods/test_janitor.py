"""A pod that is left Terminating by its dead keeper and daemon ends where a node service runs; podlet's teardown is the oracle."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.podlet.client import RunningPod
from tests.host.mount_node import eventually
from tests.pods.manifests import mount, pod, shell
from tests.pods.stage import READY_S, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]

DAEMON, KEEPER = "sidemount-books", "sidemount-keeper"


@contextlib.contextmanager
def _node_service(stage: Stage, work: Path) -> Iterator[Path]:
    """Run a node service on the node; give its log."""
    for name in ("targets", "socket"):
        (work / name).mkdir()
    log = work / "plugin.log"
    outside = stage.node.process_id
    first = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()[0]
    arguments = [
        "nsenter",
        "-t",
        first,
        "-m",
        "-p",
        sys.executable,
        "-m",
        "tests.csi.hasty_plugin",
    ]
    arguments += ["node", "--endpoint", f"unix://{work}/socket/csi.sock", "--node-id", "n1"]
    arguments += ["--state-dir", f"{work}/state", "--target-root", f"{work}/targets"]
    arguments += ["--facts", str(stage.directory / "facts"), "--kubelet-dir", str(stage.node.root)]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            arguments,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            start_new_session=True,
        )
    try:
        eventually(lambda: '"reconciled"' in log.read_text() or process.poll(), what="begun", timeout_s=60)
        assert process.poll() is None
        yield log
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            print(log.read_text())


def _kill_both(running: RunningPod) -> None:
    for container in (KEEPER, DAEMON):
        running.kill(container)


def _nothing_is_left(running: RunningPod) -> None:
    """The node service's own keeper and nursery end a moment after it."""
    eventually(lambda: not running.leaks(), what="nothing of the pod or the node service is left")


def test_a_pod_whose_keeper_and_daemon_are_dead_ends_and_no_file_goes(stage: Stage, tmp_path: Path) -> None:
    """k/k#129550: what no process of the pod can do is done by the node service."""
    tree = stage.tree()
    app = shell("app", "cat /books/poem.txt", volumeMounts=[mount("books", "/books")])
    with _node_service(stage, tmp_path) as log:
        running = stage.run(pod({"books": stage.source(tree)}, app))
        running.node.request("delete", grace=0)
        _kill_both(running)
        running.wait_for(lambda s: s.is_gone, 60, "gone")
        assert "leftover_detached" in log.read_text()
    _nothing_is_left(running)
    assert not tree.changes()


def test_a_living_pod_s_dead_mounts_are_its_keeper_s(stage: Stage, tmp_path: Path) -> None:
    """Both killed while the application runs: the janitor waits, the next keeper mounts anew, the application goes on."""
    tree = stage.tree()
    app = shell("app", "cat /books/poem.txt", volumeMounts=[mount("books", "/books")])
    with _node_service(stage, tmp_path) as log:
        running = stage.run(pod({"books": stage.source(tree)}, app))
        _kill_both(running)
        running.wait_for(
            lambda s: s.ready and all(s.containers[name].restart_count for name in (KEEPER, DAEMON)),
            READY_S,
            "ready again",
        )
        assert running.exec("app", ["cat", "/books/poem.txt"]).exit_code == 0
        assert "leftover_detached" not in log.read_text()
    running.node.request("delete", grace=0)
    running.wait_for(lambda s: s.is_gone, 60, "gone")
    _nothing_is_left(running)
