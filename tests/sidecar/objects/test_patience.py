"""An operation that waits for its store is told of, for as long as it can still have an answer."""

import threading

from sidecar.objects import patience
from sidecar.objects.patience import Patience


def test_keeper_hears_of_what_waits_and_of_nothing_else() -> None:
    told = threading.Event()
    waiting = Patience(told.set)
    waiting.begin()
    assert not told.wait(1.5)
    with waiting.waiting():
        assert told.wait(20)


def test_what_waits_too_long_hangs() -> None:
    told = threading.Event()
    before, vars(patience)["_LONGEST_S"] = vars(patience)["_LONGEST_S"], 0.0
    try:
        waiting = Patience(told.set)
        waiting.begin()
        with waiting.waiting():
            assert not told.wait(2.5)
    finally:
        vars(patience)["_LONGEST_S"] = before
