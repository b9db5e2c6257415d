"""What came of a variant. Pure."""

from dataclasses import dataclass

from e2e.torture.counts import Counts
from e2e.torture.stalls import Spread, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done and found. `blows` are `kills` and requests for an upgrade; `faults` is whatever else was not as it must be.

    `starts_ms`: how long containers took that were started anew. `before`, `after`: what there was of everything.
    """

    variant: str
    seconds: float = 0.0
    blows: int = 0
    kills: int = 0
    operations: int = 0
    errors: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    stalls_ms: tuple[float, ...] = ()
    starts_ms: tuple[float, ...] = ()
    before: Counts | None = None
    after: Counts | None = None

    @property
    def spread(self) -> Spread | None:
        """Return the percentiles of the stalls."""
        return spread(self.stalls_ms)

    @property
    def is_good(self) -> bool:
        """Tell whether nothing was lost, wrong or left behind."""
        return not (self.errors or self.wrong or self.faults)
