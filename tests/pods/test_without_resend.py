"""A pod on a kernel that cannot resend, forced: the volume is remounted at once, without kubelet (design §12, the column "remount")."""

import signal

import pytest

from tests.pods.application import (
    LOST,
    Watcher,
    kill_serving_process,
    sh,
    wait_for_probe,
    wait_for_remount,
    watcher,
)
from tests.pods.conftest import MakeStage
from tests.pods.manifests import Json, mount, pod, shell
from tests.pods.source_tree import INBOX, SHELF_FILE, SHELF_TEXT

pytestmark = [pytest.mark.root, pytest.mark.fuse]
DAEMON = "sidemount-books"
RECOVERED_S = 60.0
AS_ROOT = {"runAsUser": 0, "runAsGroup": 0}


def without_resend(admitted: Json) -> Json:
    """Have the volume's daemon do without the kernel's RESEND."""
    (daemon,) = [c for c in admitted["spec"]["initContainers"] if c["name"] == DAEMON]
    daemon["args"].append("--no-resend")
    return admitted


def test_a_killed_process_costs_open_files_and_nothing_else(make_stage: MakeStage) -> None:
    stage = make_stage()
    tree = stage.tree()
    tree.expect_written(INBOX)
    directory, _, file = SHELF_FILE.rpartition("/")
    second = shell("second", volumeMounts=[mount("books", "/part", subPath=directory)])
    asked = pod({"books": stage.source(tree)}, watcher(securityContext=AS_ROOT), second)
    running = stage.start(asked, without_resend)
    running.wait_ready(30)
    watch = Watcher(running)
    for times in (1, 2):
        kill_serving_process(running, DAEMON, signal.SIGKILL)
        wait_for_remount(running, watch, times, RECOVERED_S)
        wait_for_probe(running, "ready", deadline_s=RECOVERED_S)
        assert sh(running, "second", f"cat /part/{file}") == SHELF_TEXT
    for op in ("read", "list", "create"):
        assert set(watch.outcomes(op)) <= {"ok", *LOST}
    assert watch.outcomes("held")[0] == "ok"
    assert set(watch.outcomes("held")[1:]) <= LOST
    assert len(watch.outcomes("held")) > 1
    assert {c.restart_count for c in running.status().containers.values()} == {0}
    assert '"reason": "NoResend"' in running.logs(DAEMON)
    running.delete()
    assert watch.created(tree) > 20
