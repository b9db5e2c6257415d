"""A keeper killed, or told to end, at every boundary of its session machine: before, between and after the actions of every transition.

The machine itself tells which boundaries there are. Scenarios bring a keeper to each of them; the next keeper must make everything
well, and applications must not have noticed, unless the scenario itself takes their connection away. KILL_POINTS=all runs all, else
a part of them.
"""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from sidemount.host.session import Action, Event, Phase, Session, begin, step
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, is_running, view, wait_stopped
from tests.host.mount_node import abort_connections, eventually
from tests.host.test_keeper_recovery import Reader, dead, end_cleanly

P, E = Phase, Event
Pair = tuple[Phase, Event]


@dataclass(frozen=True, slots=True)
class Point:
    """A boundary: so many of the actions that follow an event in a phase are done. `visit`: the how-manieth time it is reached.

    `number` is the signal that the keeper gets there.
    """

    phase: Phase
    event: Event
    place: int
    visit: int = 1
    able: bool = True
    number: str = "SIGKILL"

    @property
    def name(self) -> str:
        """Return a name for it."""
        without = "" if self.able else "-without-takeover"
        return f"{self.phase.value}-{self.event.value}-{self.place}{without}"

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the arguments of a keeper that dies there."""
        point = (self.phase.value, self.event.value, str(self.place), str(self.visit), self.number)
        return ("tests.host.dying_keeper", *point, "--")


def reachable() -> set[Pair]:
    """Return every pair of phase and event of a volume with takeover in which anything follows."""
    found: set[Pair] = set()
    starts = [begin(found=there, takeover=True)[0] for there in (False, True)]
    seen, queue = set(starts), deque(starts)
    while queue:
        session = queue.popleft()
        for event, able in product(Event, (True, False)):
            after, actions = step(session, event, able=able)
            after = replace(after, generation=0, failures=min(after.failures, 1))
            if actions or after.phase is not session.phase:
                found.add((session.phase, event))
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return found


# Scenarios --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stage:
    """A pod, and the keeper that is going to die in it."""

    pod: Pod
    point: Point
    reader: Reader | None = None
    loses: bool = False
    _undo: list[Callable[[], object]] = field(default_factory=list)

    def doomed_keeper(self) -> None:
        """Start the keeper that dies at the point."""
        self.pod.start_keeper(*self.point.argv)

    def is_over(self) -> bool:
        """Tell whether it is dead."""
        return not is_running(self.pod.keeper)

    def serve(self, *flags: str) -> None:
        """Have the volume live, with an application on it, if the keeper lives that long."""
        self.doomed_keeper()
        self.pod.start_daemon("train", *flags)
        eventually(lambda: self.is_over() or self.pod.probe() == "ready", timeout_s=20)
        if not self.is_over():
            self.reader = Reader(
                self.pod.node, self.pod.place("train") / "file", self.pod.node.work / "reader"
            )

    def later(self, undo: Callable[[], object]) -> None:
        """Have something done before recovery."""
        self._undo.append(undo)

    def recover(self) -> None:
        """Be a kubelet: take obstacles away and restart what has ended, until the volume is live."""
        for undo in reversed(self._undo):
            undo()
        self.pod.start_keeper()
        until = time.monotonic() + 30
        while not self.pod.probe().startswith("ready"):
            assert time.monotonic() < until, self.pod.log_text()
            if not is_running(self.pod.keeper):
                self.pod.start_keeper()
            if "train" not in self.pod.daemons or not is_running(self.pod.daemons["train"]):
                self.pod.start_daemon()
            time.sleep(0.05)


def live(stage: Stage) -> None:
    """Start, serve, lose the daemon's container and continue with another."""
    # Between the death of the container and the next one's order the keeper alone has the connection.
    stage.loses = stage.point.event is E.GONE or (stage.point.event is E.CONNECTED and stage.point.place == 0)
    stage.serve()
    if not stage.is_over():
        stage.pod.kill_daemon()
        stage.pod.start_daemon()


def live_without(stage: Stage) -> None:
    """Start, serve, and lose the process that serves; nobody can continue."""
    stage.loses = True
    stage.serve("--no-resend")
    if not stage.is_over():
        os.kill(stage.pod.serving(), signal.SIGKILL)


def hang_without(stage: Stage) -> None:
    """All processes of the daemon are stopped, and nobody could continue."""
    stage.loses = True
    stage.serve("--no-resend")
    if not stage.is_over():
        stage.pod.stop_daemon()
        stage.later(stage.pod.daemons["train"].kill)


def adopt(stage: Stage) -> None:
    """Be a second keeper, over a daemon that lives."""
    stage.pod.start()
    stage.reader = Reader(stage.pod.node, stage.pod.place("train") / "file", stage.pod.node.work / "reader")
    stage.pod.keeper.kill()
    stage.pod.keeper.wait(20)
    stage.doomed_keeper()


