"""What starts after what, and what is started again."""

import time

import pytest

from e2e.podlet.client import Podlet
from e2e.podlet.errors import NotInTime
from tests.podlet.conftest import MakeNode
from tests.podlet.pods import container, exec_probe, mount, pod, sidecar, task

pytestmark = pytest.mark.root
SHARED = {"name": "shared", "emptyDir": {}}
AT = [mount("shared", "/shared")]


def test_nothing_of_the_users_starts_before_the_sidecars_startup_probe_succeeds(node: Podlet) -> None:
    slow = sidecar(
        "slow",
        "sleep 0.5; echo sidecar >> /shared/log; touch /shared/up",
        startupProbe=exec_probe("test -e /shared/up", failureThreshold=100),
        volumeMounts=AT,
    )
    first = task("first", "echo first >> /shared/log", volumeMounts=AT)
    second = task(
        "second", "echo second >> /shared/log; sleep 0.1; echo done >> /shared/log", volumeMounts=AT
    )
    app = container("app", "echo app >> /shared/log; cat /shared/log", volumeMounts=AT)
    running = node.run(pod(app, inits=[slow, first, second], volumes=[SHARED]))
    ready = running.wait_ready(20)
    assert running.logs("app").split() == ["sidecar", "first", "second", "done", "app"]
    assert (ready.phase, ready.summary) == ("Running", "Running")
    assert {c.name: c.reason for c in ready.containers.values() if c.state == "terminated"} == {
        "first": "Completed",
        "second": "Completed",
    }
    running.delete()


def test_a_startup_probe_that_fails_too_often_has_its_container_killed_and_restarted(node: Podlet) -> None:
    probe = exec_probe("echo not yet; exit 1", failureThreshold=3)
    running = node.run(pod(container("app"), inits=[sidecar("never", startupProbe=probe)]))
    status = running.wait_for(lambda s: s.containers["never"].restart_count >= 2, 20, "restarted")
    assert status.containers["app"].state == "waiting"
    assert status.summary.startswith("Init:")
    assert any("not yet" in event for event in node.events)
    running.delete()


def test_a_probe_that_hangs_fails_at_its_timeout_and_is_killed(node: Podlet) -> None:
    probe = exec_probe("sleep 77", timeoutSeconds=1, failureThreshold=1)
    running = node.run(pod(container("app"), inits=[sidecar("hung", startupProbe=probe)]))
    running.wait_for(lambda s: s.containers["hung"].restart_count >= 1, 20, "restarted")
    assert any("timed out after 1 s" in event for event in node.events)
    assert len(node.on_node(["pgrep", "-fx", "sleep 77"]).stdout.split()) <= 1, "no killed probe lives on"
    running.delete()


def test_a_crashing_app_is_restarted_at_once_and_then_with_back_off(node: Podlet) -> None:
    app = task("app", "date +%s.%N >> /shared/starts; exit 3", volumeMounts=AT)
    running = node.run(pod(app, volumes=[SHARED]))
    began = time.monotonic()
    status = running.wait_for(
        lambda s: s.containers["app"].restart_count == 2 and s.containers["app"].reason == "CrashLoopBackOff",
        20,
        "backing off",
    )
    # At a tenth of the time: at once, after 1 s, then 2 s to wait.
    assert 1.0 <= time.monotonic() - began < 9.0
    app_status = status.containers["app"]
    assert (app_status.last_reason, app_status.last_exit_code) == ("Error", 3)
    assert app_status.message == "back-off 20s restarting failed container=app"
    assert status.summary == "CrashLoopBackOff"
    running.delete()


def test_a_killed_sidecar_comes_back_while_the_app_goes_on(node: Podlet) -> None:
    running = node.run(pod(container("app"), inits=[sidecar("s")]))
    running.wait_ready(20)
    before = running.pid("app")
    running.kill("s")
    status = running.wait_for(lambda s: s.containers["s"].restart_count == 1 and s.ready, 20, "restarted")
    assert status.containers["s"].last_exit_code == 137
    assert status.containers["app"].restart_count == 0
    assert running.pid("app") == before
    running.delete()


