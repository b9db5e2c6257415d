"""How often a look-out looks before it sleeps, with a poll that finds something after a given number of looks."""

from collections.abc import Sequence

import pytest

from sidecar.poll_lookout import LOOKS, SLEEPS_LEAST, SLEEPS_MOST, Found, Lookout

READY: Found = [(7, 1)]
NEVER = LOOKS + 1
"""Looks after which a request is later than anybody looks for it."""


class Client:
    """Asks again after so many looks each time, or while one sleeps."""

    def __init__(self) -> None:
        self.comes_after = 0
        self.looks = 0
        self.sleeps = 0

    def poll(self, timeout_ms: int | None) -> Found:
        if timeout_ms is None:
            self.sleeps += 1
            return READY
        self.looks += 1
        self.comes_after -= 1
        return READY if self.comes_after < 0 else []


def wait(lookout: Lookout, client: Client, comes_after: Sequence[int]) -> tuple[int, int]:
    """Return how often it looked and slept in these waits."""
    client.looks = client.sleeps = 0
    for looks in comes_after:
        client.comes_after = looks
        assert lookout.wait(None) == READY
    return client.looks, client.sleeps


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def lookout(client: Client) -> Lookout:
    return Lookout(client.poll)


def test_a_request_that_is_there_is_found_at_the_first_look(lookout: Lookout, client: Client) -> None:
    assert wait(lookout, client, [0] * 100) == (100, 0)


def test_nobody_sleeps_while_requests_come_in_quick_succession(lookout: Lookout, client: Client) -> None:
    assert wait(lookout, client, [20] * 1000) == (21_000, 0)


def test_a_request_that_comes_at_the_last_look_is_found(lookout: Lookout, client: Client) -> None:
    assert wait(lookout, client, [LOOKS]) == (LOOKS + 1, 0)


def test_slow_requests_are_hardly_ever_looked_for(lookout: Lookout, client: Client) -> None:
    """What a volume costs that is asked now and then: less than a look a request."""
    wait(lookout, client, [NEVER] * 1000)
    looks, sleeps = wait(lookout, client, [NEVER] * 10_000)
    assert sleeps == 10_000
    assert looks <= (10_000 / SLEEPS_MOST + 1) * (LOOKS + 1)


def test_it_is_noticed_when_slow_requests_become_quick(lookout: Lookout, client: Client) -> None:
    wait(lookout, client, [NEVER] * 10_000)
    wait(lookout, client, [20] * (SLEEPS_MOST + 1))
    assert wait(lookout, client, [20] * 1000)[1] == 0


def test_one_late_request_among_quick_ones_costs_few_sleeps(lookout: Lookout, client: Client) -> None:
    wait(lookout, client, [20] * 100)
    assert wait(lookout, client, [NEVER, *[20] * 100])[1] == 1 + SLEEPS_LEAST


@pytest.mark.parametrize(("quick", "slept"), [(1, 0.95), (3, 0.9), (50, 0.2)], ids=["1", "3", "50"])
def test_looking_goes_on_only_where_nearly_all_waits_are_short(
    lookout: Lookout, client: Client, quick: int, slept: float
) -> None:
    """So many quick requests between two late ones."""
    pattern = [NEVER, *[20] * quick]
    wait(lookout, client, pattern * 500)
    sleeps = wait(lookout, client, pattern * 500)[1] / (500 * len(pattern))
    assert sleeps >= slept if quick < 5 else sleeps <= slept


def test_a_request_that_is_there_costs_one_call_also_where_waits_are_slept_through(
    lookout: Lookout, client: Client
) -> None:
    wait(lookout, client, [NEVER] * 1000)
    assert sum(wait(lookout, client, [0] * 1000)) == 1000
