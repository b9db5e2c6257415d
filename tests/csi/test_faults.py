"""Whatever dies: what was published stays or comes back, and what is unpublished goes."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc import StatusCode

from tests.csi.plugin import Plugin, Refused
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]


class Writer:
    """Writes and reads without a pause, through one open file and through new ones; any error is kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.rounds = 0
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        try:
            with open(self._directory / "log", "r+b", buffering=0, opener=_create) as file:
                while not self._is_over.is_set():
                    text = b"%020d\n" % self.rounds
                    assert os.pwrite(file.fileno(), text, 0) == len(text)
                    assert os.pread(file.fileno(), 64, 0) == text
                    (self._directory / "new").write_bytes(text)
                    os.unlink(self._directory / "new")
                    self.rounds += 1
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def goes_on(self) -> None:
        """Wait until it has done some more."""
        before = self.rounds
        eventually(lambda: self.errors or self.rounds > before + 3, what="more rounds", timeout_s=40)
        assert self.errors == []

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(40)
        assert not self._thread.is_alive()
        assert self.errors == []


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)


def test_a_killed_plugin_costs_no_application_anything(plugin: Plugin) -> None:
    """S0-08, S3-02: no I/O error, the same daemon and mount before, meanwhile and afterwards; then it all ends as usual."""
    plugin.publish()
    before = plugin.first_daemon(), plugin.mount_ids()
    with Writer(plugin.seen()) as writer:
        for _ in range(2):
            plugin.kill()
            writer.goes_on()
            plugin.start()
            eventually(lambda: not plugin.stats().volume_condition.abnormal, what="taken back")
            plugin.publish()
            writer.goes_on()
    assert (plugin.first_daemon(), plugin.mount_ids()) == before
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_a_volume_that_is_served_is_never_called_abnormal_because_the_plugin_has_just_started(
    plugin: Plugin,
) -> None:
    """Kubelet would tell of it in an event."""
    plugin.publish()
    for _ in range(3):
        plugin.kill()
        plugin.start()
        condition = plugin.stats().volume_condition
        assert not condition.abnormal, condition.message


def test_sigterm_leaves_everything_and_ends_with_success(plugin: Plugin) -> None:
    """S3-07."""
    plugin.publish()
    with Writer(plugin.seen()) as writer:
        assert plugin.stop() == 0
        assert not plugin.socket.exists()
        writer.goes_on()
        plugin.start()
        writer.goes_on()
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_a_killed_keeper_is_replaced_and_takes_the_descriptors_back(plugin: Plugin) -> None:
    plugin.publish()
    before = plugin.first_daemon(), plugin.mount_ids()
    with Writer(plugin.seen()) as writer:
        os.kill(plugin.keeper(), signal.SIGKILL)
        writer.goes_on()
        eventually(lambda: plugin.events("keeper_gone"), what="noticed")
        eventually(lambda: not plugin.stats().volume_condition.abnormal, what="taken back")
        plugin.publish()
    assert (plugin.first_daemon(), plugin.mount_ids()) == before
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_a_keeper_that_hangs_is_replaced(node: MountNode) -> None:
    """Nobody waits for it for ever, and no application sees it."""
    plugin = Plugin(node, flags=("--stats-timeout-seconds", "1"))
    try:
        plugin.start()
        plugin.publish()
        plugin.publish("other")
        daemons, mounts = plugin.daemons(), plugin.mount_ids()
        with Writer(plugin.seen()) as writer:
            hanging = plugin.keeper()
            os.kill(hanging, signal.SIGSTOP)
            plugin.unpublish("other")
            assert plugin.keeper() != hanging
            plugin.publish()
            writer.goes_on()
        assert plugin.first_daemon() in daemons
        assert set(plugin.mount_ids()) < set(mounts)
        plugin.unpublish()
        assert plugin.leftovers() == []
    finally:
        plugin.end()


