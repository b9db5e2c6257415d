"""A volume that cannot be served keeps the pod's applications from starting, and says why where its owner looks."""

from collections.abc import Callable

import pytest

from e2e.podlet.client import RunningPod
from e2e.podlet.errors import NotInTime
from tests.pods.application import wait_for_probe
from tests.pods.conftest import MakeStage
from tests.pods.manifests import mount, pod, shell, task
from tests.pods.source_tree import POEM_FILE, SourceTree
from tests.pods.stage import READY_S, Stage
from webhook.injection_settings import InjectionSettings

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
KEEPER = "sidemount-keeper"


def _loop(tree: SourceTree) -> None:
    (tree.path / "loop").symlink_to("loop")


def _link(tree: SourceTree) -> None:
    (tree.path / "link").symlink_to("shelf")


def _nothing(tree: SourceTree) -> None:
    del tree


@pytest.mark.parametrize(
    ("make", "sub_path", "said"),
    [
        pytest.param(_nothing, "missing/deep", "does not exist", id="missing"),
        pytest.param(_nothing, POEM_FILE, "not a directory", id="file"),
        pytest.param(_nothing, f"{POEM_FILE}/x", "not a directory", id="beneath-a-file"),
        pytest.param(_link, "link", "symbolic link", id="symlink"),
        pytest.param(_nothing, "outside/ssl", "symbolic link", id="symlink-out-of-the-source"),
        pytest.param(_loop, "loop/x", "symbolic link", id="symlink-loop"),
    ],
)
def test_a_sub_path_that_cannot_be_a_view_is_told_by_the_startup_probe(
    stage: Stage, make: Callable[[SourceTree], None], sub_path: str, said: str
) -> None:
    """S2-23, S2-25: nothing is made or followed. The probe's words are what `kubectl describe` shows; `kubectl logs` of the keeper has them too."""
    tree = stage.tree()
    make(tree)
    tree.remember()
    ready = mount("books", "/books")
    app = shell("app", volumeMounts=[mount("books", "/sub", subPath=sub_path), ready])
    first = task("first", ":", volumeMounts=[ready])
    running = stage.start(pod({"books": stage.source(tree)}, app, inits=(first,)))
    told = wait_for_probe(running, said)
    assert f'sub-path "{sub_path}" of volume "books"' in told
    assert said in running.logs(KEEPER)
    _assert_nothing_started(running)


def test_a_sub_path_that_appears_later_is_shown(make_stage: MakeStage) -> None:
    """Also when the probe has given up meanwhile, as an operator may let it after so many failures; what it said is the event."""
    stage = make_stage(settings=InjectionSettings(probe_failures=8))
    tree = stage.tree()
    tree.expect_written("late")
    app = shell("app", volumeMounts=[mount("books", "/late", subPath="late")])
    running = stage.start(pod({"books": stage.source(tree)}, app))
    running.wait_for(lambda s: s.containers[DAEMON].restart_count > 0, READY_S, "given up once")
    event = next(
        told for told in running.node.events if told.startswith("Startup probe of sidemount-books failed")
    )
    assert 'sub-path "late" of volume "books" does not exist' in event
    (tree.path / "late").mkdir()
    (tree.path / "late" / "file").write_text("here")
    running.wait_ready(READY_S)
    assert running.exec("app", ["cat", "/late/file"]).stdout == "here"


def test_a_source_sub_path_that_is_missing_is_told_in_the_daemon_s_log(stage: Stage) -> None:
    """The root of the volume within its source is the daemon's to open: it ends, and says what it did not find."""
    tree = stage.tree()
    app = shell("app", volumeMounts=[mount("books", "/books")])
    running = stage.start(pod({"books": stage.source(tree, "subPath=attic/box")}, app))
    running.wait_for(lambda s: s.containers[DAEMON].last_exit_code is not None, READY_S, "failed")
    ended = running.status().containers[DAEMON]
    assert ended.last_exit_code == 3
    # One sentence that `kubectl describe` shows: object, what is wrong, reason.
    assert "attic" in ended.last_message
    assert ended.last_message.count("\n") == 1
    assert "HostFailure" in ended.last_message
    said = running.logs(DAEMON) + running.logs(DAEMON, previous=True)
    assert "attic" in said, said
    assert "Traceback" not in said
    _assert_nothing_started(running)


def test_a_source_that_the_node_does_not_have_is_told_by_the_pod_s_status(stage: Stage) -> None:
    app = shell("app", volumeMounts=[mount("books", "/books")])
    running = stage.start(pod({"books": f"dir://{stage.sources}/nowhere"}, app))
    running.wait_for(lambda s: "nowhere" in s.containers["app"].message, READY_S, "told what is missing")
    assert "not a directory" in running.status().containers["app"].message


def test_a_source_directory_that_is_a_file_is_told_by_the_pod_s_status(stage: Stage) -> None:
    tree = stage.tree()
    app = shell("app", volumeMounts=[mount("books", "/books")])
    running = stage.start(pod({"books": f"dir://{tree.path}/{POEM_FILE}"}, app))
    running.wait_for(lambda s: POEM_FILE in s.containers["app"].message, READY_S, "told what is wrong")


def test_one_volume_that_cannot_be_served_keeps_every_application_waiting(stage: Stage) -> None:
    """A pod is never half there, and the volume that is fine is not blamed."""
    able, bad = stage.tree("able"), stage.tree("bad")
    app = shell("app", volumeMounts=[mount("able", "/able"), mount("bad", "/bad", subPath="missing")])
    other = shell("other", volumeMounts=[mount("able", "/able")])
    running = stage.start(pod({"able": stage.source(able), "bad": stage.source(bad)}, app, other))
    wait_for_probe(running, "does not exist", container="sidemount-bad")
    status = running.status()
    assert status.containers["sidemount-able"].restart_count == 0
    assert {status.containers[name].started for name in ("app", "other")} == {False}


def _assert_nothing_started(running: RunningPod) -> None:
    with pytest.raises(NotInTime):
        running.wait_for(
            lambda s: any(
                c.state != "waiting" for c in s.containers.values() if not c.name.startswith("sidemount-")
            ),
            0.5,
            "with an application",
        )
