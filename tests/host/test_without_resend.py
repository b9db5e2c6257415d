"""A kernel that cannot resend, forced: a death ends in an abort and a new mount at once, and nobody waits for what the dead had read."""

import errno
import os
import signal
from pathlib import Path

import pytest

from sidemount.host.fusectl import FuseControl
from sidemount.model.errors import Reason
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, is_running, view, wait_stopped
from tests.host.mount_node import eventually
from tests.host.test_keeper_recovery import Reader, end_cleanly

pytestmark = [pytest.mark.fuse, pytest.mark.root]

# Holds a file open and reads what no cache has.
HOLDER = """
import os, sys, time
held = os.open(sys.argv[1], os.O_RDONLY)
while True:
    os.posix_fadvise(held, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        print("ok" if os.pread(held, 100, 0) == b"content" else "other", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
    time.sleep(0.01)
"""

# Waits for the answer to one request, and tells how it came out.
ASKER = """
import os, sys
try:
    os.statvfs(sys.argv[1])
    print(0, flush=True)
except OSError as error:
    print(error.errno, flush=True)
"""


@pytest.fixture
def pod(make_pod: MakePod) -> Pod:
    """A pod with takeover, on a kernel before 6.9."""
    pod = make_pod(KeeperMount(spec=directory_spec(takeover=True), views=(view("train"),)))
    for name in ("file", "held"):
        (pod.source("train") / name).write_text("content")
    pod.start_keeper()
    pod.start_daemon("train", "--no-resend")
    pod.wait_ready()
    return pod


def outcome(log: Path) -> int:
    """Return what came out, once it has."""
    return int(eventually(lambda: log.exists() and log.read_text().strip(), what="an answer").split()[0] or 0)


@pytest.mark.parametrize("askers", [1, 8])
def test_what_a_dead_process_had_read_is_given_up_at_once(pod: Pod, askers: int) -> None:
    reader = Reader(pod.node, pod.place("train") / "file", pod.node.work / "reader")
    kept = pod.node.work / "holder"
    pod.node.start(["python3", "-c", HOLDER, pod.place("train") / "held"], log=kept)
    eventually(lambda: kept.exists() and kept.read_text(), what="the holder reads")
    serving = pod.serving()
    wait_stopped(serving)
    logs = [pod.node.work / f"asker{n}" for n in range(askers)]
    processes = [
        pod.node.start(["python3", "-c", ASKER, pod.place("train")], log=log) for n, log in enumerate(logs)
    ]
    # The keeper may ask for something just then, too, so they are counted, and the askers looked at.
    eventually(lambda: all(is_waiting(process.pid) for process in processes), what="their requests wait")
    eventually(lambda: waiting(pod) >= askers + 2, what="theirs, the reader's and the holder's requests wait")
    os.kill(serving, signal.SIGKILL)
    assert {outcome(log) for log in logs} <= {errno.ECONNABORTED, errno.ENOTCONN}
    assert all(process.wait(20) == 0 for process in processes)
    pod.wait_ready()
    assert reader.goes_on()
    eventually(lambda: kept.read_text().splitlines()[-1] == str(errno.ENOTCONN), what="what was open is lost")
    assert set(kept.read_text().splitlines()) <= {"ok", str(errno.ENOTCONN), str(errno.ECONNABORTED)}
    assert is_running(pod.daemons["train"]), "kubelet is not needed"
    assert pod.layers("train") == 2
    (pod.seen("train") / "new").write_text("words")
    assert (pod.source("train") / "new").read_text() == "words"
    reader.process.kill()
    reader.process.wait(20)
    end_cleanly(pod)


def is_waiting(pid: int) -> bool:
    """Tell whether a process waits for an answer to a request."""
    return "fuse" in Path(f"/proc/{pid}/stack").read_text()


def waiting(pod: Pod) -> int:
    """Return how many requests have no answer."""
    control = FuseControl()
    try:
        return max(control.waiting(mount.minor) or 0 for mount in pod.node.fuse_mounts())
    finally:
        control.close()


def test_the_log_says_that_there_is_no_takeover_and_why(pod: Pod) -> None:
    (told,) = [e for e in pod.events(pod.daemon_log("train")) if e["event"] == "no_takeover"]
    assert told["reason"] == Reason.NO_RESEND.value
    end_cleanly(pod)


def test_a_kernel_that_can_resend_is_not_spoken_of(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(takeover=True), views=(view("train"),))).start()
    assert "no_takeover" not in pod.names(pod.daemon_log("train"))
    end_cleanly(pod)