def test_a_daemon_that_is_killed_whole_is_continued_by_another(plugin: Plugin) -> None:
    """S4-30 and takeover: an open file goes on, over the same mount."""
    plugin.publish()
    mounts = plugin.mount_ids()
    with Writer(plugin.seen()) as writer:
        writer.goes_on()
        first = plugin.first_daemon()
        for pid in plugin.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        writer.goes_on()
    assert plugin.first_daemon() != first
    assert plugin.mount_ids() == mounts
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_everything_killed_at_once_is_mounted_anew_without_a_call(node: MountNode, plugin: Plugin) -> None:
    """S0-29, S3-01: at the next start, at the same target, also where a container sees it as a slave."""
    (plugin.store() / "file").write_text("data")
    plugin.publish()
    node.run("mount", "--make-rshared", "/")
    container = MountNode(node.work, parent=node)
    try:
        plugin.kill()
        for pid in plugin.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: plugin.daemons() == [], what="dead")
        plugin.start()
        eventually(lambda: not plugin.stats().volume_condition.abnormal, what="live again")
        assert container.run("cat", plugin.target("t") / "file").stdout == "data"
    finally:
        container.close()
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_a_publish_finds_a_dead_mount_and_heals_it_within_the_call(plugin: Plugin) -> None:
    """S4-30, S3-13: nobody is left who holds the connection."""
    plugin.publish()
    os.kill(plugin.keeper(), signal.SIGSTOP)  # it can take nothing back meanwhile
    stopped = plugin.keeper()
    for pid in plugin.daemons():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.kill(stopped, signal.SIGKILL)
    plugin.publish()
    (plugin.seen() / "alive").write_text("")
    assert (plugin.store() / "alive").exists()
    plugin.unpublish()
    assert plugin.leftovers() == []


@pytest.mark.slow
def test_a_hung_daemon_is_told_as_abnormal_in_time_and_stops_no_other_call(plugin: Plugin) -> None:
    """S4-20, S0-21: within ten seconds; others are served meanwhile; unpublish works."""
    plugin.publish("a")
    plugin.publish("b", "other")
    (path,) = (
        p for p in (plugin.state / "daemons").glob("*.pid") if _serves(int(p.read_text()), plugin, "vol")
    )
    _stop_all(int(path.read_text()))
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(plugin.stats("a").volume_condition.abnormal))
    began = time.monotonic()
    asking.start()
    assert not plugin.stats("b", "other").volume_condition.abnormal
    assert time.monotonic() - began < 5
    asking.join(15)
    assert answers == [True]
    assert time.monotonic() - began < 11
    plugin.unpublish("b", "other")
    plugin.unpublish("a")
    assert plugin.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_a_daemon_that_hangs_whole_holds_an_unpublish_up_for_ten_seconds(
    plugin: Plugin, restart: bool
) -> None:
    """S0-21: it says nothing, so there is nothing to be flushed; what was acknowledged is in the store."""
    plugin.publish()
    with open(plugin.seen() / "file", "wb", buffering=0) as file:
        file.write(b"acknowledged")
        os.fsync(file.fileno())
        _stop_all(plugin.first_daemon())
        if restart:
            plugin.kill()
            plugin.start()
        began = time.monotonic()
        plugin.unpublish()
        assert time.monotonic() - began < 12
        with contextlib.suppress(OSError):
            file.close()
    assert (plugin.store() / "file").read_bytes() == b"acknowledged"
    assert plugin.leftovers() == []


