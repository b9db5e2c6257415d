"""A daemon's container in which nothing moves any more: only kubelet can end it, and its liveness probe tells kubelet when."""

import signal
import time

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import LOST, Watcher, wait_for_probe, watcher
from tests.pods.conftest import MakeStage
from tests.pods.manifests import pod
from tests.pods.source_tree import INBOX, SourceTree

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(400)]
DAEMON = "sidemount-books"
KEEPER = "sidemount-keeper"
RECOVERED_S = 120.0
AS_ROOT = {"runAsUser": 0, "runAsGroup": 0}
# Not what kubelet runs in it just then: a probe that was stopped would only fail by its own deadline, after a minute.
STOP_THE_REST = """
import os, signal
for name in filter(str.isdecimal, os.listdir("/proc")):
    try:
        with open(f"/proc/{name}/cmdline", "rb") as file:
            is_daemon = b"daemon" in file.read().split(b"\\0")
        if is_daemon and name != "1":
            os.kill(int(name), signal.SIGSTOP)
    except OSError:
        continue
"""


def _run(make_stage: MakeStage, *, takeover: bool) -> tuple[SourceTree, RunningPod]:
    stage = make_stage(class_spec={"hungAfter": "2s", "abilities": {"takeover": takeover}})
    tree = stage.tree()
    tree.expect_written(INBOX)
    return tree, stage.run(pod({"books": stage.source(tree)}, watcher(securityContext=AS_ROOT)))


def _stop_container(running: RunningPod) -> None:
    running.kill(DAEMON, signal.SIGSTOP)
    done = running.exec(DAEMON, ["python3", "-S", "-c", STOP_THE_REST])
    assert done.exit_code == 0, done


def _wait_restarted(running: RunningPod, watch: Watcher) -> None:
    running.wait_for(
        lambda s: s.ready and s.containers[DAEMON].restart_count > 0, RECOVERED_S, "restarted by its probe"
    )
    wait_for_probe(running, "ready", deadline_s=RECOVERED_S)
    watch.wait_for_rounds(20, RECOVERED_S)


def test_a_stopped_container_is_restarted_and_its_open_files_go_on(make_stage: MakeStage) -> None:
    """The kernel lets no keeper kill what is in another container. The application sees a pause."""
    tree, running = _run(make_stage, takeover=True)
    watch = Watcher(running)
    _stop_container(running)
    _wait_restarted(running, watch)
    running.delete()
    assert {change.outcome for change in watch.changes()} == {"ok"}
    assert watch.created(tree) > 3
    assert running.status().containers["app"].restart_count == 0


@pytest.mark.slow
def test_a_stopped_container_without_takeover_is_restarted_and_remounted(make_stage: MakeStage) -> None:
    tree, running = _run(make_stage, takeover=False)
    watch = Watcher(running)
    _stop_container(running)
    _wait_restarted(running, watch)
    running.delete()
    assert {change.outcome for change in watch.changes()} <= {"ok", *LOST}
    assert watch.outcomes("create")[-1] == "ok"
    assert watch.created(tree) > 3


@pytest.mark.slow
def test_a_container_that_is_stopped_while_its_keeper_is_replaced_is_restarted(
    make_stage: MakeStage,
) -> None:
    """The new keeper has never heard of it. Nobody holds the connection besides what is stopped, so files that were open are lost."""
    tree, running = _run(make_stage, takeover=True)
    watch = Watcher(running)
    _stop_container(running)
    running.kill(KEEPER)
    _wait_restarted(running, watch)
    running.delete()
    assert {change.outcome for change in watch.changes()} <= {"ok", *LOST}
    assert watch.created(tree) > 3


@pytest.mark.slow
def test_a_keeper_that_stands_still_has_no_daemon_restarted(make_stage: MakeStage) -> None:
    """What the probe cannot learn is no reason to kill what serves. Five probes' time passes."""
    tree, running = _run(make_stage, takeover=True)
    watch = Watcher(running)
    running.kill(KEEPER, signal.SIGSTOP)
    time.sleep(5.0)
    watch.wait_for_rounds(20, RECOVERED_S)
    running.kill(KEEPER, signal.SIGCONT)
    wait_for_probe(running, "ready", deadline_s=RECOVERED_S)
    watch.wait_for_rounds(20, RECOVERED_S)
    assert running.status().containers[DAEMON].restart_count == 0
    running.delete()
    assert {change.outcome for change in watch.changes()} == {"ok"}
    assert watch.created(tree) > 3
