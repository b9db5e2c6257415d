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
RECOVERED_S = 60.0
ENOUGH = "128Mi"  # a quarter of what a daemon is given unless its class says otherwise
TOO_LITTLE = "40Mi"  # less than an idle daemon's own memory and the buffers of its workers


def _run(make_stage: MakeStage, limit: str, *, takeover: bool) -> tuple[SourceTree, RunningPod]:
    spec = {"resources": {"limits": {"memory": limit}}, "abilities": {"takeover": takeover}}
    stage = make_stage(class_spec=spec)
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


@pytest.mark.parametrize("takeover", [True, False])
def test_heavy_use_stays_within_a_small_limit(make_stage: MakeStage, takeover: bool) -> None:
    _, running = _run(make_stage, ENOUGH, takeover=takeover)
    assert _work_heavily(running, 20) == []
    assert running.status().containers[DAEMON].restart_count == 0
    assert {change.outcome for change in Watcher(running).changes()} == {"ok"}


def test_a_daemon_that_the_kernel_kills_for_its_memory_is_remounted(make_stage: MakeStage) -> None:
    """GCSF#50: without takeover it costs open descriptors, and nothing else is lost, blocked or restarted."""
    tree, running = _run(make_stage, TOO_LITTLE, takeover=False)
    watch = Watcher(running)
    assert set(_work_heavily(running, 30)) <= LOST
    _assert_killed_for_memory(running)
    watch.wait_until_well(RECOVERED_S)
    running.delete()
    for op in ("read", "list", "create"):
        assert set(watch.outcomes(op)) <= {"ok", *LOST}
    assert watch.created(tree) > 0


def test_a_daemon_that_the_kernel_kills_for_its_memory_is_taken_over(make_stage: MakeStage) -> None:
    """The kernel kills the whole container at once, its spare processes too: the next container continues."""
    tree, running = _run(make_stage, ENOUGH, takeover=True)
    watch = Watcher(running)
    running.exec(DAEMON, ["python3", "-S", "-c", "x = bytearray(1 << 30)"])
    _assert_killed_for_memory(running)
    watch.wait_for_rounds(20, RECOVERED_S)
    running.delete()
    assert {change.outcome for change in watch.changes()} == {"ok"}
    assert watch.created(tree) > 0


def _assert_killed_for_memory(running: RunningPod) -> None:
    status = running.wait_for(
        lambda s: s.ready and s.containers[DAEMON].restart_count > 0, RECOVERED_S, "recovered"
    )
    assert status.containers[DAEMON].last_reason == "OOMKilled"
    assert {status.containers[name].restart_count for name in ("app", "heavy", "sidemount-keeper")} == {0}
