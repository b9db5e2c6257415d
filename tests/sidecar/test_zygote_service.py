"""When the process that serves is called hung. Moments are the test's own."""

from typing import Any

import pytest

from sidecar.zygote_service import Service
from sidemount.host.handover import Heartbeat

LIVING: dict[str, Any] = {"hung_after_s": 30.0, "is_gone": False, "flush_s": 20.0}


class FakeChild:
    """A process that hears orders, or not."""

    def __init__(self, *, hears: bool = True) -> None:
        self.hears = hears
        self.killed = 0

    def send(self, message: object) -> bool:
        """Hear an order."""
        return self.hears

    def kill(self) -> None:
        """Count a kill."""
        self.killed += 1


def service(child: FakeChild | None = None) -> Service:
    """Return one that has its turn since moment 0."""
    its: Any = child or FakeChild()
    return Service(its, 0.0)


def serving() -> Service:
    """Return one that serves."""
    one = service()
    one.beat(0.1, Heartbeat())
    one.is_ready = True
    return one


def test_one_that_beats_is_let_be() -> None:
    one = serving()
    for second in range(1000):
        one.beat(float(second), Heartbeat(handled=second))
        assert one.why_hung(second + 0.5, **LIVING) == ""


def test_one_that_does_not_begin_is_not_given_the_whole_deadline() -> None:
    one = service()
    assert one.why_hung(4.9, **LIVING) == ""
    assert "has not begun within" in one.why_hung(5.1, **LIVING)


def test_one_that_loads_for_long_but_lives_has_a_minute() -> None:
    one = service()
    for second in range(60):
        one.beat(float(second), Heartbeat())
        assert one.why_hung(float(second), **LIVING) == ""
    one.beat(60.0, Heartbeat())
    assert "has not begun to serve" in one.why_hung(60.5, **LIVING)


@pytest.mark.parametrize("hung_after_s", [1.0, 30.0])
def test_silence_has_the_deadline_of_the_class(hung_after_s: float) -> None:
    one = serving()
    assert one.why_hung(hung_after_s, **{**LIVING, "hung_after_s": hung_after_s}) == ""
    assert "silent" in one.why_hung(hung_after_s + 0.2, **{**LIVING, "hung_after_s": hung_after_s})


def test_the_time_that_the_watcher_was_away_does_not_count() -> None:
    one = serving()
    one.pardon(100.0)
    assert one.why_hung(101.0, **LIVING) == ""


def test_one_whose_connection_is_gone_may_flush_while_it_lives() -> None:
    one = serving()
    gone = {**LIVING, "is_gone": True}
    for second in range(100, 119):
        one.beat(float(second), Heartbeat())
        assert one.why_hung(float(second), **gone) == ""
    one.beat(121.0, Heartbeat())
    assert "gone" in one.why_hung(121.0, **gone)


def test_a_silent_one_whose_connection_is_gone_is_not_waited_for() -> None:
    one = serving()
    assert "gone" in one.why_hung(4.0, **{**LIVING, "is_gone": True})


def test_a_hand_over_has_a_deadline_and_one_that_does_not_hear_is_killed() -> None:
    deaf = FakeChild(hears=False)
    service(deaf).hand_over(5.0)
    assert deaf.killed == 1
    one = serving()
    one.kill_at = 10.0
    one.beat(10.5, Heartbeat())
    assert "hand over" in one.why_hung(10.5, **LIVING)


def test_one_that_was_killed_and_stays_is_stuck() -> None:
    one = serving()
    assert not one.is_stuck(100.0, 5.0)
    one.kill(100.0)
    assert not one.is_stuck(104.0, 5.0)
    assert one.is_stuck(105.5, 5.0)


def test_who_has_answered_or_lived_long_has_not_died_in_vain() -> None:
    one = serving()
    assert not one.is_fruitful(1.0)
    assert one.is_fruitful(6.0)
    one.beat(1.0, Heartbeat(handled=1))
    assert one.is_fruitful(1.0)
    assert not service().is_fruitful(50.0), "it has never served"
