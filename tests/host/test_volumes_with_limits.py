"""A volume with a limit behind a real keeper: a cut is no hang, and a takeover forgets nothing."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from sidemount.host import budget
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, view
from tests.host.mount_node import eventually

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(90)]

MI = 1 << 20
_WRITE = "import os, sys; os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'new', 0)"


def start(make_pod: MakePod) -> Pod:
    """Return a pod with a volume of one mebibyte, which is called hung after three seconds."""
    spec = directory_spec(filesystem="volume", takeover=True, hung_after_s=3)
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"),)))
    (pod.source("train") / "data").mkdir()
    budget.create(str(pod.source("train")), MI)
    pod.start()
    pod.wait_ready()
    return pod


def _is_succeeded(pod: Pod, before: int) -> bool:
    return pod.serving() != before


def test_a_cut_of_several_seconds_is_no_hang(make_pod: MakePod) -> None:
    pod = start(make_pod)
    seen, source = pod.seen(view("train").name), str(pod.source("train"))
    for number in range(30):  # more than a daemon works on at a time
        (seen / str(number)).write_bytes(b"old")
    serving = pod.serving()
    with budget.hold_still(source, 60):
        writers = [
            subprocess.Popen([sys.executable, "-c", _WRITE, str(seen / str(number))]) for number in range(30)
        ]
        time.sleep(7.0)  # twice what a hung daemon is given
        assert [writer.poll() for writer in writers] == [None] * 30
        assert (pod.source("train") / "data" / "0").read_bytes() == b"old"
    assert [writer.wait(30) for writer in writers] == [0] * 30
    assert pod.serving() == serving
    assert "daemon_killed_as_hung" not in pod.names(), pod.log_text()
    pod.end()


def test_a_successor_goes_on_with_removed_files_that_are_open(make_pod: MakePod) -> None:
    pod = start(make_pod)
    seen, source = pod.seen(view("train").name), str(pod.source("train"))
    file = os.open(seen / "f", os.O_RDWR | os.O_CREAT)
    os.write(file, b"x" * MI)
    os.unlink(seen / "f")
    for _ in range(3):
        before = pod.serving()
        os.kill(before, signal.SIGKILL)
        eventually(partial(_is_succeeded, pod, before))
        assert os.pread(file, 1, 0) == b"x"
        with budget.hold_still(source, 30) as still:
            assert still.used == MI
    with pytest.raises(OSError, match="quota"):
        (seen / "g").write_bytes(b"y")
    os.ftruncate(file, 10)
    assert budget.read(source).used == 10
    os.close(file)
    eventually(lambda: budget.read(source).used == 0)
    pod.end()
