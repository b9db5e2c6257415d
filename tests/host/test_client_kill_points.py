"""A keeper killed while it shows, or shows anew, what a client has mounted by itself: beside every step at its mount points, and at
the boundaries of its session machine on the way. KILL_POINTS=all runs all, else a part of them.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from sidemount.host.session import Event, Phase, begin, step
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, is_running, view
from tests.host.mount_node import MountNode, eventually
from tests.host.test_external_clients import client_spec
from tests.host.test_keeper_recovery import Reader, end_cleanly

P, E = Phase, Event
SUB = view("train", "sub", read_only=True)
LOST = {f"{what} {n}" for what in ("read", "stat", "open", "list") for n in (errno.ENOTCONN, errno.ECONNABORTED)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """Where the keeper dies: who kills it with what arguments, and in which scenario."""

    name: str
    killer: tuple[str, ...]
    play: "Callable[[Stage], None]"


@dataclass(slots=True)
class Stage:
    """A pod whose client is bindfs, and an application, if there was one already."""

    pod: Pod
    killer: tuple[str, ...]
    reader: Reader | None = None
    loses: bool = False

    def doomed_keeper(self) -> None:
        """Start the keeper that dies at the point."""
        self.pod.start_keeper(*self.killer, "--")

    def read(self) -> None:
        """Have an application use the volume from now on."""
        self.reader = Reader(self.pod.node, self.pod.place("train") / "file", self.pod.node.work / "reader")

    def restart_daemon(self) -> None:
        """Be a kubelet to the client's container."""
        if "train" not in self.pod.daemons or not is_running(self.pod.daemons["train"]):
            self.pod.start_daemon()

    def wait_for_death(self) -> None:
        """Wait until the keeper has come to the point."""

        def is_dead() -> bool:
            self.restart_daemon()
            return not is_running(self.pod.keeper)

        eventually(is_dead, timeout_s=30, what=self.pod.log_text())
        assert self.pod.keeper.wait(1) == -signal.SIGKILL

    def recover(self) -> None:
        """Start another keeper, and wait until the volume is live."""
        self.pod.start_keeper()
        until = time.monotonic() + 30
        while self.pod.probe() != "ready":
            assert time.monotonic() < until, self.pod.log_text()
            self.restart_daemon()
            time.sleep(0.05)


def start(stage: Stage) -> None:
    """The first keeper dies while the volume is shown for the first time."""
    stage.doomed_keeper()


def remount(stage: Stage) -> None:
    """The client dies, and the keeper dies while the next one's mount is shown."""
    stage.loses = True
    stage.doomed_keeper()
    stage.pod.start_daemon()
    stage.pod.wait_ready()
    stage.read()
    started = [e for e in stage.pod.events(stage.pod.daemon_log("train")) if e["event"] == "client_started"]
    os.kill(started[-1]["pid"], signal.SIGKILL)


def adopt(stage: Stage) -> None:
    """A second keeper dies while it finds what the client of the first has mounted."""
    stage.pod.start()
    stage.read()
    stage.pod.keeper.kill()
    stage.pod.keeper.wait(20)
    stage.doomed_keeper()


def beside(play: Callable[[Stage], None], method: str, visit: int = 1) -> list[Point]:
    """Return the points before and after a step at the mount points."""
    return [
        Point(
            f"{play.__name__}-{when}-{method}",
            ("tests.host.dying_places", method, when, str(visit)),
            play,
        )
        for when in ("before", "after")
    ]


def between(play: Callable[[Stage], None], phase: Phase, event: Event, visit: int = 1) -> list[Point]:
    """Return the points before, between and after what follows from an event, as the machine says."""
    session = replace(begin(found=False, self_mounting=True)[0], phase=phase)
    return [
        Point(
            f"{play.__name__}-{phase.value}-{event.value}-{place}",
            ("tests.host.dying_keeper", phase.value, event.value, str(place), str(visit)),
            play,
        )
        for place in range(len(step(session, event)[1]) + 1)
    ]


ALL = [
    *beside(start, "clone_of_client"),
    *beside(remount, "attach_anchor", visit=2),
    *between(adopt, P.WAITING, E.READY),
    *beside(remount, "clear_client"),
    *beside(start, "attach_anchor"),
    *between(remount, P.SERVING, E.GONE),
    *beside(remount, "attach_view", visit=2),
    *between(adopt, P.ATTACHING, E.ATTACHED),
    *beside(remount, "clone_of_client", visit=2),
    *beside(start, "attach_view"),
    *between(remount, P.STARTING, E.READY, visit=2),
    *between(remount, P.MOUNTING, E.MOUNTED, visit=2),
    *between(adopt, P.MOUNTING, E.MOUNTED),
]
PART = 4


@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, id=point.name)
        for number, point in enumerate(ALL)
        if os.environ.get("KILL_POINTS") == "all" or number % PART == 0
    ],
)
def test_a_keeper_killed_while_it_shows_a_client_is_succeeded(
    make_pod: MakePod, node: MountNode, point: Point
) -> None:
    origin = node.work / "origin"
    (origin / "sub").mkdir(parents=True)
    (origin / "file").write_text("content")
    (origin / "sub" / "file").write_text("below")
    spec = client_spec("bindfs", "-f", str(origin), "${mountpoint}", descriptor=False)
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"), SUB)))
    stage = Stage(pod, point.killer)
    point.play(stage)
    stage.wait_for_death()
    stage.recover()
    assert (pod.seen("train") / "file").read_text() == "content"
    assert (pod.seen(SUB.name) / "file").read_text() == "below"
    assert pod.layers("train.client") == 1
    # A keeper that died with a copy in its hand has left nothing; one more layer is there for a client that died since.
    assert max(pod.layers("train"), pod.layers(SUB.name)) <= 3
    if stage.reader is not None:
        assert stage.reader.goes_on()
        assert stage.reader.faults() <= (LOST if stage.loses else set())
        if not stage.loses:
            assert (pod.layers("train"), pod.layers(SUB.name)) == (1, 1)
        stage.reader.process.kill()
        stage.reader.process.wait(20)
    end_cleanly(pod)
    assert list(pod.seen("train.client").iterdir()) == []
