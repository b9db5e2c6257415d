"""A bucket served by keeper and daemon as in a pod: taken over with what is open, patient with its store, stored at the end."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, view
from tests.host.mount_node import MountNode, eventually
from tests.host.test_keeper_recovery import Reader, end_cleanly
from tests.host.test_takeover import finish, succession, unnoticed

pytestmark = [pytest.mark.fuse, pytest.mark.root]

_WRITER = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
for number in range(int(sys.argv[2])):
    line = b"%06d\\n" % number
    assert os.write(file, line) == len(line)
    if number % 50 == 0:
        os.fsync(file)
    time.sleep(0.002)
os.close(file)
"""


@pytest.fixture
def pod(make_pod: MakePod, node: MountNode) -> Pod:
    """A pod, live, with a directory of objects."""
    objects = node.work / "objects"
    objects.mkdir()
    (objects / "file").write_text("content")
    (objects / "sub").mkdir()
    (objects / "sub" / "file").write_text("content")
    spec = directory_spec(
        driver_class="objects", source=f"file://{objects}", filesystem="objects", takeover=True
    )
    return make_pod(KeeperMount(spec=spec, views=(view("train"), view("train", "sub")))).start()


def test_bucket_is_taken_over_with_what_is_read_and_written(pod: Pod) -> None:
    """S4-09, S4-11."""
    reader = Reader(pod.node, pod.place("train") / "file", pod.node.work / "reader")
    command = [sys.executable, "-c", _WRITER, str(pod.place("train") / "written"), "500"]
    writer = pod.node.start(command, log=pod.node.work / "writer.log")
    deaths = 0
    while writer.poll() is None:
        succession(pod)
        deaths += 1
        time.sleep(0.2)
    assert (writer.returncode, (pod.node.work / "writer.log").read_text()) == (0, "")
    assert deaths > 1
    wanted = b"".join(b"%06d\n" % number for number in range(500))
    assert (pod.node.work / "objects" / "written").read_bytes() == wanted
    assert (pod.seen("train") / "written").read_bytes() == wanted
    unnoticed(pod, reader)
    finish(pod, reader)
    assert pod.daemons["train"].wait(10) == 0


def test_what_is_open_at_the_end_is_stored(pod: Pod) -> None:
    file = os.open(pod.seen("train") / "open", os.O_CREAT | os.O_WRONLY)
    try:
        os.write(file, b"not closed yet")
        end_cleanly(pod)
    finally:
        with contextlib.suppress(OSError):  # nobody serves it any more
            os.close(file)
    assert pod.daemons["train"].wait(20) == 0
    assert (pod.node.work / "objects" / "open").read_bytes() == b"not closed yet"


def test_modules_are_loaded_before_anybody_is_forked(pod: Pod) -> None:
    """A successor begins at once: it imports nothing."""
    libraries = {line.split()[-1] for line in Path(f"/proc/{pod.serving()}/maps").read_text().splitlines()}
    first = {
        line.split()[-1] for line in Path(f"/proc/{pod.daemons['train'].pid}/maps").read_text().splitlines()
    }
    shared = {path for path in libraries if ".so" in path}
    assert any("_ssl" in path for path in shared)
    assert shared <= first
    assert succession(pod) < 5
    end_cleanly(pod)


class Deaf:
    """A server that takes connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._socket.getsockname()[1]

    def close(self) -> None:
        """End."""
        self._socket.close()


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    server = Deaf()
    yield server
    server.close()


def test_store_that_does_not_answer_is_waited_for_and_no_hang(make_pod: MakePod, deaf: Deaf) -> None:
    options = (
        ("endpoint", f"http://127.0.0.1:{deaf.port}"),
        ("region", "x"),
        ("requestTimeout", 4),
        ("retryTimeout", 4),
    )
    spec = directory_spec(
        driver_class="objects",
        source="s3://bucket",
        filesystem="objects",
        takeover=True,
        options=options,
        hung_after_s=2,
    )
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"),))).start()
    before = pod.serving()
    began = time.monotonic()
    done = pod.node.run("cat", pod.place("train") / "file", timeout_s=60, check=False)
    waited_s = time.monotonic() - began
    assert done.returncode == 1
    assert "timed out" in done.stderr
    assert 3 < waited_s < 40
    assert pod.serving() == before
    assert "process_killed_as_hung" not in pod.names(pod.daemon_log("train"))
    os.kill(before, signal.SIGKILL)
    eventually(lambda: pod.serving() != before, what="somebody else serves")
    end_cleanly(pod)
