"""What applications see while daemons and keepers die: nothing, or ENOTCONN on what was open, and never a bare directory."""

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, is_running, view, wait_stopped
from tests.host.mount_node import MountNode, abort_connections, eventually

pytestmark = [pytest.mark.fuse, pytest.mark.root]

READER = """
import os, sys, time
path, log = sys.argv[1:]
descriptor = os.open(path, os.O_RDONLY)
with open(log, "w", buffering=1) as out:
    while True:
        for what, action in (
            ("read", lambda: os.pread(descriptor, 100, 0)),
            ("stat", lambda: os.stat(path)),
            ("open", lambda: open(path).close()),
            ("list", lambda: os.listdir(os.path.dirname(path))),
        ):
            try:
                action()
                out.write("ok\\n")
            except OSError as error:
                out.write(f"{what} {error.errno}\\n")
        time.sleep(0.002)
"""


class Reader:
    """An application that holds a file open and reads, stats, opens and lists without end."""

    def __init__(self, node: MountNode, path: Path, log: Path, *argv: str) -> None:
        self._log = log
        self.process = node.start(["python3", "-c", READER, path, log])
        eventually(lambda: self.count("ok") > 10, what="the reader reads")

    def lines(self) -> list[str]:
        """Return what it has seen so far."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    def count(self, line: str) -> int:
        """Return how often it has seen that."""
        return self.lines().count(line)

    def faults(self) -> set[str]:
        """Return what it has seen but success."""
        return set(self.lines()) - {"ok"}

    def goes_on(self) -> bool:
        """Tell whether it succeeds again."""
        before = self.count("ok")
        eventually(lambda: self.count("ok") > before + 10, what=f"the reader goes on; it saw {self.faults()}")
        return True


@pytest.fixture
def pod(make_pod: MakePod) -> Pod:
    """A pod with a file and a directory with a file, and a view of each kind."""
    views = (view("train"), view("train", "sub", read_only=True))
    pod = make_pod(KeeperMount(spec=directory_spec(), views=views))
    (pod.source("train") / "file").write_text("content")
    (pod.source("train") / "sub").mkdir()
    (pod.source("train") / "sub" / "file").write_text("content")
    return pod.start()


def application(node: MountNode, place: Path, at: Path) -> MountNode:
    """Return a container that got a view by `subPath`, as kubelet does it: a bind of the view, and a slave of that."""
    at.mkdir(exist_ok=True)
    node.run("mount", "--bind", place, at)
    return MountNode(node.work, parent=node)


def bare_entries(pod: Pod) -> list[str]:
    """Return what lies in the directories beneath all mounts. Only once nothing is mounted."""
    assert pod.node.fuse_mounts() == []
    return [str(path) for path in pod.seen("").rglob("*") if not path.is_dir()]


def end_cleanly(pod: Pod) -> None:
    """End the pod, and check that nothing is left and nothing fell beneath a mount."""
    assert pod.end() == 0
    for bind in pod.node.fuse_mounts():
        assert bind.mount_point.startswith(str(pod.node.work / "app")), (
            "kubelet's bind is kubelet's to remove"
        )
        pod.node.run("umount", "-l", bind.mount_point)
    assert bare_entries(pod) == []


def test_a_killed_daemon_is_replaced_and_new_opens_work(pod: Pod) -> None:
    reader = Reader(pod.node, pod.place("train") / "file", pod.node.work / "reader")
    for generation in (2, 3):
        pod.kill_daemon()
        pod.start_daemon()
        pod.wait_ready()
        assert reader.goes_on()
        assert pod.layers("train") == generation
    assert reader.faults() <= {f"{what} {errno.ENOTCONN}" for what in ("read", "stat", "open", "list")} | {
        f"{what} {errno.ECONNABORTED}" for what in ("read", "stat", "open", "list")
    }
    end_cleanly(pod)


def test_a_running_container_sees_the_new_mount_through_its_sub_path_bind(pod: Pod) -> None:
    """S0-29, M6, M7: no container is restarted, and no CO is called."""
    name = view("train", "sub", read_only=True).name
    app = application(pod.node, pod.place(name), pod.node.work / "app")
    try:
        reader = Reader(app, pod.node.work / "app" / "file", pod.node.work / "reader")
        for _ in range(2):
            pod.kill_daemon()
            pod.start_daemon()
            pod.wait_ready()
            assert reader.goes_on()
        reader.process.kill()
        with pytest.raises(OSError, match="Read-only"):
            app.call(lambda: (pod.node.work / "app" / "x").write_text(""))
    finally:
        app.close()
    end_cleanly(pod)


def test_a_container_started_between_two_deaths_sees_the_third_mount(pod: Pod) -> None:
    pod.kill_daemon()
    pod.start_daemon()
    pod.wait_ready()
    app = application(pod.node, pod.place("train"), pod.node.work / "app")
    try:
        pod.kill_daemon()
        pod.start_daemon()
        pod.wait_ready()
        assert app.run("cat", pod.node.work / "app" / "file").stdout == "content"
    finally:
        app.close()
    end_cleanly(pod)


def test_no_write_ever_lands_beneath_a_mount(pod: Pod) -> None:
    writer = pod.node.start(
        [
            "sh",
            "-c",
            f"i=0; while :; do i=$((i+1)); echo x > {pod.place('train')}/w$i; echo y > {pod.place('train')}/w; done",
        ]
    )
    for _ in range(3):
        time.sleep(0.2)
        pod.kill_daemon()
        pod.start_daemon()
        pod.wait_ready()
    writer.kill()
    writer.wait(20)
    end_cleanly(pod)


def test_a_killed_keeper_is_not_noticed(pod: Pod) -> None:
    reader = Reader(pod.node, pod.place("train") / "file", pod.node.work / "reader")
    for _ in range(4):
        pod.keeper.kill()
        pod.keeper.wait(20)
        assert reader.goes_on()
        pod.start_keeper()
        pod.wait_ready()
    assert reader.goes_on()
    assert reader.faults() == set()
    assert pod.layers("train") == 1
    assert "daemon_came_back" in pod.names()
    reader.process.kill()
    end_cleanly(pod)
    assert pod.daemons["train"].wait(20) == 0


def test_a_daemon_killed_after_a_keeper_was_replaced_is_replaced(pod: Pod) -> None:
    pod.keeper.kill()
    pod.start_keeper()
    pod.wait_ready()
    pod.kill_daemon()
    pod.start_daemon()
    pod.wait_ready()
    assert (pod.seen("train") / "file").read_text() == "content"
    assert pod.layers("train") == 2
    end_cleanly(pod)


@pytest.mark.parametrize("first", ["keeper", "daemon"])
def test_keeper_and_daemon_killed_together_end_in_a_new_mount(pod: Pod, first: str) -> None:
    kills: list[Callable[[], None]] = [pod.keeper.kill, pod.kill_daemon]
    for kill in kills if first == "keeper" else reversed(kills):
        kill()
    pod.keeper.wait(20)
    assert pod.node.call(lambda: dead(pod.place("train")))
    pod.start_keeper()
    pod.start_daemon()
    pod.wait_ready()
    assert (pod.seen("train") / "file").read_text() == "content"
    end_cleanly(pod)


def dead(place: Path) -> bool:
    """Tell whether a mount is dead."""
    try:
        os.statvfs(place)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def test_a_keeper_killed_before_its_daemon_was_ready_starts_over(make_pod: MakePod) -> None:
    pod = make_pod()
    pod.start_keeper()
    eventually(lambda: "phase_changed" in pod.names())
    pod.start_daemon()
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.start_keeper()
    if pod.daemons["train"].poll() is not None:
        pod.start_daemon()
    until = time.monotonic() + 20
    while pod.probe() != "ready":
        assert time.monotonic() < until, pod.log_text()
        if not is_running(pod.daemons["train"]):
            pod.start_daemon()
    end_cleanly(pod)


def test_a_keeper_restarted_over_dead_mounts_and_told_to_end_leaves_nothing(pod: Pod) -> None:
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.kill_daemon()
    keeper = pod.start_keeper()
    eventually(lambda: blocks_sigterm(keeper.pid), every_s=0.001)  # as early as a signal is not lost
    began = time.monotonic()
    end_cleanly(pod)
    assert time.monotonic() - began < 12  # and not the 20 s of a flush


def blocks_sigterm(pid: int) -> bool:
    """Tell whether a process has blocked or handles SIGTERM."""
    fields = dict(
        line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return bool((int(fields["SigBlk"], 16) | int(fields["SigCgt"], 16)) & 1 << (signal.SIGTERM - 1))


def test_a_keeper_told_to_end_before_its_daemon_came_back_lets_it_flush(pod: Pod) -> None:
    (pod.seen("train") / "last").write_text("words")
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.start_keeper()
    eventually(lambda: "own_mount_found" in pod.names())
    end_cleanly(pod)
    assert pod.daemons["train"].wait(10) == 0
    assert (pod.source("train") / "last").read_text() == "words"


def test_a_stopped_daemon_that_does_not_come_back_is_replaced(make_pod: MakePod) -> None:
    pod = make_pod(flags=("--adopt-seconds", "2")).start()
    pod.stop_daemon()
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.start_keeper()
    eventually(lambda: pod.node.call(lambda: dead(pod.place("train"))), timeout_s=10)
    pod.kill_daemon()
    pod.start_daemon()
    pod.wait_ready()
    end_cleanly(pod)


def test_a_hung_daemon_is_replaced_after_its_deadline(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(hung_after_s=2), views=(view("train"),))).start()
    pod.stop_daemon()
    hanging = pod.node.start(["ls", pod.place("train")])
    assert hanging.wait(10) != 0  # freed when the connection is aborted
    assert pod.daemons["train"].wait(20) == -signal.SIGKILL
    pod.start_daemon()
    pod.wait_ready()
    assert pod.layers("train") == 2
    end_cleanly(pod)


def test_a_stopped_keeper_blames_nobody_for_the_time_it_was_away(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(hung_after_s=1), views=(view("train"),))).start()
    for _ in range(2):
        wait_stopped(pod.keeper.pid)
        time.sleep(2)
        os.kill(pod.keeper.pid, signal.SIGCONT)
        time.sleep(0.2)
    pod.wait_ready()
    assert is_running(pod.daemons["train"])
    assert "hung" not in pod.names()
    assert pod.layers("train") == 1
    end_cleanly(pod)


def test_an_aborted_connection_is_replaced(pod: Pod) -> None:
    """An admin's `echo 1 > abort`: the daemon gets a fresh connection, and its container need not be started again."""
    abort_connections({mount.minor for mount in pod.node.fuse_mounts()})
    eventually(lambda: pod.layers("train") == 2)
    pod.wait_ready()
    assert is_running(pod.daemons["train"])
    assert pod.layers("train") == 2
    assert (pod.seen("train") / "file").read_text() == "content"
    end_cleanly(pod)


