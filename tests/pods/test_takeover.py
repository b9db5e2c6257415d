"""What an application sees when daemon or keeper die under a class with takeover (design §12): mostly nothing, not even in files it has open."""

import signal
import time

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import LOST, Watcher, kill_serving_process, wait_for_probe, watcher
from tests.pods.conftest import MakeStage
from tests.pods.manifests import pod
from tests.pods.source_tree import INBOX, SourceTree
from tests.pods.stage import Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
KEEPER = "sidemount-keeper"
RECOVERED_S = 60.0
SILENT_S = 5.0  # more than twice what the class allows
AS_ROOT = {"runAsUser": 0, "runAsGroup": 0}


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """Return a stage whose daemons may be silent for two seconds."""
    return make_stage(class_spec={"hungAfter": "2s"})


@pytest.fixture
def tree(stage: Stage) -> SourceTree:
    """Return the source, in whose inbox the watcher writes."""
    tree = stage.tree()
    tree.expect_written(INBOX)
    return tree


@pytest.fixture
def running(stage: Stage, tree: SourceTree) -> RunningPod:
    """Return a pod whose application uses its volume all the time."""
    return stage.run(pod({"books": stage.source(tree)}, watcher(securityContext=AS_ROOT)))


def _restarted(running: RunningPod, **times: int) -> None:
    running.wait_for(
        lambda s: (
            s.ready and all(s.containers[f"sidemount-{c}"].restart_count == n for c, n in times.items())
        ),
        RECOVERED_S,
        f"ready with restarts {times}",
    )
    wait_for_probe(running, "ready", deadline_s=RECOVERED_S)


def _goes_on(watch: Watcher, rounds: int = 20) -> None:
    watch.wait_for_rounds(rounds, RECOVERED_S)


def _assert_nothing_seen(running: RunningPod, tree: SourceTree, watch: Watcher) -> None:
    _goes_on(watch)
    running.delete()
    assert {change.outcome for change in watch.changes()} == {"ok"}
    assert watch.created(tree) > 3
    assert running.status().containers["app"].restart_count == 0


def test_the_death_of_what_serves_is_not_noticed(running: RunningPod, tree: SourceTree) -> None:
    """Nor is that of its successor. The container does not even restart."""
    watch = Watcher(running)
    for _ in range(3):
        kill_serving_process(running, DAEMON, signal.SIGKILL)
        _goes_on(watch)
    assert running.status().containers[DAEMON].restart_count == 0
    _assert_nothing_seen(running, tree, watch)


def test_the_death_of_the_whole_container_is_not_noticed(running: RunningPod, tree: SourceTree) -> None:
    watch = Watcher(running)
    for times in (1, 2):
        running.kill(DAEMON)
        _restarted(running, books=times)
        _goes_on(watch)
    _assert_nothing_seen(running, tree, watch)


def test_the_death_of_the_keeper_is_not_noticed_and_the_next_one_can_do_all_of_it(
    running: RunningPod, tree: SourceTree
) -> None:
    watch = Watcher(running)
    running.kill(KEEPER)
    _restarted(running, keeper=1)
    kill_serving_process(running, DAEMON, signal.SIGKILL)
    _goes_on(watch)
    running.kill(DAEMON)
    _restarted(running, keeper=1, books=1)
    _assert_nothing_seen(running, tree, watch)


def test_what_serves_may_hang(running: RunningPod, tree: SourceTree) -> None:
    watch = Watcher(running)
    kill_serving_process(running, DAEMON, signal.SIGSTOP)
    wait_for_probe(running, "ready", deadline_s=RECOVERED_S)
    _assert_nothing_seen(running, tree, watch)


def test_the_container_s_first_process_may_hang(running: RunningPod, tree: SourceTree) -> None:
    """It serves nothing itself, and costs nothing for as long as what serves lives."""
    watch = Watcher(running)
    running.kill(DAEMON, signal.SIGSTOP)
    time.sleep(SILENT_S)
    _goes_on(watch)
    running.kill(DAEMON, signal.SIGCONT)
    wait_for_probe(running, "ready", deadline_s=RECOVERED_S)
    kill_serving_process(running, DAEMON, signal.SIGKILL)
    _assert_nothing_seen(running, tree, watch)


def test_keeper_and_daemon_killed_at_once_cost_old_descriptors_only(
    running: RunningPod, tree: SourceTree
) -> None:
    """Nobody holds the connection then. New opens work as soon as both are back."""
    watch = Watcher(running)
    running.kill(KEEPER)
    running.kill(DAEMON)
    _restarted(running, keeper=1, books=1)
    _goes_on(watch)
    running.delete()
    for op in ("read", "list", "create"):
        outcomes = watch.outcomes(op)
        assert outcomes[0] == outcomes[-1] == "ok", (op, outcomes)
        assert set(outcomes) <= {"ok", *LOST}, (op, outcomes)
    assert watch.created(tree) > 3
