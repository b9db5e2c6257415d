"""A look-out for the next request: it looks a few more times before the process sleeps, as long as that has been worth it.

Whoever asks one thing after the other has the next request out some 10 to 30 µs after an answer. To sleep for that long costs
more than to look on: the client has to wake us, which on a virtual machine is an exit (some 10 µs of its time), and what we
needed is no longer at hand. That is for who runs on another processor. On the same one it runs instead of us as soon as we answer, and the
next request is there when we look for the first time.
"""

from collections.abc import Callable

Found = list[tuple[int, int]]
"""What `select.poll.poll` returns."""

LOOKS = 64
"""How often to look, at about 0.45 µs each."""
SLEEPS_LEAST = 7
SLEEPS_MOST = 256
"""How many waits in a row are slept through after looking was in vain. At most so many: who is slow costs a tenth of a µs a request."""


class Lookout:
    """Waits for requests by a poll of which the argument is milliseconds, or None for no end. One thread's.

    Looking in vain doubles the waits that are slept through next; each time that it finds something takes an eighth off again. So it goes on where
    nearly all waits are short, and comes to be hardly ever tried where fewer than about five of six are.
    """

    __slots__ = ("_poll", "_sleeps_left", "_sleeps_next")

    def __init__(self, poll: Callable[[int | None], Found]) -> None:
        self._poll = poll
        self._sleeps_left = 0
        self._sleeps_next = SLEEPS_LEAST

    def wait(self, timeout_ms: int | None) -> Found:
        """Return what is ready, once anything is or the time is over."""
        poll = self._poll
        if self._sleeps_left:
            self._sleeps_left -= 1
            return poll(timeout_ms)
        if found := poll(0):
            return found  # says nothing of how it is to wait
        for _ in range(LOOKS):
            if found := poll(0):
                self._sleeps_next -= self._sleeps_next >> 3
                return found
        self._sleeps_left = self._sleeps_next
        self._sleeps_next = min(2 * self._sleeps_next, SLEEPS_MOST)
        return poll(timeout_ms)
