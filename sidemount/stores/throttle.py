"""How fast a store may be asked: slower where it says that it is too much, then faster again, each prefix for itself."""

import threading
import time
from collections.abc import Callable

_SLOWEST_S = 2.0
_FIRST_S = 0.02
_GAIN_PER_S = 2.0  # requests a second that each success adds
_FREE_PER_S = 400.0
_MOST_LANES = 1024


class _Lane:
    __slots__ = ("interval_s", "next_s", "slowed_s")

    def __init__(self) -> None:
        self.interval_s = 0.0
        self.next_s = 0.0
        self.slowed_s = 0.0


class Throttle:
    """Additive increase, multiplicative decrease of the rate of a lane: the first component of a key. Nothing while nobody complains."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}

    def reserve(self, lane: str, within_s: float) -> float | None:
        """Take the next turn in a lane and return how many seconds it is away. None, and none is taken, if that is too far."""
        if not self._lanes:
            return 0.0
        with self._lock:
            found = self._lanes.get(lane)
            if found is None:
                return 0.0
            now_s = self._clock()
            turn_s = max(found.next_s, now_s)
            if turn_s - now_s > within_s:
                return None  # a turn that nobody waits for would only make the line longer
            found.next_s = turn_s + found.interval_s
            return turn_s - now_s

    def slow_down(self, lane: str, pause_s: float = 0.0) -> None:
        """Halve the rate of a lane, and let nothing pass for `pause_s`, if the store has said how long."""
        with self._lock:
            if lane not in self._lanes and len(self._lanes) >= _MOST_LANES:
                self._lanes.pop(next(iter(self._lanes)))
            found = self._lanes.setdefault(lane, _Lane())
            now_s = self._clock()
            # Requests that were on their way together tell of one and the same overload.
            if now_s >= found.slowed_s + found.interval_s:
                found.interval_s = min(max(found.interval_s * 2, _FIRST_S), _SLOWEST_S)
                found.slowed_s = now_s
            found.next_s = max(found.next_s, now_s + max(pause_s, found.interval_s))

    def succeeded(self, lane: str) -> None:
        """Raise the rate of a lane a little; forget it when it is as good as free."""
        if not self._lanes:
            return
        with self._lock:
            found = self._lanes.get(lane)
            if found is None:
                return
            rate = 1 / found.interval_s + _GAIN_PER_S
            if rate >= _FREE_PER_S:
                del self._lanes[lane]
            else:
                found.interval_s = 1 / rate

    def slowed(self) -> dict[str, float]:
        """Return the lanes that are not free, and how many requests a second each takes."""
        with self._lock:
            return {lane: 1 / one.interval_s for lane, one in self._lanes.items()}


def lane_of(key: str) -> str:
    """Return the lane of a key: its first component."""
    return key.partition("/")[0]
