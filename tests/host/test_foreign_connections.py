"""FUSE mounts of others, as like ours as can be: whatever becomes of our connections, theirs are never aborted.

They are mounted beside our places and within our volume, also with our own source and type, and with the very device number that
a connection of ours had.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sidemount.host import mount_api
from sidemount.host.fuse_mount import FuseConnection, MountPlan, open_connection
from sidemount.host.fusectl import FuseControl
from sidemount.host.mount_table import connection_of
from sidemount.model.mountinfo import Mount
from sidemount.model.mountspec import KeeperMount
from sidemount.model.names import FUSE_SUBTYPE, mount_source
from tests.host.conftest import MakePod
from tests.host.keeper_pod import PYTHON, Pod, directory_spec, view, wait_stopped
from tests.host.mount_node import MountNode, eventually
from tests.host.test_external_clients import CLIENT, client_spec

pytestmark = [pytest.mark.fuse, pytest.mark.root]
TRIES = 20  # device numbers are the whole machine's: another process may be faster

# Opens a file anew each time, from a directory that it holds: no mount over that, nor its end in the mount table, comes between.
HOLDER = """
import os, sys, time
directory = os.open(sys.argv[1], os.O_RDONLY)
while True:
    try:
        file = os.open("file", os.O_RDONLY, dir_fd=directory)
        print("ok" if os.read(file, 100) == b"content" else "other", flush=True)
        os.close(file)
    except OSError as error:
        print(error.strerror, flush=True)
    time.sleep(0.01)
"""


class Foreigner:
    """Somebody else's FUSE client, and somebody who uses it. `disguised`: with our own type and source; else it is bindfs."""

    def __init__(self, node: MountNode, name: str, at: Path, *, disguised: bool) -> None:
        self._node = node
        self._at = at
        self._log = node.work / f"{name}.txt"
        origin = node.work / "foreign"
        if not origin.exists():
            origin.mkdir()
            (origin / "file").write_text("content")
        script = node.work / "foreign.py"
        script.write_text(
            CLIENT.replace("set(pyfuse3.default_options)", "{*pyfuse3.default_options, *sys.argv[4:]}")
        )
        likeness = (f"fsname={mount_source('', 'train')}", f"subtype={FUSE_SUBTYPE}")
        argv: list[str | Path] = [PYTHON, script, at, "serve", origin / "file", *likeness]
        self._client = node.start(argv if disguised else ["bindfs", "-f", origin, at])
        self.mount: Mount = eventually(self._mounted, what=f"a foreign client mounts at {at}")
        assert self.mount.is_ours == disguised
        self._holder = node.start(["python3", "-c", HOLDER, at], log=self._log)
        self.works()

    def _mounted(self) -> Mount | None:
        found = [m for m in self._node.mounts() if m.mount_point == str(self._at)]
        return found[-1] if found and found[-1].root == "/" and "fuse" in found[-1].fstype else None

    def works(self) -> bool:
        """Tell that it has worked up to now, and still does."""
        before = self._lines()
        eventually(lambda: len(self._lines()) > len(before) + 5, what="the foreign mount is used")
        assert set(self._lines()) <= {"ok"}
        return True

    def _lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def end(self) -> None:
        """Let it go."""
        for process in (self._holder, self._client):
            process.kill()
            process.wait(10)
        self._node.run("umount", "-l", self._at, check=False)


@pytest.fixture(params=["given", "own"])
def pod(request: pytest.FixtureRequest, make_pod: MakePod, node: MountNode) -> Pod:
    """A pod whose volume is served by a daemon of ours, or by a client that mounts by itself."""
    if request.param == "given":
        pod = make_pod(KeeperMount(spec=directory_spec(hung_after_s=2), views=(view("train"),)))
        source = pod.source("train")
    else:
        source = node.work / "origin"
        source.mkdir()
        command = ("bindfs", "-f", str(source), "${mountpoint}")
        pod = make_pod(
            KeeperMount(spec=client_spec(*command, descriptor=False, hung_after_s=2), views=(view("train"),))
        )
    (source / "file").write_text("content")
    (source / "within").mkdir()
    return pod.start()


def restart(pod: Pod) -> None:
    """Start the daemon again, and wait until the volume is live."""
    pod.daemons["train"].wait(20)
    pod.start_daemon()
    pod.wait_ready(timeout_s=30)


