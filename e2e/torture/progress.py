"""What a person who waits wants to see: a line every few seconds."""

import sys
import time

from e2e.torture.crew import Crew
from e2e.torture.killer import Blows
from e2e.torture.stalls import spread, stalls_ms
from e2e.torture.variants import Variant

_EVERY_S = 5.0


class Progress:
    """Tells on standard error how a variant goes."""

    def __init__(self, variant: Variant, seconds: float, crew: Crew) -> None:
        self._variant = variant
        self._seconds = seconds
        self._crew = crew
        self._began = time.monotonic()
        self._told = self._began

    def tick(self, blows: Blows) -> None:
        """Tell, if it is time to."""
        now = time.monotonic()
        if now - self._told < _EVERY_S:
            return
        self._told = now
        found = self._crew.so_far()
        errors = [error for error in found.errors if not self._variant.expects(error)]
        stalls = spread(stalls_ms(blows.moments, found.slow_calls))
        told = (
            ""
            if stalls is None
            else f", stall p50 {stalls.p50:.0f} p99 {stalls.p99:.0f} max {stalls.most:.0f} ms"
        )
        sys.stderr.write(
            f"  {self._variant.name:9} {now - self._began:3.0f} of {self._seconds:.0f} s: {len(blows.moments)} blows, "
            f"{len(errors)} errors, {len(found.wrong)} wrong{told}\n"
        )
        sys.stderr.flush()
