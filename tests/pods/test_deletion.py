"""S2-42: a pod that ends takes every mount along and no file (design §12, last row), whatever state it is in. podlet's recursive delete is the oracle."""

import signal
import time
from collections.abc import Callable

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import HOLD, kill_serving_process, watcher
from tests.pods.manifests import Json, mount, pod, program, shell, task
from tests.pods.source_tree import INBOX, POEM, POEM_FILE, SourceTree
from tests.pods.stage import READY_S, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
KEEPER = "sidemount-keeper"
BOOKS = [mount("books", "/books")]


@pytest.fixture
def tree(stage: Stage) -> SourceTree:
    """Return the source, in whose inbox applications write."""
    tree = stage.tree()
    tree.expect_written(INBOX)
    return tree


def _holder(manner: str) -> Json:
    return program("app", HOLD, "/books", POEM_FILE, manner, volumeMounts=BOOKS)


def _reader() -> Json:
    return shell("app", "cat /books/poem.txt", volumeMounts=BOOKS)


def _restarted(running: RunningPod, *containers: str) -> None:
    running.wait_for(
        lambda s: s.ready and all(s.containers[c].restart_count > 0 for c in containers),
        READY_S,
        f"ready with {containers} restarted",
    )


def test_with_files_open_mapped_and_written(stage: Stage, tree: SourceTree) -> None:
    """What was written and not synced has reached the source when the pod is gone."""
    running = stage.run(pod({"books": stage.source(tree)}, _holder("obey")))
    running.delete(deadline_s=10)
    assert (tree.inbox / "unsynced").stat().st_size == 100_000


@pytest.mark.parametrize("grace_s", [0, 1])
def test_without_grace_and_an_application_that_ignores_sigterm(
    stage: Stage, tree: SourceTree, grace_s: int
) -> None:
    running = stage.run(pod({"books": stage.source(tree)}, _holder("ignore")))
    running.delete(grace_s, deadline_s=15)
    assert (tree.inbox / "unsynced").stat().st_size == 100_000


@pytest.mark.parametrize("grace_s", [3, 0])
def test_just_after_its_daemon_was_killed(stage: Stage, tree: SourceTree, grace_s: int) -> None:
    running = stage.run(pod({"books": stage.source(tree)}, watcher()))
    running.kill(DAEMON)
    running.delete(grace_s, deadline_s=30)


@pytest.mark.parametrize("grace_s", [3, 0])
def test_while_its_daemon_is_stopped(stage: Stage, tree: SourceTree, grace_s: int) -> None:
    """The application hangs on the mount and cannot even be killed before the connection is aborted."""
    running = stage.run(pod({"books": stage.source(tree)}, watcher()))
    running.kill(DAEMON, signal.SIGSTOP)
    running.delete(grace_s, deadline_s=40)


def _what_serves(running: RunningPod) -> None:
    kill_serving_process(running, DAEMON, signal.SIGKILL)


def _what_serves_stops(running: RunningPod) -> None:
    kill_serving_process(running, DAEMON, signal.SIGSTOP)


def _the_whole_daemon_stops(running: RunningPod) -> None:
    running.kill(DAEMON, signal.SIGSTOP)
    stop_the_rest = "import os, signal; os.kill(-1, signal.SIGSTOP)"
    assert running.exec(DAEMON, ["python3", "-S", "-c", stop_the_rest]).exit_code == 0


def _the_keeper_stops_for_a_while(running: RunningPod) -> None:
    running.kill(KEEPER, signal.SIGSTOP)
    running.kill(DAEMON)
    running.kill(KEEPER, signal.SIGCONT)


def _daemon_and_keeper_that_comes_back(running: RunningPod) -> None:
    running.kill(DAEMON)
    running.kill(KEEPER)
    _restarted(running, KEEPER, DAEMON)
    running.kill(DAEMON)


