"""Where a volume keeps things of its own: what is cached, what is being written, and what a successor needs besides the state."""

import os
import tempfile
import time
from dataclasses import dataclass

_BEGAN = "objects.began"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Directories, "" for none. `state`: in memory, for a successor. `cache`: on the cache volume. `is_resumed`: a predecessor has served."""

    state: str
    cache: str
    is_resumed: bool

    @property
    def blocks(self) -> str:
        """For what is cached of objects."""
        return os.path.join(self.cache, "objects-blocks") if self.cache else ""

    @property
    def drafts(self) -> str:
        """For what is being written."""
        home = self.cache or self.state
        return os.path.join(home, "objects-drafts") if home else tempfile.mkdtemp(prefix="objects-drafts-")

    @property
    def listings(self) -> str:
        """For directories that are being listed."""
        return os.path.join(self.state, "objects-listings") if self.state else ""

    def began_ns(self) -> int:
        """Return when the volume was mounted: its directories' time."""
        if not self.state:
            return time.time_ns()
        path = os.path.join(self.state, _BEGAN)
        if self.is_resumed:
            try:
                with open(path, encoding="ascii") as file:
                    return int(file.read(32))
            except (OSError, ValueError):
                return time.time_ns()
        now = time.time_ns()
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(str(now))
        except OSError:
            return now  # directories will be younger when a successor serves
        return now