def test_a_mount_that_somebody_takes_away_comes_back(plugin: Plugin) -> None:
    plugin.publish()
    plugin.node.run("umount", "-l", plugin.target("t"))
    plugin.publish()
    (plugin.seen() / "file").write_text("")
    assert (plugin.store() / "file").exists()
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_a_target_that_somebody_removes_is_made_again(plugin: Plugin) -> None:
    """A publish heals what is broken; of what it may not, it says so at once."""
    plugin.publish()
    plugin.node.run("umount", "-l", plugin.target("t"))
    plugin.target("t").rmdir()
    plugin.publish()
    (plugin.seen() / "file").write_text("")
    plugin.node.run("umount", "-l", plugin.target("t"))
    plugin.target("t").rmdir()
    plugin.target("t").write_text("somebody's file")
    with pytest.raises(Refused, match="not a directory any more") as refused:
        plugin.publish()
    assert refused.value.code is StatusCode.FAILED_PRECONDITION
    plugin.unpublish()
    assert plugin.target("t").read_text() == "somebody's file"
    plugin.target("t").unlink()
    assert plugin.leftovers() == []


def test_an_unpublish_after_everything_has_died_succeeds(plugin: Plugin) -> None:
    """S0-21: daemon dead, target's directory gone beneath the mount's place, plugin restarted in between."""
    plugin.publish()
    plugin.kill()
    for pid in plugin.daemons():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    plugin.node.run("umount", "-l", plugin.target("t"))
    plugin.target("t").rmdir()
    plugin.start()
    plugin.unpublish()
    eventually(lambda: plugin.leftovers() == [], what="nothing left")


def test_data_that_was_written_is_in_the_store_when_unpublish_returns(plugin: Plugin) -> None:
    """S0-16: also what a process still holds open."""
    plugin.publish()
    file = os.open(plugin.seen() / "open", os.O_WRONLY | os.O_CREAT)
    try:
        os.write(file, b"x" * 300_000)
        plugin.unpublish()
    finally:
        with contextlib.suppress(OSError):  # its filesystem has ended
            os.close(file)
    assert (plugin.store() / "open").read_bytes() == b"x" * 300_000
    assert plugin.leftovers() == []


@pytest.fixture
def dying(node: MountNode) -> Iterator[Plugin]:
    """Return a plugin that has not been started, and records its points."""
    plugin = Plugin(node)
    plugin.environment = {"DIES_AT": "0", "POINTS_TO": str(node.work / "points")}
    try:
        yield plugin
    finally:
        plugin.end()


_POINTS = 24  # before and after each step of a publish, and before and after undoing each in an unpublish
_SHORT = (9, 18)  # while the daemon starts, and in the middle of the end


def test_the_points_where_a_crash_may_happen_are_all_tried(dying: Plugin) -> None:
    dying.start("tests.csi.dying_plugin")
    _publish_and_unpublish(dying)
    points = Path(dying.environment["POINTS_TO"]).read_text().splitlines()
    assert len(points) == _POINTS
    assert dying.leftovers() == []


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=() if number in _SHORT else pytest.mark.slow)
        for number in range(1, _POINTS + 1)
    ],
)
def test_a_crash_at_any_point_of_publish_and_unpublish(dying: Plugin, number: int) -> None:
    """S3-15, S0-20: afterwards a publish works, and an unpublish leaves nothing."""
    dying.environment["DIES_AT"] = str(number)
    dying.start("tests.csi.dying_plugin")
    with pytest.raises(Refused) as refused:
        _publish_and_unpublish(dying)
    assert refused.value.code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
    dying.process.wait(10)
    dying.environment["DIES_AT"] = "0"
    dying.start("tests.csi.dying_plugin")
    dying.publish()
    (dying.seen() / "file").write_text("after")
    assert (dying.store() / "file").read_text() == "after"
    dying.unpublish()
    assert dying.leftovers() == []


def _publish_and_unpublish(plugin: Plugin) -> None:
    plugin.publish()
    plugin.unpublish()


def _serves(pid: int, plugin: Plugin, volume: str) -> bool:
    return str(plugin.store(volume)).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def _stop_all(pid: int) -> None:
    """Stop a process and its children, itself first: it would replace them."""
    os.kill(pid, signal.SIGSTOP)
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    for child in done.stdout.split():
        _stop_all(int(child))
