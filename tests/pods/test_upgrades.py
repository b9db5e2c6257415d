"""A daemon's new release: the image of a running pod's container is changed, the one thing that Kubernetes lets be changed of it."""

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import Watcher, sh, wait_for_probe, watcher
from tests.pods.conftest import MakeStage
from tests.pods.manifests import mount, pod, shell
from tests.pods.source_tree import INBOX, POEM
from tests.pods.stage import Images, Stage

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
NEXT = "registry.example/sidemount:next"
UPGRADED_S = 60.0
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


def _upgrade(running: RunningPod, container: str) -> None:
    running.change_image(container, NEXT)
    running.wait_for(lambda s: s.ready and s.containers[container].restart_count == 1, UPGRADED_S, "upgraded")
    wait_for_probe(running, "ready", deadline_s=UPGRADED_S)
    listed = running.status().raw["containers"]
    assert isinstance(listed, list)
    assert next(c["image"] for c in listed if c["name"] == container) == NEXT


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


def test_a_daemon_s_new_image_is_a_pause_to_an_application_that_never_stops(stage: Stage) -> None:
    """The old daemon serves for as long as it may, then hands over in the middle of the work."""
    tree = stage.tree()
    tree.expect_written(INBOX)
    running = stage.run(pod({"books": stage.source(tree)}, watcher(securityContext=AS_ROOT)))
    watch = Watcher(running)
    _upgrade(running, DAEMON)
    watch.wait_for_rounds(20, UPGRADED_S)
    running.delete()
    assert {change.outcome for change in watch.changes()} == {"ok"}
    assert watch.created(tree) > 3