@pytest.mark.parametrize(
    "harm",
    [
        _what_serves,
        pytest.param(_what_serves_stops, marks=pytest.mark.slow),
        _the_whole_daemon_stops,
        _the_keeper_stops_for_a_while,
        _daemon_and_keeper_that_comes_back,
    ],
    ids=lambda harm: harm.__name__.strip("_"),
)
def test_just_after_something_of_ours_was_killed_or_stopped(
    stage: Stage, tree: SourceTree, harm: Callable[[RunningPod], None]
) -> None:
    """No pod stays Terminating for it: grace, a deadline of the keeper's, and it is gone."""
    running = stage.run(pod({"books": stage.source(tree)}, watcher()))
    harm(running)
    running.delete(3, deadline_s=40)
    assert not tree.changes()


@pytest.mark.parametrize("killed", [(KEEPER,), (KEEPER, DAEMON), (KEEPER, DAEMON, "app")])
def test_after_what_was_killed_has_come_back(stage: Stage, tree: SourceTree, killed: tuple[str, ...]) -> None:
    """buildbarn#2: a keeper that was replaced detaches what its predecessor mounted too. All three at once: as the out-of-memory killer does."""
    running = stage.run(pod({"books": stage.source(tree)}, watcher()))
    for container in killed:
        running.kill(container)
    _restarted(running, *killed)
    running.delete(0, deadline_s=20)


@pytest.mark.parametrize(
    "is_deleted_first", [False, True], ids=["killed-then-deleted", "killed-while-deleted"]
)
def test_without_a_keeper_ends_by_its_daemon(stage: Stage, tree: SourceTree, is_deleted_first: bool) -> None:
    """k/k#129550: kubelet restarts no container of a deleted pod, so the keeper is gone for good; its daemon takes the mounts away."""
    running = stage.run(pod({"books": stage.source(tree)}, _reader()))
    if is_deleted_first:
        running.node.request("delete", grace=20)
        running.kill(KEEPER)
    else:
        running.kill(KEEPER)
        running.node.request("delete", grace=20)
    running.delete(20, deadline_s=25)
    assert not tree.changes()


def test_without_keeper_and_daemon_leaves_a_mount_to_detach_and_every_file_where_it_is(
    stage: Stage, tree: SourceTree
) -> None:
    """Nothing in the pod can unmount. No file is lost even so."""
    running = stage.run(pod({"books": stage.source(tree)}, _reader()))
    running.node.request("delete", grace=0)
    for container in (KEEPER, DAEMON):
        running.kill(container)
    running.wait_for(lambda s: "target is busy" in "".join(s.faults), READY_S, "stuck")
    assert not tree.changes()
    left = [m.mount_point for m in running.mounts() if m.fstype == "fuse.sidemount"]
    assert left == [f"{running.directory}/volumes/kubernetes.io~empty-dir/sidemount/books"]
    assert running.node.on_node(["umount", "-l", left[0]]).exit_code == 0
    running.delete(0, deadline_s=30)


def test_in_a_crash_loop_every_restart_sees_the_volume(stage: Stage, tree: SourceTree) -> None:
    script = (
        "cat /books/poem.txt >/books/inbox/$$-$(date +%s%N 2>/dev/null) && echo read >>/notes/log; exit 3"
    )
    mounts = [*BOOKS, mount("notes", "/notes")]
    app = task("app", script, volumeMounts=mounts)
    running = stage.start(pod({"books": stage.source(tree)}, app, scratch=("notes",)))
    running.wait_for(lambda s: s.containers["app"].restart_count >= 2, READY_S, "restarted twice")
    status = running.status()
    running.delete(deadline_s=15)
    assert {status.containers[name].restart_count for name in (KEEPER, DAEMON)} == {0}
    texts = [path.read_text() for path in tree.inbox.iterdir()]
    assert set(texts) == {POEM}


