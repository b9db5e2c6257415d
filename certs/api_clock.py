"""The time that counts: the API server's, because it is the one that verifies. Ours only measures what passes in between."""

from collections.abc import Callable
from datetime import datetime, timedelta

from certs.authority import BACK_DATED


class ApiClock:
    """Goes by what the API server last said, or by our own clock before it said anything."""

    def __init__(self, wall: Callable[[], datetime], monotonic_s: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic_s = monotonic_s
        self._heard: tuple[datetime, float] | None = None

    def heard(self, moment: datetime) -> None:
        """Take note of the API server's time."""
        if moment.tzinfo is not None:
            self._heard = (moment, self._monotonic_s())

    def now(self) -> datetime:
        """Return the time, aware."""
        if self._heard is None:
            return self._wall()
        moment, at_s = self._heard
        return moment + timedelta(seconds=self._monotonic_s() - at_s)

    def skew(self) -> timedelta:
        """Return by how much our own clock is ahead of the API server's."""
        return self._wall() - self.now()

    def is_plausible(self) -> bool:
        """Tell whether the two agree well enough to issue anything by them; if not, one of them is wrong, and who knows which."""
        return abs(self.skew()) < BACK_DATED
