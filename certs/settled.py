"""For how long all live configurations have trusted each authority without a break: API servers notice a change late."""

from collections.abc import Collection


class SettleWatch:
    """Measures on a monotonic clock. What a crash forgets is measured anew: waiting longer is always safe."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._since_s: dict[str, float] = {}

    def look(self, trusted: Collection[str], now_s: float) -> frozenset[str]:
        """Take note of what is trusted now; return what has been for long enough."""
        self._since_s = {name: self._since_s.get(name, now_s) for name in trusted}
        return frozenset(name for name, since in self._since_s.items() if now_s - since >= self._settle_s)

    def wait_s(self, now_s: float) -> float:
        """Return in how many seconds the next one will have been, 0 if none is due."""
        left = [self._settle_s - (now_s - since) for since in self._since_s.values()]
        return min((seconds for seconds in left if seconds > 0), default=0.0)
