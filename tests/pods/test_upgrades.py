"""A new release of daemon or keeper: the image of a running pod's container is changed, the one thing that Kubernetes lets be changed of it."""

import json
import signal
import time

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import PROGRAMS, WATCH, Watcher, sh, wait_for_log, wait_for_probe, watcher
from tests.pods.conftest import MakeStage
from tests.pods.manifests import mount, pod, program, shell
from tests.pods.source_tree import INBOX, POEM, SHELF_TEXT, SourceTree
from tests.pods.stage import Images, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
KEEPER = "sidemount-keeper"
NEXT = "registry.example/sidemount:next"
UPGRADED_S = 60.0
ENDED_S = 15.0
AS_ROOT = {"runAsUser": 0, "runAsGroup": 0}
# Holds a file open, and reads it when it is told to.
HOLD = (
    "exec 3</books/poem.txt; "
    "(until test -e /notes/go; do sleep 0.1; done; cat <&3 >/notes/read 2>&1; echo $? >/notes/done) & :"
)


@pytest.fixture
def stage(make_stage: MakeStage, images: Images) -> Stage:
    """Return a stage that has our image under another name, too."""
    return make_stage(more_images={NEXT: images.sidemount})


def _image(running: RunningPod, container: str) -> str:
    listed = running.status().raw["containers"]
    assert isinstance(listed, list)
    return str(next(c["image"] for c in listed if c["name"] == container))


def _upgrade(running: RunningPod, container: str, image: str = NEXT) -> None:
    before = running.status().containers[container].restart_count
    running.change_image(container, image)
    running.wait_for(
        lambda s: s.ready and s.containers[container].restart_count == before + 1, UPGRADED_S, "upgraded"
    )
    wait_for_probe(running, "ready", deadline_s=UPGRADED_S)
    assert _image(running, container) == image


@pytest.fixture
def busy(stage: Stage) -> tuple[RunningPod, SourceTree]:
    """Return a pod in use: one reads and creates, one sees a sub-path, one has a file mapped and checks its bytes."""
    tree = stage.tree()
    tree.expect_written(INBOX)
    shelf = [mount("books", "/shelf", subPath="shelf")]
    containers = (
        watcher(securityContext=AS_ROOT),
        program("second", WATCH, "/shelf", "pi.txt", SHELF_TEXT, "", volumeMounts=shelf),
        program(
            "mapper",
            PROGRAMS / "mapper.py",
            f"/books/{INBOX}/mapped",
            volumeMounts=[mount("books", "/books")],
            securityContext=AS_ROOT,
        ),
    )
    return stage.run(pod({"books": stage.source(tree)}, *containers)), tree


def _end_unnoticed(running: RunningPod, tree: SourceTree) -> None:
    """Have all applications go on, end the pod, and check that none has seen anything."""
    watchers = [Watcher(running), Watcher(running, "second")]
    for watch in watchers:
        watch.wait_for_rounds(20, UPGRADED_S)
    began = time.monotonic()
    running.delete()
    assert time.monotonic() - began < ENDED_S
    for watch in watchers:
        assert {change.outcome for change in watch.changes()} == {"ok"}
    assert watchers[0].created(tree) > 3
    assert int(running.logs("mapper")) > 3
    status = running.status()
    assert {status.containers[name].restart_count for name in ("app", "second", "mapper")} == {0}


def test_a_daemon_s_new_image_goes_on_with_files_that_are_open(stage: Stage) -> None:
    """Nobody reads just then: the old one ends at once, with nothing unanswered, and says so by its exit code."""
    tree = stage.tree()
    app = shell("app", HOLD, volumeMounts=[mount("books", "/books"), mount("notes", "/notes")])
    running = stage.run(pod({"books": stage.source(tree)}, app, scratch=("notes",)))
    _upgrade(running, DAEMON)
    assert running.status().containers[DAEMON].last_exit_code == 0
    sh(running, "app", "touch /notes/go; until test -s /notes/done; do sleep 0.1; done", timeout_s=UPGRADED_S)
    assert sh(running, "app", "cat /notes/read /notes/done") == f"{POEM}0\n"
    assert running.status().containers["app"].restart_count == 0


def test_a_daemon_s_new_image_is_a_pause_to_applications_that_never_stop(
    busy: tuple[RunningPod, SourceTree],
) -> None:
    """The old daemon serves for as long as it may, then hands over in the middle of the work. How long the pause is: `make torture`."""
    running, tree = busy
    _upgrade(running, DAEMON)
    _end_unnoticed(running, tree)


def test_a_keeper_s_new_image_is_not_noticed_twice_in_a_row(busy: tuple[RunningPod, SourceTree]) -> None:
    """kubelet ends the keeper alone: it takes nothing away, and the next one finds all in its place."""
    running, tree = busy
    before, image = running.mounts(), _image(running, KEEPER)
    for following in (NEXT, image):
        _upgrade(running, KEEPER, following)
        assert running.status().containers[KEEPER].last_exit_code == 0
        assert running.mounts() == before
    assert running.logs(KEEPER, previous=True).count('"another_keeper_follows"') == 1
    _end_unnoticed(running, tree)


@pytest.mark.slow
def test_both_new_images_one_after_the_other_are_a_pause(busy: tuple[RunningPod, SourceTree]) -> None:
    running, tree = busy
    for container in (DAEMON, KEEPER):
        _upgrade(running, container)
    _end_unnoticed(running, tree)


@pytest.mark.parametrize("grace_s", [pytest.param(None, marks=pytest.mark.slow), 0])
def test_a_pod_that_is_deleted_while_its_keeper_is_replaced_ends_like_any_other(
    busy: tuple[RunningPod, SourceTree], grace_s: int | None
) -> None:
    running, _ = busy
    running.change_image(KEEPER, NEXT)
    wait_for_log(running, KEEPER, '"told_to_end"', UPGRADED_S)
    running.delete(grace_s, deadline_s=ENDED_S)


def test_a_daemon_that_hangs_between_two_signals_to_its_keeper_keeps_no_pod(
    busy: tuple[RunningPod, SourceTree],
) -> None:
    """It lived at the first and would be believed to; each signal is a question of its own."""
    running, _ = busy
    running.kill(KEEPER, signal.SIGTERM)
    wait_for_log(running, KEEPER, '"told_to_end"', UPGRADED_S)
    time.sleep(0.5)
    running.kill(DAEMON, signal.SIGSTOP)
    running.delete(0, deadline_s=30)
    told = [json.loads(line) for line in running.logs(KEEPER).splitlines() if '"pod_ends"' in line]
    assert [event["why"] for event in told] == ["no daemon answers"]
