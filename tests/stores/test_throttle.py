"""How fast a store is asked after it has said that it is too much."""

from sidemount.stores.throttle import Throttle, lane_of


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def rate(throttle: Throttle, lane: str) -> float:
    return throttle.slowed()[lane]


def test_nothing_waits_while_nobody_complains() -> None:
    throttle = Throttle(Clock())
    assert [throttle.reserve("a", 60) for _ in range(1000)] == [0.0] * 1000


def test_a_complaint_slows_one_prefix_and_no_other() -> None:
    throttle = Throttle(Clock())
    throttle.slow_down("a")
    waits = [throttle.reserve("a", 60) or 0 for _ in range(3)]
    assert waits == sorted(waits)
    assert waits[2] > waits[0] > 0
    assert throttle.reserve("b", 60) == 0


def test_the_rate_is_halved_by_complaints_and_raised_by_successes_until_it_is_free() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    throttle.slow_down("a")
    first = rate(throttle, "a")
    clock.now_s = 10
    throttle.slow_down("a")
    assert rate(throttle, "a") == first / 2
    throttle.succeeded("a")
    assert first / 2 < rate(throttle, "a") < first
    for _ in range(1000):
        throttle.succeeded("a")
    assert throttle.slowed() == {}
    assert throttle.reserve("a", 60) == 0


def test_complaints_to_requests_that_were_on_their_way_together_count_once() -> None:
    throttle = Throttle(Clock())
    throttle.slow_down("a")
    once = rate(throttle, "a")
    for _ in range(20):
        throttle.slow_down("a")
    assert rate(throttle, "a") == once


def test_it_never_gets_slower_than_a_request_in_two_seconds() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(50):
        clock.now_s += 100
        throttle.slow_down("a")
    assert rate(throttle, "a") == 0.5


def test_what_the_store_asks_to_wait_is_waited() -> None:
    throttle = Throttle(Clock())
    throttle.slow_down("a", 7)
    assert throttle.reserve("a", 60) == 7


def test_a_turn_that_is_too_far_away_is_not_taken() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    throttle.slow_down("a", 7)
    assert [throttle.reserve("a", 5) for _ in range(1000)] == [None] * 1000
    clock.now_s = 7
    assert throttle.reserve("a", 5) == 0


def test_prefixes_without_end_take_no_memory_without_end() -> None:
    throttle = Throttle(Clock())
    for number in range(5000):
        throttle.slow_down(str(number))
    assert len(throttle.slowed()) <= 1024


def test_the_lane_of_a_key_is_its_first_component() -> None:
    assert [lane_of(key) for key in ("a/b/c", "a", "/a", "")] == ["a", "a", "", ""]
