"""How often a keeper takes what a daemon counts, and when it tells."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sidemount.host.handover import Numbers
from sidemount.host.volume_numbers import VolumeNumbers
from sidemount.model.object_numbers import Report


class Clock:
    """A loop whose time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None], Any]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        """Have it called then."""
        timer = SimpleNamespace(is_on=True)
        timer.cancel = lambda: setattr(timer, "is_on", False)
        self.timers.append((self.now + delay_s, callback, timer))
        return timer

    def pass_s(self, seconds: float) -> None:
        """Let time go by."""
        self.now += seconds
        for timer in [each for each in self.timers if each[0] <= self.now]:
            self.timers.remove(timer)
            if timer[2].is_on:
                timer[1]()


def desk(every_s: float) -> tuple[VolumeNumbers, Clock, list[Report]]:
    """Return what is tested, its time, and what it has told."""
    clock, told = Clock(), list[Report]()
    numbers = VolumeNumbers(clock, told.append, every_s=every_s, clock=lambda: clock.now)  # type: ignore[arg-type]  # all of a loop that it needs
    return numbers, clock, told


def counted(process: int, requests: int) -> Numbers:
    """Return what a daemon says."""
    return Numbers(process=process, values={"store_requests": requests, "nonsense": 1})


def values(told: list[Report]) -> list[tuple[int, int]]:
    """Return process and number of each."""
    return [(report.process, report.numbers["store_requests"]) for report in told]


def test_the_first_of_each_process_is_told_at_once_and_then_the_latest_now_and_then() -> None:
    numbers, clock, told = desk(60.0)
    for requests in (0, 1, 2):
        numbers.take(counted(1, requests))
        clock.pass_s(5)
    assert values(told) == [(1, 0)]
    clock.pass_s(60)
    assert values(told) == [(1, 0), (1, 2)]
    numbers.take(counted(1, 3))
    clock.pass_s(5)
    numbers.take(counted(2, 0))  # what the one before has told last is not lost
    assert values(told) == [(1, 0), (1, 2), (1, 3), (2, 0)]
    assert "nonsense" not in told[0].numbers


def test_the_last_is_told_at_the_end_once() -> None:
    numbers, clock, told = desk(60.0)
    for requests in (0, 9):
        numbers.take(counted(1, requests))
    numbers.flush()
    numbers.flush()
    clock.pass_s(1000)
    assert values(told) == [(1, 0), (1, 9)]


def test_what_has_not_changed_is_not_told_again() -> None:
    numbers, clock, told = desk(0.0)
    for _ in range(5):
        numbers.take(counted(1, 7))
        clock.pass_s(5)
    assert values(told) == [(1, 7)]


def test_a_flood_is_passed_over_and_the_next_report_has_all() -> None:
    numbers, clock, told = desk(0.0)
    for requests in range(10_000):
        numbers.take(counted(requests, requests))
    assert len(told) == 8
    clock.pass_s(1)
    numbers.take(counted(10_000, 10_000))
    assert values(told)[-1] == (10_000, 10_000)
    assert len(told) == 9