def kill(pod: Pod) -> None:
    """The daemon dies."""
    pod.kill_daemon()
    restart(pod)


def hang(pod: Pod) -> None:
    """The daemon hangs, with a request of an application's."""
    stopped = pod.processes()
    for pid in stopped:
        wait_stopped(pid)
    pod.node.start(["ls", pod.place("train")]).wait(20)
    for pid in stopped:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
    restart(pod)


def kill_both(pod: Pod) -> None:
    """Keeper and daemon die."""
    pod.keeper.kill()
    pod.kill_daemon()
    pod.keeper.wait(20)
    pod.start_keeper()
    restart(pod)


def take_numbers_below(number: int, work: Path) -> None:
    """Have the number be the next that the kernel gives: it gives the lowest that is free."""
    for count in range(256):
        place = work / f"taken{count}"
        place.mkdir()
        mount_api.mount("taken", str(place), "tmpfs", 0, "size=4k")
        if os.stat(place).st_dev >= os.makedev(0, number):
            mount_api.umount2(str(place), 0)
            place.rmdir()
            return


def test_mounts_like_ours_are_never_aborted(pod: Pod) -> None:
    places = [pod.mounts_dir / "other", pod.mounts_dir / "another"]
    for place in places:
        pod.node.run("mkdir", place)
    foreigners = [
        Foreigner(pod.node, "beside", places[0], disguised=True),
        Foreigner(pod.node, "bindfs", places[1], disguised=False),
        Foreigner(pod.node, "within", pod.place("train") / "within", disguised=True),
    ]
    happenings: list[Callable[[Pod], None]] = [kill, hang, kill_both]
    for happening in happenings:
        happening(pod)
        assert all(f.works() for f in foreigners)
    assert pod.end() == 0
    assert all(f.works() for f in foreigners)
    assert {Path(m.mount_point) for m in pod.node.fuse_mounts()} == set(places)
    for foreigner in foreigners:
        foreigner.end()
    for place in places:
        pod.node.run("rmdir", place)


def test_a_mount_with_the_number_that_ours_had_is_not_aborted(pod: Pod) -> None:
    """The keeper sleeps while its connection ends for good and another gets the number; then it learns that its daemon is gone."""
    for attempt in range(TRIES):
        (number,) = {m.minor for m in pod.node.fuse_mounts()}
        wait_stopped(pod.keeper.pid)
        pod.kill_daemon()
        for mount in pod.node.fuse_mounts():
            pod.node.run("umount", "-l", mount.mount_point)
        beside = pod.node.work / f"beside{attempt}"
        beside.mkdir()
        pod.node.call(lambda number=number: take_numbers_below(number, pod.node.work))  # type: ignore[misc]  # a lambda's default
        foreigner = Foreigner(pod.node, f"reused{attempt}", beside, disguised=False)
        is_reused = foreigner.mount.minor == number
        os.kill(pod.keeper.pid, signal.SIGCONT)
        pod.start_daemon()
        pod.wait_ready()
        assert foreigner.works()
        foreigner.end()
        for taken in pod.node.work.glob("taken*"):
            pod.node.run("umount", "-l", taken)
            taken.rmdir()
        if is_reused:
            break
    else:
        pytest.fail(f"no number was used again in {TRIES} tries")
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []


def test_an_open_file_of_the_control_filesystem_stays_with_its_connection(node: MountNode) -> None:
    """What makes an abort exact: even if the number changes hands between the look and the write, nobody else is hit."""

    def steps() -> tuple[bool, bool, bool]:
        control = FuseControl()
        plan = MountPlan(source=mount_source("", "train"))
        others: list[FuseConnection] = []

        def connect() -> FuseConnection:
            return open_connection(plan, read_init=True, staging=str(node.work))

        for _ in range(TRIES):
            ours = connect()
            number = connection_of(ours.device)
            assert number is not None

            def change_hands(ours: FuseConnection = ours) -> bool:
                ours.close()
                others.append(connect())
                return True

            control.abort(number, change_hands)
            if connection_of(others[-1].device) == number:
                spared = not any(other.is_gone for other in others)
                refused = control.abort(number, lambda: False)
                return spared, refused, others[-1].is_gone
        raise AssertionError(f"no number was used again in {TRIES} tries")

    assert node.call(steps) == (True, False, False)
