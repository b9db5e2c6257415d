"""What an application sees when daemon or keeper die under a class without takeover (design §12): a dead daemon is remounted."""

import signal
import time

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import (
    LOST,
    Watcher,
    kill_serving_process,
    wait_for_probe,
    wait_for_remount,
    watcher,
)
from tests.pods.conftest import MakeStage
from tests.pods.manifests import mount, pod, shell
from tests.pods.source_tree import INBOX, POEM, SourceTree
from tests.pods.stage import Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
KEEPER = "sidemount-keeper"
RECOVERED_S = 60.0
STOPPED_S = 1.0  # far below the silence that counts as a hang
REMOUNTED = {"abilities": {"takeover": False}}
AS_ROOT = {"runAsUser": 0, "runAsGroup": 0}


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """Return a stage whose volumes are of a class without takeover."""
    return make_stage(class_spec=REMOUNTED)


@pytest.fixture
def tree(stage: Stage) -> SourceTree:
    """Return the source, in whose inbox the watcher writes."""
    tree = stage.tree()
    tree.expect_written(INBOX)
    return tree


@pytest.fixture
def running(stage: Stage, tree: SourceTree) -> RunningPod:
    """Return a pod whose application uses its volume all the time: as root, whom no mode of a bare directory would stop."""
    return stage.run(pod({"books": stage.source(tree)}, watcher(securityContext=AS_ROOT)))


def _restarted(running: RunningPod, *containers: str, times: int = 1) -> None:
    running.wait_for(
        lambda s: s.ready and all(s.containers[c].restart_count == times for c in containers),
        RECOVERED_S,
        f"ready with {containers} restarted {times} times",
    )


def _assert_remounted(running: RunningPod, tree: SourceTree, watch: Watcher) -> None:
    """New opens worked again after a while of honest errors, what was open before is lost, nothing fell beneath the mount."""
    assert running.status().containers["app"].restart_count == 0
    running.delete()
    for op in ("read", "list", "create"):
        outcomes = watch.outcomes(op)
        assert outcomes[0] == outcomes[-1] == "ok", (op, outcomes)
        assert set(outcomes) - {"ok"} <= LOST, (op, outcomes)
    held = watch.outcomes("held")
    assert held[0] == "ok"
    assert set(held[1:]) <= LOST
    assert held[-1] == "ENOTCONN"
    assert watch.created(tree) > 3


def test_after_a_daemon_is_killed_new_opens_work_and_old_descriptors_are_lost(
    running: RunningPod, tree: SourceTree
) -> None:
    """GCSF#50, GCSF#355: without the application's container being restarted. JuiceFS#1229: nothing lands in the bare directory."""
    watch = Watcher(running)
    running.kill(DAEMON)
    watch.wait_until("create", "ENOTCONN", RECOVERED_S)
    wait_for_remount(running, watch, 1, RECOVERED_S)
    _restarted(running, DAEMON)
    _assert_remounted(running, tree, watch)


def test_a_daemon_that_dies_again_and_again_is_remounted_each_time(
    running: RunningPod, tree: SourceTree
) -> None:
    watch = Watcher(running)
    for times in (1, 2):
        running.kill(DAEMON)
        wait_for_remount(running, watch, times, RECOVERED_S)
        _restarted(running, DAEMON, times=times)
    _assert_remounted(running, tree, watch)