def adopt_nothing(stage: Stage) -> None:
    """Be a second keeper, over a daemon that is stopped, while another one asks for work."""
    stage.loses = True
    stage.pod.start()
    stage.pod.stop_daemon()
    stopped = stage.pod.daemons["train"]
    stage.later(stopped.kill)
    stage.pod.keeper.kill()
    stage.pod.keeper.wait(20)
    stage.doomed_keeper()
    stage.pod.start_daemon()
    if stage.point.event is E.TERMINATE:
        eventually(lambda: "own_mount_found" in stage.pod.names())
        stage.pod.keeper.send_signal(signal.SIGINT)


def adopt_dead(stage: Stage) -> None:
    """Be a second keeper, over a mount that died with its daemon."""
    stage.loses = True
    stage.pod.start()
    stage.pod.keeper.kill()
    stage.pod.kill_daemon()
    stage.pod.keeper.wait(20)
    eventually(lambda: stage.pod.node.call(lambda: dead(stage.pod.place("train"))))
    stage.doomed_keeper()


def without_device(stage: Stage) -> None:
    """No connection can be made: /dev/fuse is something else."""
    stage.pod.node.run("mount", "--bind", "/dev/null", "/dev/fuse")
    stage.later(lambda: stage.pod.node.run("umount", "/dev/fuse"))
    stage.doomed_keeper()
    stage.pod.start_daemon()
    if stage.point.event is E.TERMINATE:
        eventually(lambda: "mount_failed" in stage.pod.names())
        stage.pod.keeper.send_signal(signal.SIGINT)


def hang(stage: Stage) -> None:
    """All processes of the daemon are stopped. Once it is killed for that, the keeper alone has the connection."""
    stage.loses = stage.point.place > 0
    stage.serve()
    if not stage.is_over():
        stage.pod.stop_daemon()
        stopped = stage.pod.processes()
        stage.later(lambda: go_on(stopped))


def go_on(stopped: list[int]) -> None:
    """Let stopped processes go on, if they have not been killed."""
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def abort(stage: Stage) -> None:
    """Somebody aborts the connection, and the daemon, stopped, cannot tell before the keeper sees it."""
    stage.loses = True
    stage.serve()
    if stage.is_over():
        return
    if stage.point.phase is P.WAITING:
        stage.pod.kill_daemon()
    else:
        stage.pod.stop_daemon()
        stopped = stage.pod.processes()
        stage.later(lambda: go_on(stopped))
    abort_connections({mount.minor for mount in stage.pod.node.fuse_mounts()})
    if stage.point.phase is P.ABORTED:
        eventually(lambda: any(e.get("phase") == "Aborted" for e in stage.pod.events()))
        match stage.point.event:
            case E.GONE:
                go_on(stopped)
            case E.TERMINATE:
                stage.pod.keeper.send_signal(signal.SIGINT)


def stop_daemon(stage: Stage) -> None:
    """The daemon's container is told to end; nothing is asked of it, so it may."""
    stage.serve()
    if stage.reader is not None:
        stage.reader.process.kill()
        stage.reader = None
    if not stage.is_over():
        stage.pod.daemons["train"].terminate()


def end(stage: Stage) -> None:
    """The pod ends. The daemon is stopped if the point is only reached by waiting for it, or not there at all."""
    if stage.point.phase is P.WAITING:
        stage.doomed_keeper()
        eventually(lambda: any(e.get("phase") == "WaitingForDaemon" for e in stage.pod.events()))
    else:
        stage.serve()
    if stage.is_over():
        return
    if stage.reader is not None:
        stage.reader.process.kill()
        stage.reader = None
    if stage.point.event is E.DEADLINE:
        stage.pod.stop_daemon()
        stage.later(stage.pod.daemons["train"].kill)
    stage.pod.keeper.send_signal(signal.SIGINT)


def stand_still(stage: Stage) -> None:
    """The daemon is stopped as soon as it has its order."""
    stage.doomed_keeper()
    daemon = stage.pod.start_daemon()
    eventually(lambda: stage.is_over() or "daemon_connected" in stage.pod.names(), every_s=0.001)
    wait_stopped(daemon.pid)
    stage.later(daemon.kill)
    if stage.point.event is E.GONE:
        daemon.kill()
    if stage.point.event is E.LOST:
        pytest.skip("its connection is attached nowhere, so nobody can abort it by its number")
    if stage.point.event is E.TERMINATE and not stage.is_over():
        stage.pod.keeper.send_signal(signal.SIGINT)


def second_daemon(stage: Stage) -> None:
    """Another daemon asks for work, though one serves."""
    stage.serve()
    if not stage.is_over():
        other = stage.pod.node.start([*daemon_argv(stage.pod)], log=stage.pod.node.work / "second.log")
        stage.later(other.kill)