def test_a_view_that_someone_unmounts_comes_back(pod: Pod) -> None:
    name = view("train", "sub", read_only=True).name
    pod.node.run("umount", "-l", pod.place(name))
    assert pod.probe().startswith("not ready: ")
    pod.wait_ready()
    assert (pod.seen(name) / "file").read_text() == "content"
    assert (pod.layers("train"), pod.layers(name)) == (1, 1)
    end_cleanly(pod)


def test_a_volume_that_someone_unmounts_comes_back(pod: Pod) -> None:
    pod.node.run("umount", "-l", pod.place("train"))
    assert pod.probe().startswith("not ready: ")
    pod.wait_ready()
    assert is_running(pod.daemons["train"])
    assert (pod.seen("train") / "file").read_text() == "content"
    end_cleanly(pod)


def test_a_daemon_that_cannot_start_adds_no_layer(make_pod: MakePod) -> None:
    """S0-30: a crash loop leaves the other volumes and the mount table alone."""
    mounts = [KeeperMount(spec=directory_spec(name), views=(view(name),)) for name in ("good", "bad")]
    pod = make_pod(*mounts)
    pod.source("bad").rmdir()
    pod.start_keeper()
    pod.start_daemon("good")
    pod.wait_ready("good")
    for _ in range(3):
        assert pod.start_daemon("bad").wait(10) == 3
    (fault,) = {e["fault"] for e in pod.events(pod.daemon_log("bad")) if e["event"] == "start_failed"}
    assert str(pod.source("bad")) in fault
    assert pod.layers("bad") == 0
    (pod.seen("good") / "x").write_text("")
    pod.source("bad").mkdir()
    pod.start_daemon("bad")
    pod.wait_ready("bad")
    assert pod.layers("bad") == 1
    end_cleanly(pod)


