"""A daemon and its container's memory limit, a real one of the kernel's."""

import json

import pytest

from e2e.podlet.client import RunningPod
from tests.pods.application import LOST, PROGRAMS, Watcher, idler, watcher
from tests.pods.conftest import MakeStage
from tests.pods.manifests import mount, pod
from tests.pods.source_tree import INBOX, SourceTree

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
RECOVERED_S = 20.0
ENOUGH = "64Mi"  # what a daemon requests unless its class says otherwise
TOO_LITTLE = "40Mi"  # less than an idle daemon's own memory and the buffers of its workers


def _run(make_stage: MakeStage, limit: str) -> tuple[SourceTree, RunningPod]:
    stage = make_stage(class_spec={"resources": {"limits": {"memory": limit}}})
    tree = stage.tree()
    tree.expect_written(INBOX)
    heavy = idler("heavy", mount("books", "/books"))
    return tree, stage.run(pod({"books": stage.source(tree)}, watcher(), heavy))


def _work_heavily(running: RunningPod, pieces: int) -> list[str]:
    text = (PROGRAMS / "heavy.py").read_text()
    done = running.exec("heavy", ["python3", "-S", "-c", text, f"/books/{INBOX}", str(pieces)], timeout_s=60)
    assert done.exit_code == 0, done
    errors: list[str] = json.loads(done.stdout)
    return errors


def test_heavy_use_stays_within_what_a_daemon_requests(make_stage: MakeStage) -> None:
    _, running = _run(make_stage, ENOUGH)
    assert _work_heavily(running, 10) == []
    assert running.status().containers[DAEMON].restart_count == 0
    assert {change.outcome for change in Watcher(running).changes()} == {"ok"}


def test_a_daemon_that_the_kernel_kills_for_its_memory_is_remounted(make_stage: MakeStage) -> None:
    """GCSF#50: out of memory costs open descriptors, and nothing else is lost, blocked or restarted."""
    tree, running = _run(make_stage, TOO_LITTLE)
    watch = Watcher(running)
    assert set(_work_heavily(running, 30)) <= LOST
    status = running.wait_for(
        lambda s: s.ready and s.containers[DAEMON].restart_count > 0, RECOVERED_S, "recovered"
    )
    assert status.containers[DAEMON].last_reason == "OOMKilled"
    assert {status.containers[name].restart_count for name in ("app", "heavy", "sidemount-keeper")} == {0}
    watch.wait_until("create", "ok", RECOVERED_S, times=2)
    running.delete()
    for op in ("read", "list", "create"):
        assert set(watch.outcomes(op)) <= {"ok", *LOST}
    assert watch.created(tree) > 0
