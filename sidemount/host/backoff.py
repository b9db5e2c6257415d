"""Backoff: how long to wait before the next try: longer each time, and different for every process."""

from collections.abc import Callable

_FIRST_S = 0.25
_DOUBLINGS_MAX = 30


class Backoff:
    """`next_s` gives each wait; `reset` after a success. `random` gives numbers from 0 to below 1."""

    def __init__(self, random: Callable[[], float], *, longest_s: float) -> None:
        self._random = random
        self._longest_s = longest_s
        self._tries = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Return the next wait: between half and the whole of an exponential one, and no shorter than was asked for."""
        whole_s = min(self._longest_s, _FIRST_S * 2.0 ** min(self._tries, _DOUBLINGS_MAX))
        self._tries += 1
        return max(at_least_s, whole_s * (0.5 + self._random() / 2))

    def reset(self) -> None:
        """The next failure is a first one."""
        self._tries = 0