def test_a_missing_sub_path_is_told_and_heals_when_it_is_created(make_pod: MakePod) -> None:
    """S2-25: nothing is created by mounting, and the probe says what is missing."""
    missing = view("train", "not/there")
    pod = make_pod(KeeperMount(spec=directory_spec(), views=(view("train"), missing)))
    pod.start_keeper()
    pod.start_daemon()
    told = 'not ready: sub-path "not/there" of volume "train" does not exist on the volume'
    eventually(lambda: pod.probe().startswith(told), what=pod.probe())
    assert list(pod.source("train").iterdir()) == []
    (pod.source("train") / "not" / "there").mkdir(parents=True)
    pod.wait_ready()
    (pod.seen(missing.name) / "x").write_text("")
    assert (pod.source("train") / "not" / "there" / "x").exists()
    end_cleanly(pod)


def test_a_daemon_that_stands_still_while_its_keeper_is_replaced_is_called_hung(make_pod: MakePod) -> None:
    """The new keeper knows nothing of it but that nobody asks for work; once it does, all is well."""
    mount = KeeperMount(spec=directory_spec(hung_after_s=2), views=(view("train"),))
    pod = make_pod(mount, flags=("--adopt-seconds", "1")).start()
    assert pod.probe_hung() == "alive"
    pod.stop_daemon()
    pod.keeper.kill()
    pod.keeper.wait(20)
    assert not pod.probe_hung().startswith("hung"), "a keeper that is away says nothing of the daemon"
    pod.start_keeper()
    eventually(lambda: pod.probe_hung().startswith("hung: "), what="called hung")
    for pid in pod.processes():
        os.kill(pid, signal.SIGCONT)
    pod.wait_ready()
    assert pod.probe_hung() == "alive"
    assert "container_works_again" in pod.names()