def test_a_job_succeeds_and_its_sidecars_end_in_reverse_order(node: Podlet) -> None:
    ends = [
        sidecar(name, f"trap 'echo {name} >> /shared/ends; exit 0' TERM", volumeMounts=AT)
        for name in ("one", "two")
    ]
    job = task("job", "echo work", volumeMounts=AT)
    running = node.run(
        pod(
            job,
            inits=ends,
            volumes=[
                {"name": "shared", "hostPath": {"path": str(node.root / "kept"), "type": "DirectoryOrCreate"}}
            ],
            restartPolicy="Never",
        )
    )
    done = running.wait_done(20)
    assert (done.phase, done.summary, done.containers["job"].exit_code) == ("Succeeded", "Completed", 0)
    assert (node.root / "kept" / "ends").read_text().split() == ["two", "one"]
    running.delete()


def test_an_init_container_that_fails_with_policy_never_fails_the_pod(node: Podlet) -> None:
    running = node.run(pod(container("app"), inits=[task("bad", "exit 9")], restartPolicy="Never"))
    with pytest.raises(NotInTime, match="ended instead of becoming ready"):
        running.wait_ready(20)
    status = running.status()
    assert (status.phase, status.containers["bad"].exit_code) == ("Failed", 9)
    assert status.containers["app"].state == "waiting"
    running.delete()


def test_a_failed_liveness_probe_restarts_the_container_and_readiness_shows_it(node: Podlet) -> None:
    app = container(
        "app",
        "touch /tmp/well",
        livenessProbe=exec_probe("test -e /tmp/well", failureThreshold=1),
        readinessProbe=exec_probe("test -e /tmp/well"),
    )
    running = node.run(pod(app))
    running.wait_ready(20)
    running.exec("app", ["rm", "/tmp/well"])
    running.wait_for(lambda s: s.containers["app"].restart_count == 1 and s.ready, 20, "ready again")
    running.delete()


def test_the_active_deadline_fails_the_pod(node: Podlet) -> None:
    running = node.run(pod(container("app"), activeDeadlineSeconds=1))
    done = running.wait_done(20)
    assert (done.phase, done.reason) == ("Failed", "DeadlineExceeded")
    running.delete()


def test_what_needs_a_missing_object_waits_for_it(make_node: MakeNode) -> None:
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]
    late = make_node().root / "late"
    waiting = make_node(secrets={"late": late})
    running = waiting.run(pod(container("app", env=env)))
    status = running.wait_for(
        lambda s: s.containers["app"].reason == "CreateContainerConfigError", 20, "refused"
    )
    assert status.containers["app"].message == 'secret "late" not found'
    late.mkdir()
    (late / "k").write_text("v")
    running.wait_ready(20)
    assert running.exec("app", ["sh", "-c", "echo $X"]).stdout == "v\n"
    running.delete()


def test_a_command_that_does_not_exist_backs_off_as_a_start_error(node: Podlet) -> None:
    missing = {**container("app"), "command": ["/no/such/program"]}
    running = node.run(pod(missing))
    status = running.wait_for(lambda s: s.containers["app"].reason == "CrashLoopBackOff", 20, "backing off")
    assert (status.containers["app"].last_reason, status.containers["app"].last_exit_code) == (
        "StartError",
        128,
    )
    assert any("RunContainerError" in event and "/no/such/program" in event for event in node.events)
    running.delete()


def test_a_pod_whose_sidecar_is_down_is_not_ready_and_says_so_as_kubectl_does(node: Podlet) -> None:
    """RECOVERY §11: Init:Error or Init:CrashLoopBackOff while the app only pauses."""
    running = node.run(
        pod(container("app"), inits=[sidecar("s", "test -e /dev/shm/once && exit 1; touch /dev/shm/once")])
    )
    running.wait_ready(20)
    running.kill("s")
    status = running.wait_for(lambda s: s.summary == "Init:CrashLoopBackOff", 20, "backing off")
    assert not status.ready
    assert status.containers["app"].state == "running"
    running.delete()
