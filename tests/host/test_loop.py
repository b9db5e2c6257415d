"""The one loop of keeper and daemons."""

from functools import partial

from sidemount.host.loop import Loop


def test_timers_run_once_in_their_order_whatever_is_cancelled_meanwhile() -> None:
    loop, told = Loop(), list[int]()
    due = {}
    for number in range(2000):
        timer = loop.call_later(number * 7919 % 2000 / 1e5, partial(told.append, number))
        if number % 2:
            timer.cancel()
        else:
            due[number] = timer.due
    loop.call_later(0.2, loop.stop)
    loop.run()
    assert told == sorted(due, key=due.__getitem__)
    loop.close()


def test_cancelled_timers_take_no_memory() -> None:
    """Whoever knocks at a keeper makes one that is cancelled, and its memory is bounded."""
    loop = Loop()
    lasting = loop.call_later(60, loop.stop)
    for _ in range(20_000):
        loop.call_later(60, loop.stop).cancel()
    assert len(loop._timers) < 1000
    assert not lasting.is_over
    loop.close()
