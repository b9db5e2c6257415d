"""The Python API, and what happens to the machine when a node dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.podlet import cgroups
from e2e.podlet.client import Podlet
from e2e.podlet.errors import NodeFailure, NotInTime, PodletError, PodRefused
from tests.podlet.conftest import MakeNode
from tests.podlet.eventually import eventually
from tests.podlet.pods import container, pod, task

pytestmark = pytest.mark.root


def test_exec_gives_output_status_and_input_through(node: Podlet) -> None:
    running = node.run(pod(container("app", "echo log; echo err >&2")))
    running.wait_ready(20)
    done = running.exec("app", ["sh", "-c", "cat; echo no >&2; exit 3"], stdin="in\udcff")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "in\udcff", "no\n")
    began = time.monotonic()
    assert running.exec("app", ["sleep", "60"], timeout_s=0.3).exit_code is None
    assert time.monotonic() - began < 5
    assert running.logs("app") == "log\nerr\n"
    running.delete()


def test_logs_of_the_run_before_and_after_the_pod_is_gone(node: Podlet) -> None:
    app = container("app", "test -e /dev/shm/again || { touch /dev/shm/again; echo one; exit 1; }; echo two")
    running = node.run(pod(app))
    running.wait_for(lambda s: s.containers["app"].restart_count == 1 and s.ready, 20, "restarted")
    assert (running.logs("app"), running.logs("app", previous=True)) == ("two\n", "one\n")
    running.delete()
    assert running.logs("app") == "two\n"


def test_pid_is_the_containers_first_process_as_the_machine_sees_it(node: Podlet) -> None:
    running = node.run(pod(container("app")))
    running.wait_ready(20)
    pid = running.pid("app")
    assert (
        os.readlink(f"/proc/{pid}/ns/pid")
        == running.exec("app", ["readlink", "/proc/1/ns/pid"]).stdout.strip()
    )
    os.kill(pid, signal.SIGKILL)
    status = running.wait_for(lambda s: s.containers["app"].restart_count == 1 and s.ready, 20, "restarted")
    assert status.containers["app"].last_exit_code == 137
    running.delete()


def test_one_pod_at_a_time_and_the_next_after_it(node: Podlet) -> None:
    first = node.run(pod(container("app")))
    with pytest.raises(PodRefused, match="still runs on this node"):
        node.run(pod(container("app")))
    first.wait_ready(20)
    first.delete()
    second = node.run(pod(container("app")))
    second.wait_ready(20)
    second.delete()


def test_mistakes_are_told(node: Podlet) -> None:
    with pytest.raises(PodRefused, match=r"no image is named 'nginx'; given: busybox"):
        node.run(pod({"name": "app", "image": "nginx"}))
    with pytest.raises(PodletError, match="no pod has been run"):
        node.request("status")
    running = node.run(pod(container("app"), inits=[task("slow", "sleep 600")]))
    with pytest.raises(PodletError, match=r"has no container 'no'; it has slow, app"):
        running.logs("no")
    with pytest.raises(PodletError, match="container app of pod pod is not running"):
        running.exec("app", ["true"])
    with pytest.raises(
        NotInTime, match=r"(?s)pod pod is not ready after 0.2 s\npod pod: Init:\S+\nCONTAINER.*slow"
    ):
        running.wait_ready(0.2)


def test_a_node_that_dies_takes_everything_along(node: Podlet) -> None:
    running = node.run(pod(container("app", "sleep 5432 & true")))
    running.wait_ready(20)
    pid = running.pid("app")
    for child in Path(f"/proc/{node.process_id}/task/{node.process_id}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    with pytest.raises(NodeFailure):
        running.wait_for(lambda _: False, 10, "never")
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_client_that_dies_takes_its_node_along(busybox: Path, tmp_path: Path) -> None:
    script = (
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "from e2e.podlet.client import Podlet\n"
        "node = Podlet(Path(sys.argv[1]), images={'busybox': Path(sys.argv[2])}).__enter__()\n"
        "node.run(json.loads(sys.argv[3])).wait_ready(20)\n"
        "print(node.process_id, node.node_id, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    manifest = json.dumps(pod(task("app", "trap '' TERM; sleep 600")))
    argv = [sys.executable, "-c", script, str(tmp_path), str(busybox), manifest]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    process, node = done.stdout.split()
    eventually(lambda: not Path(f"/proc/{process}").exists(), 10)
    assert not cgroups.left_of(node)


def test_two_nodes_live_side_by_side(make_node: MakeNode) -> None:
    pods = [make_node().run(pod(container("app", f"echo {n}"))) for n in range(2)]
    for n, running in enumerate(pods):
        running.wait_ready(20)
        assert running.logs("app") == f"{n}\n"
        running.delete()
