"""What the serving process counts, on its way to the keeper: told only where it is wanted."""

from collections.abc import Callable

from sidemount.host.handover import FromDaemon, Numbers, Offer


class NumbersLine:
    """Of one connection. A keeper of an earlier release knows no numbers, so each is asked once, and told only if it wants them."""

    def __init__(self, tell: Callable[[FromDaemon], None]) -> None:
        self._tell = tell
        self._latest: Numbers | None = None
        self._has_offered = False
        self._are_wanted = False

    def take(self, numbers: Numbers) -> None:
        """Take what the serving process has counted."""
        self._latest = numbers
        if self._are_wanted:
            self._tell(numbers)
        elif not self._has_offered:
            self._has_offered = True
            self._tell(Offer())

    def new_line(self) -> None:
        """Begin anew: another keeper is at the other end, or the same one has forgotten."""
        self._has_offered = self._are_wanted = False

    def adopted(self) -> None:
        """Ask the keeper that has taken us; what was said before that it may have passed over."""
        if self._latest is not None:
            self._has_offered = True
            self._tell(Offer())

    def wanted(self) -> None:
        """Tell from now on, beginning with what is known."""
        self._are_wanted = True
        if self._latest is not None:
            self._tell(self._latest)