def test_a_daemon_that_stops_for_a_while_makes_the_application_wait(
    running: RunningPod, tree: SourceTree
) -> None:
    watch = Watcher(running)
    running.kill(DAEMON, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    running.kill(DAEMON, signal.SIGCONT)
    wait_for_probe(running, "ready", deadline_s=RECOVERED_S)
    running.delete()
    assert {change.outcome for change in watch.changes()} == {"ok"}
    assert watch.created(tree) > 0


def test_what_serves_and_hangs_is_replaced(make_stage: MakeStage) -> None:
    """A stopped process does not end by itself: a deadline ends the wait."""
    stage = make_stage(class_spec={**REMOUNTED, "hungAfter": "2s"})
    tree = stage.tree()
    tree.expect_written(INBOX)
    running = stage.run(pod({"books": stage.source(tree)}, watcher()))
    watch = Watcher(running)
    kill_serving_process(running, DAEMON, signal.SIGSTOP)
    wait_for_remount(running, watch, 1, RECOVERED_S)
    _assert_remounted(running, tree, watch)


def test_a_keeper_that_is_killed_under_load_is_not_noticed(running: RunningPod, tree: SourceTree) -> None:
    watch = Watcher(running)
    for times in (1, 2):
        running.kill(KEEPER)
        _restarted(running, KEEPER, times=times)
        wait_for_probe(running, "ready", deadline_s=10.0)
    assert running.status().containers[DAEMON].restart_count == 0
    # The new keeper has taken the volume back: it can still replace a daemon.
    assert {change.outcome for change in watch.changes()} == {"ok"}
    running.kill(DAEMON)
    wait_for_remount(running, watch, 1, RECOVERED_S)
    _restarted(running, DAEMON)
    _assert_remounted(running, tree, watch)


def test_keeper_and_daemon_killed_at_once_cost_old_descriptors_only(
    running: RunningPod, tree: SourceTree
) -> None:
    """GCSF#113: what a keeper finds at its place may be dead."""
    watch = Watcher(running)
    running.kill(KEEPER)
    running.kill(DAEMON)
    wait_for_remount(running, watch, 1, RECOVERED_S)
    _restarted(running, KEEPER, DAEMON)
    _assert_remounted(running, tree, watch)


def test_a_volume_is_not_disturbed_by_the_death_of_another_ones_daemon(stage: Stage) -> None:
    trees = {name: stage.tree(name) for name in ("books", "notes")}
    trees["books"].expect_written(INBOX)
    trees["notes"].expect_written(INBOX)
    volumes = {name: stage.source(tree) for name, tree in trees.items()}
    running = stage.run(pod(volumes, watcher(), watcher("other", "notes")))
    watch, other = Watcher(running), Watcher(running, "other")
    running.kill(DAEMON)
    wait_for_remount(running, watch, 1, RECOVERED_S)
    _restarted(running, DAEMON)
    _assert_remounted(running, trees["books"], watch)
    assert {change.outcome for change in other.changes()} == {"ok"}
    assert other.created(trees["notes"]) > 10


def test_a_sub_path_view_comes_back_as_the_same_directory(stage: Stage) -> None:
    """JuiceFS#235, seaweedfs#271: after recovery a subPath must not resolve to the root of the volume, even for a container that restarts."""
    tree = stage.tree()
    sub_path = mount("books", "/shelf", subPath="shelf")
    read_only = mount("books", "/ro", readOnly=True)
    script = "cat /shelf/pi.txt; ls /shelf; touch /ro/x 2>&1 | grep -o 'Read-only.*'"
    running = stage.run(pod({"books": stage.source(tree)}, shell("app", volumeMounts=[sub_path, read_only])))
    before = running.exec("app", ["sh", "-c", script])
    assert before.stdout.split("\n") == [
        "3.14159265358979",
        "noise.bin",
        "pi.txt",
        "private.txt",
        "Read-only file system",
        "",
    ]
    running.kill(DAEMON)
    _restarted(running, DAEMON)
    assert running.exec("app", ["sh", "-c", script]).stdout == before.stdout
    running.kill("app")
    _restarted(running, "app")
    assert running.exec("app", ["sh", "-c", script]).stdout == before.stdout


def test_an_application_that_starts_while_its_volume_is_dead_starts_when_it_is_back(stage: Stage) -> None:
    """A container runtime refuses a dead bind source: kubelet's retry must find the volume healed, with no container stuck."""
    tree = stage.tree()
    running = stage.run(
        pod({"books": stage.source(tree)}, shell("app", volumeMounts=[mount("books", "/books")]))
    )
    for restarts in (1, 2):
        running.kill(DAEMON)
        running.kill("app")
        _restarted(running, "app", times=restarts)
        assert running.exec("app", ["cat", "/books/poem.txt"]).stdout == POEM
