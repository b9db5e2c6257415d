"""How a pod ends: preStop, SIGTERM, turns, grace, SIGKILL."""

import time
from pathlib import Path

import pytest

from e2e.podlet.client import Podlet
from tests.podlet.pods import Json, container, mount, pod, sidecar, task

pytestmark = pytest.mark.root
AT = [mount("log", "/log")]
STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"


def _says_term(name: str, then: str = "") -> str:
    return f"trap 'echo {name} >> /log/ends; {then} exit 0' TERM"


@pytest.fixture
def ends(tmp_path: Path) -> Path:
    """Return the file in which containers note their SIGTERM."""
    return tmp_path / "ends"


def _volume(ends: Path) -> list[Json]:
    return [{"name": "log", "hostPath": {"path": str(ends.parent), "type": "Directory"}}]


def _sidecars() -> list[Json]:
    return [sidecar(name, _says_term(name), volumeMounts=AT) for name in ("one", "two")]


def test_apps_end_together_and_then_the_sidecars_in_reverse_order(node: Podlet, ends: Path) -> None:
    slow = container("slow", _says_term("slow", "sleep 0.6; echo slow-done >> /log/ends;"), volumeMounts=AT)
    quick = container("quick", _says_term("quick"), volumeMounts=AT)
    running = node.run(pod(slow, quick, inits=_sidecars(), volumes=_volume(ends)))
    running.wait_ready(20)
    running.delete()
    noted = ends.read_text().split()
    assert set(noted[:2]) == {"slow", "quick"}
    assert noted[2:] == ["slow-done", "two", "one"]


def test_pre_stop_comes_before_sigterm_and_of_sidecars_at_once(node: Podlet, ends: Path) -> None:
    def hook(name: str, wait: str) -> Json:
        return {"preStop": {"exec": {"command": ["sh", "-c", f"sleep {wait}; echo pre-{name} >> /log/ends"]}}}

    app = container("app", _says_term("app"), volumeMounts=AT, lifecycle=hook("app", "0.6"))
    side = sidecar("side", _says_term("side"), volumeMounts=AT, lifecycle=hook("side", "0"))
    running = node.run(pod(app, inits=[side], volumes=_volume(ends)))
    running.wait_ready(20)
    running.delete()
    assert ends.read_text().split() == ["pre-side", "pre-app", "app", "side"]


def test_a_hanging_pre_stop_hook_costs_the_grace_and_no_more(node: Podlet, ends: Path) -> None:
    hook = {"preStop": {"exec": {"command": ["sleep", "600"]}}}
    running = node.run(
        pod(container("app", _says_term("app"), volumeMounts=AT, lifecycle=hook), volumes=_volume(ends))
    )
    running.wait_ready(20)
    began = time.monotonic()
    running.delete(2)
    assert 2.0 <= time.monotonic() - began < 30.0
    assert ends.read_text().split() == ["app"], "SIGTERM still comes, with kubelet's minimum of 2 s"
    assert any("did not complete within the grace period" in event for event in node.events)


def test_what_ignores_sigterm_is_killed_after_the_grace(node: Podlet, ends: Path) -> None:
    running = node.run(pod(task("app", STUBBORN), inits=_sidecars(), volumes=_volume(ends)))
    running.wait_ready(20)
    began = time.monotonic()
    running.delete(3)
    assert 3.0 <= time.monotonic() - began < 30.0
    assert running.status().containers["app"].exit_code == 137
    assert ends.read_text().split()[-1] == "one" or set(ends.read_text().split()) == {"one", "two"}


def test_grace_0_still_gives_every_container_sigterm_and_two_seconds(node: Podlet, ends: Path) -> None:
    """cluster.md "Seen on it" 5: native sidecars get SIGTERM even on --force --grace-period=0."""
    running = node.run(pod(task("app", STUBBORN), inits=_sidecars(), volumes=_volume(ends)))
    running.wait_ready(20)
    began = time.monotonic()
    running.delete(0)
    assert 2.0 <= time.monotonic() - began < 20.0
    assert set(ends.read_text().split()) == {"one", "two"}


def test_nothing_is_restarted_once_the_pod_is_deleted(node: Podlet, ends: Path) -> None:
    looping = task("loop", "echo start >> /log/ends; exit 1", volumeMounts=AT)
    failing = container("fail", "trap 'exit 5' TERM; echo start >> /log/ends", volumeMounts=AT)
    running = node.run(pod(looping, failing, volumes=_volume(ends)))
    running.wait_for(
        lambda s: s.containers["loop"].reason == "CrashLoopBackOff" and s.containers["fail"].ready,
        20,
        "looping",
    )
    before = ends.read_text()
    running.delete()
    assert ends.read_text() == before
    assert running.status().containers["fail"].exit_code == 5


def test_a_pod_can_be_deleted_while_it_still_initializes(node: Podlet, ends: Path) -> None:
    running = node.run(
        pod(
            container("app"),
            inits=[task("init", "trap 'exit 1' TERM; sleep 600 & wait $!")],
            volumes=_volume(ends),
        )
    )
    running.wait_for(lambda s: s.containers["init"].state == "running", 20, "initializing")
    assert running.status().summary == "Init:0/1"
    running.delete(1)
    assert running.status().containers["app"].state == "waiting"