def test_of_a_job_that_is_done_succeeds_soon_after_its_application(stage: Stage, tree: SourceTree) -> None:
    """Sidecars hold a Job's pod up no longer than it takes to unmount."""
    app = task("app", "cp /books/poem.txt /books/inbox/copy", volumeMounts=BOOKS)
    running = stage.start(pod({"books": stage.source(tree)}, app, restartPolicy="Never"))
    running.wait_for(lambda s: s.containers["app"].state == "terminated", READY_S, "done with its work")
    began = time.monotonic()
    status = running.wait_done(10)
    assert time.monotonic() - began < 9
    assert status.phase == "Succeeded"
    assert {name: c.exit_code for name, c in status.containers.items()} == {"app": 0, KEEPER: 0, DAEMON: 0}
    assert (tree.inbox / "copy").read_text() == POEM
    running.delete(0)


# While it is starting ------------------------------------------------------------------------------------


def _at_once(running: RunningPod) -> None:
    del running


def _keeper_runs(running: RunningPod) -> None:
    running.wait_for(lambda s: s.containers[KEEPER].state == "running", READY_S, "with a keeper")


def _daemon_does_not_serve_yet(running: RunningPod) -> None:
    running.wait_for(lambda s: s.containers[DAEMON].state == "running", READY_S, "with a daemon")
    running.kill(DAEMON, signal.SIGSTOP)


def _daemon_serves(running: RunningPod) -> None:
    running.wait_for(lambda s: s.containers[DAEMON].started, READY_S, "served")


@pytest.mark.parametrize(
    ("reached", "grace_s"),
    [
        pytest.param(_at_once, None, id="at-once"),
        pytest.param(_at_once, 0, id="at-once-without-grace"),
        pytest.param(_keeper_runs, 0, id="keeper-starting"),
        pytest.param(_daemon_does_not_serve_yet, 0, id="daemon-not-serving"),
        pytest.param(_daemon_serves, None, id="init-container-runs"),
        pytest.param(_daemon_serves, 0, id="init-container-runs-without-grace"),
    ],
)
def test_while_it_starts(
    stage: Stage, tree: SourceTree, reached: Callable[[RunningPod], None], grace_s: int | None
) -> None:
    """mountpoint-s3-csi#309, JuiceFS#460."""
    running = stage.start(pod({"books": stage.source(tree)}, _reader(), inits=(task("wait", "sleep 1"),)))
    reached(running)
    running.delete(grace_s, deadline_s=30)


def test_while_its_volume_cannot_be_shown(stage: Stage, tree: SourceTree) -> None:
    app = shell("app", volumeMounts=[mount("books", "/books", subPath="missing")])
    running = stage.start(pod({"books": stage.source(tree)}, app))
    _daemon_runs_for_a_while(running)
    running.delete(0, deadline_s=20)


def test_while_its_source_is_missing(stage: Stage) -> None:
    running = stage.start(pod({"books": f"dir://{stage.sources}/nowhere"}, _reader()))
    running.wait_for(
        lambda s: "nowhere" in s.containers["app"].message, READY_S, "told that the source is missing"
    )
    running.delete(deadline_s=10)


def _daemon_runs_for_a_while(running: RunningPod) -> None:
    until = time.monotonic() + READY_S
    while "missing" not in running.logs(KEEPER):
        assert time.monotonic() < until, running.logs(KEEPER)
        time.sleep(0.05)
    assert not running.status().containers[DAEMON].started


def test_at_any_moment_of_its_start(stage: Stage, tree: SourceTree) -> None:
    """JuiceFS#229: created and deleted in quick succession."""
    for delay_ms in (30, 250, 450, 650):
        running = stage.start(pod({"books": stage.source(tree)}, watcher()))
        time.sleep(delay_ms / 1000)
        running.delete(0, deadline_s=20)
        assert not tree.changes()


def test_while_its_daemon_is_killed_as_it_flushes(stage: Stage, tree: SourceTree) -> None:
    running = stage.run(pod({"books": stage.source(tree)}, watcher()))
    running.node.request("delete", grace=None)
    running.wait_for(lambda s: s.containers["app"].state == "terminated", READY_S, "without its application")
    running.kill(DAEMON)
    running.delete(deadline_s=20)
