"""A pause is told once, when it is over, with its length and its cause."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sidemount.host.handover import Heartbeat
from sidemount.host.session import Event, Phase, begin, step
from sidemount.host.volume_interruptions import Interruptions
from sidemount.host.watchdog import Watchdog


@dataclass
class _Daemon:
    watchdog: Watchdog
    unserved_since: float | None = None


@dataclass
class Volume:
    """A session that is stepped by hand, at times given by hand, and what was told of it."""

    found: bool = False
    now: float = 100.0
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session, _ = begin(found=self.found, takeover=True)
        self.daemon = _Daemon(Watchdog(self.now, silent_after_s=30))
        self.interruptions = Interruptions(self, self.session, lambda: self.now)  # type: ignore[arg-type]  # only `info` is asked for

    def info(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))

    def step(self, *events: Event, after_s: float = 0.0) -> None:
        self.now += after_s
        for event in events:
            before = self.session
            self.session, _ = step(before, event, able=True)
            self.interruptions.stepped(before, self.session, event, self.daemon)

    def serve(self) -> None:
        self.step(Event.MOUNTED, Event.CONNECTED, Event.READY, Event.ATTACHED)
        self.told.clear()

    def succeed(self) -> None:
        self.session = replace(self.session, generation=self.session.generation + 1)
        self.interruptions.succeeded(self.session, self.daemon)
        self.daemon.unserved_since = None

    def ready(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.interruptions.ready(self.session, self.session.generation)


def test_the_first_time_is_no_pause() -> None:
    volume = Volume()
    volume.step(Event.MOUNTED, Event.CONNECTED, Event.READY)
    volume.step(Event.ATTACHED, after_s=2)
    volume.ready()
    assert volume.told == [("served", {"generation": 1, "elapsed_ms": 2000})]


def test_a_process_that_is_followed_by_another_is_a_takeover() -> None:
    volume = Volume()
    volume.serve()
    volume.daemon.unserved_since = volume.now
    volume.now += 0.01
    volume.succeed()
    volume.ready(after_s=0.02)
    volume.ready()
    assert volume.told == [
        ("taken_over", {"generation": 2, "stall_ms": 30, "cause": "the process that served has ended"})
    ]


def test_a_successor_that_dies_too_makes_the_pause_longer_and_not_two() -> None:
    volume = Volume()
    volume.serve()
    volume.succeed()
    volume.now += 1
    volume.daemon.unserved_since = volume.now
    volume.succeed()
    volume.ready(after_s=1)
    assert [(name, fields["stall_ms"]) for name, fields in volume.told] == [("taken_over", 2000)]


def test_a_pause_of_a_process_that_hangs_begins_with_its_last_answer() -> None:
    volume = Volume()
    volume.serve()
    for _ in range(20):
        volume.now += 1
        volume.daemon.watchdog.beat(volume.now, Heartbeat(handled=7))
        volume.daemon.watchdog.judge(volume.now, waiting=3)
    volume.succeed()
    volume.ready(after_s=0.5)
    ((name, fields),) = volume.told
    assert (name, fields["cause"]) == ("taken_over", "the process that served answered nothing")
    assert fields["stall_ms"] == 19_500


@pytest.mark.parametrize(
    ("events", "name", "cause"),
    [
        pytest.param(
            (Event.GONE, Event.CONNECTED, Event.READY, Event.ATTACHED),
            "taken_over",
            "its daemon has ended",
            id="container",
        ),
        pytest.param(
            (Event.LOST, Event.GONE, Event.MOUNTED, Event.CONNECTED, Event.READY, Event.ATTACHED),
            "remounted",
            "the kernel has ended its connection",
            id="connection",
        ),
        pytest.param(
            (Event.UNKILLABLE, Event.MOUNTED, Event.CONNECTED, Event.READY, Event.ATTACHED),
            "remounted",
            "its daemon answered nothing and could not be killed",
            id="unkillable",
        ),
        pytest.param(
            (Event.ATTACH_FAILED, Event.ATTACHED), "shown_again", "it was not mounted any more", id="a-view"
        ),
    ],
)
def test_what_was_lost_says_what_came_of_it(events: tuple[Event, ...], name: str, cause: str) -> None:
    volume = Volume()
    volume.serve()
    volume.step(*events[:-1])
    assert volume.told == []
    volume.step(events[-1], after_s=1.5)
    ((told, fields),) = volume.told
    assert (told, fields["cause"], fields["stall_ms"]) == (name, cause, 1500)


def test_a_daemon_that_is_not_able_is_followed_by_a_fresh_mount() -> None:
    volume = Volume()
    volume.serve()
    volume.session = replace(volume.session, able=False)
    volume.step(Event.GONE, Event.MOUNTED, Event.CONNECTED, Event.READY, Event.ATTACHED)
    assert [name for name, _ in volume.told] == ["remounted"]


def test_a_restarted_keeper_tells_that_nothing_has_happened() -> None:
    volume = Volume(found=True)
    volume.step(Event.HANDED_BACK, Event.ATTACHED)
    assert volume.told == [("came_back", {"generation": 0})]


def test_a_restarted_keeper_that_finds_a_dead_mount_makes_another() -> None:
    volume = Volume(found=True)
    volume.step(Event.DEAD, Event.MOUNTED, Event.CONNECTED, Event.READY)
    volume.step(Event.ATTACHED, after_s=1)
    ((name, fields),) = volume.told
    assert (name, fields["cause"], fields["stall_ms"]) == ("remounted", "its mount was dead", 1000)


@pytest.mark.parametrize("act", [Volume.succeed, lambda volume: volume.step(Event.GONE)])
def test_the_end_of_the_pod_is_no_pause(act: Callable[[Volume], None]) -> None:
    volume = Volume()
    volume.serve()
    act(volume)
    volume.step(Event.TERMINATE, Event.GONE)
    volume.ready(after_s=1)
    assert volume.session.phase in (Phase.DETACHED, Phase.FLUSHING)
    assert volume.told == []