def daemon_argv(pod: Pod) -> list[str]:
    """Return the command of a daemon of the volume."""
    return [str(part) for part in pod.daemons["train"].args][-10:]  # type: ignore[union-attr]  # a list it is


def lose_view(stage: Stage) -> None:
    """Somebody unmounts a view; the probe sees it, and showing it again fails: its directory is gone from the source."""
    stage.serve()
    if stage.is_over():
        return
    name = view("train", "sub").name
    moved = stage.pod.source("train") / "moved"
    (stage.pod.source("train") / "sub").rename(moved)
    stage.later(lambda: moved.rename(moved.with_name("sub")))
    stage.pod.node.run("umount", "-l", stage.pod.place(name))
    until = time.monotonic() + 20
    while not stage.is_over() and time.monotonic() < until:
        with contextlib.suppress(AssertionError):
            stage.pod.probe()
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """How a pair is reached. `visit` is the how-manieth time that counts; `held` and `able` are the session's then."""

    play: Callable[[Stage], None]
    visit: int = 1
    held: bool = True
    able: bool = True
    hung_after_s: int = 30

    def actions(self, phase: Phase, event: Event) -> tuple[Action, ...]:
        """Return what the machine does when the scenario has come there."""
        session = Session(phase=phase, takeover=True, held=self.held, able=self.able)
        return step(session, event, able=self.able)[1]


QUICK = (
    "--settle-seconds",
    "1",
    "--adopt-seconds",
    "2",
    "--flush-seconds",
    "2",
    "--quiet-seconds",
    "0.5",
    "--start-seconds",
    "2",
)
STAGED: dict[Pair, Scenario] = {
    (P.MOUNTING, E.MOUNTED): Scenario(live),
    (P.MOUNTING, E.CONNECTED): Scenario(without_device),
    (P.MOUNTING, E.DEADLINE): Scenario(without_device),
    (P.MOUNTING, E.TERMINATE): Scenario(without_device),
    (P.ADOPTING, E.CONNECTED): Scenario(adopt_nothing),
    (P.ADOPTING, E.HANDED_BACK): Scenario(adopt),
    (P.ADOPTING, E.DEAD): Scenario(adopt_dead),
    (P.ADOPTING, E.DEADLINE): Scenario(adopt_nothing),
    (P.ADOPTING, E.TERMINATE): Scenario(adopt_nothing),
    (P.WAITING, E.CONNECTED): Scenario(live, visit=2),
    (P.WAITING, E.LOST): Scenario(abort),
    (P.WAITING, E.TERMINATE): Scenario(end),
    (P.STARTING, E.READY): Scenario(live, visit=2),
    (P.STARTING, E.GONE): Scenario(stand_still, held=False),
    (P.STARTING, E.DEADLINE): Scenario(stand_still, held=False),
    (P.STARTING, E.TERMINATE): Scenario(stand_still),
    (P.ATTACHING, E.ATTACHED): Scenario(live, visit=2),
    (P.ATTACHING, E.DEADLINE): Scenario(lose_view),
    (P.SERVING, E.ATTACH_FAILED): Scenario(lose_view),
    (P.SERVING, E.CONNECTED): Scenario(second_daemon),
    (P.SERVING, E.GONE): Scenario(live),
    (P.SERVING, E.HUNG): Scenario(hang, hung_after_s=1),
    (P.SERVING, E.STOPPING): Scenario(stop_daemon),
    (P.SERVING, E.QUIET): Scenario(stop_daemon),
    (P.SERVING, E.SYNCED): Scenario(stop_daemon),
    (P.SERVING, E.LOST): Scenario(abort),
    (P.SERVING, E.TERMINATE): Scenario(end),
    (P.ABORTED, E.GONE): Scenario(abort),
    (P.ABORTED, E.DEADLINE): Scenario(abort),
    (P.ABORTED, E.TERMINATE): Scenario(abort),
    (P.FLUSHING, E.SYNCED): Scenario(end),
    (P.FLUSHING, E.GONE): Scenario(end),
    (P.FLUSHING, E.DEADLINE): Scenario(end),
}
WITHOUT_TAKEOVER: dict[Pair, Scenario] = {
    (P.SERVING, E.GONE): Scenario(live_without, able=False),
    (P.SERVING, E.HUNG): Scenario(hang_without, able=False, hung_after_s=1),
}
_AT_THE_DESK = "only a refusal: the daemon asks again, whoever is the keeper then"
_BRIEF = "the phase lasts milliseconds; what follows is as in Serving, where it is staged"
_ODD = "needs a process that no signal ends, or an order of events that no test can bring about for certain"
NOT_STAGED: dict[Pair, str] = {
    (P.MOUNTING, E.HANDED_BACK): _AT_THE_DESK,
    (P.WAITING, E.HANDED_BACK): _AT_THE_DESK,
    (P.STARTING, E.CONNECTED): _AT_THE_DESK,
    (P.ATTACHING, E.CONNECTED): _AT_THE_DESK,
    (P.ABORTED, E.CONNECTED): _AT_THE_DESK,
    (P.ABORTED, E.HANDED_BACK): _AT_THE_DESK,
    (P.FLUSHING, E.CONNECTED): _AT_THE_DESK,
    (P.DETACHED, E.CONNECTED): _AT_THE_DESK,
    (P.DETACHED, E.HANDED_BACK): _AT_THE_DESK,
    **{
        (phase, event): _BRIEF
        for phase in (P.STARTING, P.ATTACHING)
        for event in (E.HUNG, E.STOPPING, E.QUIET, E.SYNCED, E.LOST, E.HANDED_BACK)
    },
    (P.ATTACHING, E.GONE): _BRIEF,
    (P.ATTACHING, E.TERMINATE): _BRIEF,
    **dict.fromkeys([(phase, E.UNKILLABLE) for phase in (P.STARTING, P.ATTACHING, P.SERVING)], _ODD),
    (P.SERVING, E.HANDED_BACK): _ODD,
    (P.ABORTED, E.HUNG): _ODD,
    (P.ABORTED, E.STOPPING): _ODD,
    (P.FLUSHING, E.HANDED_BACK): _ODD,
    (P.FLUSHING, E.DEAD): _ODD,
}


