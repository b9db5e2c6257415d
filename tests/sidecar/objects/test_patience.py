"""An operation that waits for its store is told of, for as long as it can still have an answer."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sidecar.objects import patience
from sidecar.objects.patience import Patience


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Have seconds be short."""
    before = vars(patience)["_TICK_S"], vars(patience)["_LONGEST_S"]
    vars(patience)["_TICK_S"] = 0.05
    yield
    vars(patience)["_TICK_S"], vars(patience)["_LONGEST_S"] = before


def test_keeper_hears_of_what_waits_and_of_nothing_else() -> None:
    told = threading.Event()
    waiting = Patience(told.set)
    waiting.begin()
    assert not told.wait(0.3)
    with waiting.waiting():
        assert told.wait(20)


def test_keeper_hears_of_what_begins_while_nothing_is_seen() -> None:
    told = threading.Event()
    waiting = Patience(told.set)

    class Begun(dict[int, float]):
        def copy(self) -> "Begun":
            seen = Begun(self)
            if not self:
                block.enter_context(waiting.waiting())
            return seen

    with ExitStack() as block:
        vars(waiting)["_begun"] = Begun()
        with waiting.waiting():
            pass
        waiting.begin()
        assert told.wait(20)


def test_what_comes_further_does_not_hang_however_long_it_takes() -> None:
    vars(patience)["_LONGEST_S"] = 0.3
    told = threading.Event()
    waiting = Patience(told.set)
    waiting.begin()
    with waiting.waiting():
        threading.Event().wait(0.5)
        told.clear()
        waiting.progress()
        assert told.wait(20)


def test_what_waits_too_long_hangs() -> None:
    vars(patience)["_LONGEST_S"] = 0.0
    told = threading.Event()
    waiting = Patience(told.set)
    waiting.begin()
    with waiting.waiting():
        assert not told.wait(0.5)
