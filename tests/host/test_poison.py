"""A request that ends every process that works on it: its caller gets an errno, everybody else goes on."""

import subprocess
import time

import pytest

from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, is_running
from tests.host.test_keeper_recovery import end_cleanly
from tests.host.test_takeover import read_from, takeover_pod

pytestmark = [pytest.mark.fuse, pytest.mark.root]
ENDED_S = 90.0
CAT = """
import sys
try:
    sys.stdout.write(open(sys.argv[1]).read())
except OSError as error:
    sys.stdout.write(f"errno {error.errno}")
"""
INNOCENT = 6


def _poisoned_pod(make_pod: MakePod, how: str, poison: str = "poison") -> Pod:
    pod = takeover_pod(make_pod)
    (pod.source("train") / "poison").write_text(poison)
    for number in range(INNOCENT):
        (pod.source("train") / f"slow{number}").write_text(f"slow {number}")
    pod.start_keeper()
    pod.start_daemon("train", entry=("tests.host.poisoned_daemon", how, "--"))
    pod.wait_ready()
    return pod


def _cat(pod: Pod, name: str) -> "subprocess.Popen[bytes]":
    return pod.node.start(
        ["python3", "-c", CAT, str(pod.place("train") / name)], log=pod.node.work / f"{name}.out"
    )


def _ended(pod: Pod, process: "subprocess.Popen[bytes]", name: str, how: str) -> str:
    """Wait for its end, restarting the daemon's container as kubelet does."""
    until = time.monotonic() + ENDED_S
    while is_running(process):
        assert time.monotonic() < until, pod.log_text()
        if not is_running(pod.daemons["train"]):
            pod.start_daemon("train", entry=("tests.host.poisoned_daemon", how, "--"))
        time.sleep(0.02)
    return (pod.node.work / f"{name}.out").read_text()


def test_only_the_request_that_kills_gets_an_error(make_pod: MakePod) -> None:
    how = "SIGSEGV"
    pod = _poisoned_pod(make_pod, how)
    reader = read_from(pod)
    poison = _cat(pod, "poison")
    innocent = [_cat(pod, f"slow{number}") for number in range(INNOCENT)]
    assert _ended(pod, poison, "poison", how) == "errno 5"
    for number, process in enumerate(innocent):
        assert _ended(pod, process, f"slow{number}", how) == f"slow {number}"
    assert reader.goes_on()
    assert reader.faults() == set()
    assert pod.layers("train") == 1, "the mount is still the first one"
    assert "request_refused" in pod.names(pod.daemon_log("train"))
    reader.process.kill()
    reader.process.wait(20)
    end_cleanly(pod)


@pytest.mark.parametrize(("how", "kills"), [("SIGKILL", 20), ("SIGHUP", 7), ("container", 5)])
def test_a_request_that_is_in_hand_at_every_kill_from_outside_is_answered(
    make_pod: MakePod, how: str, kills: int
) -> None:
    """However often, though nothing else is done meanwhile: nobody who kills from outside makes it an application's error."""
    text = f"killed {kills} times"
    pod = _poisoned_pod(make_pod, how, text)
    assert _ended(pod, _cat(pod, "poison"), "poison", how) == text
    assert pod.layers("train") == 1, "the mount is still the first one"
    assert "request_refused" not in pod.names(pod.daemon_log("train"))
    end_cleanly(pod)