def points() -> Iterator[Point]:
    """Yield every boundary that is staged."""
    for scenarios in (STAGED, WITHOUT_TAKEOVER):
        for (phase, event), scenario in scenarios.items():
            for place in range(len(scenario.actions(phase, event)) + 1):
                yield Point(phase, event, place, scenario.visit, scenario.able)


ALL = list(points())
PART = 6


def test_every_transition_of_the_machine_is_staged_or_said_not_to_be() -> None:
    """A new transition needs a scenario, or a reason."""
    there = reachable()
    assert there - set(STAGED) - set(NOT_STAGED) == set()
    assert set(STAGED) - there == set(), "staged, but not in the machine"
    assert set(NOT_STAGED) - there == set(), "excused, but not in the machine"
    assert set(STAGED) & set(NOT_STAGED) == set()


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
def test_a_keeper_killed_at_a_boundary_is_succeeded(make_pod: MakePod, point: Point) -> None:
    stage = played(make_pod, point)
    pod = stage.pod
    assert pod.keeper.wait(1) in (-signal.SIGKILL, 0)
    recovered(stage)


# Told to end by others' signals already, or dead before it can act on one.
_TOLD_ELSEWHERE = (E.TERMINATE, E.STOPPING, E.QUIET, E.SYNCED)
TOLD = [
    replace(point, number="SIGTERM")
    for point in ALL
    if point.event not in _TOLD_ELSEWHERE and point.phase is not P.FLUSHING
]


@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, id=point.name)
        for number, point in enumerate(TOLD)
        if os.environ.get("KILL_POINTS") == "all" or number % (2 * PART) == PART
    ],
)
def test_a_keeper_told_to_end_at_a_boundary_leaves_all_or_nothing(make_pod: MakePod, point: Point) -> None:
    """Its container alone is ended: who has a daemon that lives leaves everything to the next keeper, else the pod might be ending."""
    stage = played(make_pod, point)
    assert stage.pod.keeper.wait(1) == 0
    told = stage.pod.names()
    if "another_keeper_follows" in told:
        assert "volume_detached" not in told
        recovered(stage)
    else:
        assert "pod_ends" in told
        assert STAGED[point.phase, point.event].play not in (adopt, lose_view, second_daemon)
        assert stage.pod.node.fuse_mounts() == []


def played(make_pod: MakePod, point: Point) -> Stage:
    """Play the scenario of a point until the keeper has ended."""
    scenario = (STAGED if point.able else WITHOUT_TAKEOVER)[point.phase, point.event]
    spec = directory_spec(takeover=True, hung_after_s=scenario.hung_after_s)
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"), view("train", "sub"))), flags=QUICK)
    (pod.source("train") / "file").write_text("content")
    (pod.source("train") / "sub").mkdir()
    stage = Stage(pod, point)
    scenario.play(stage)
    eventually(stage.is_over, timeout_s=20, what=f"the keeper reaches {point}\n{pod.log_text()}")
    return stage


def recovered(stage: Stage) -> None:
    """Check that the next keeper makes everything well."""
    pod = stage.pod
    stage.recover()
    assert (pod.seen("train") / "file").read_text() == "content"
    if stage.reader is not None:
        assert stage.reader.goes_on()
        if not stage.loses:
            assert stage.reader.faults() == set()
            assert pod.layers("train") == 1
        stage.reader.process.kill()
        stage.reader.process.wait(20)
    end_cleanly(pod)
