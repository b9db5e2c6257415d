"""What became of many calls: how many were good, how the others failed, how long all of them took."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass

_SORTS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Calls until now. `failures`: how many failed in which way. `late`: answered after more than `Tally.late_s`."""

    good: int
    failures: dict[str, int]
    late: int
    connections: int
    seconds: float
    p50_ms: float
    p99_ms: float
    longest_ms: float

    @property
    def answered(self) -> int:
        """How many calls came to an end, whatever end."""
        return self.good + sum(self.failures.values())

    def render(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self))

    def told(self) -> str:
        """Return it for a person."""
        rate = self.good / self.seconds if self.seconds else 0.0
        failed = ", ".join(f"{count} {sort}" for sort, count in self.failures.items()) or "none"
        return (
            f"{self.good} in {self.seconds:.1f} s ({rate:.0f}/s), p50 {self.p50_ms:.0f} p99 {self.p99_ms:.0f} longest "
            f"{self.longest_ms:.0f} ms, {self.late} late, {self.connections} connections; failed: {failed}"
        )


def parse_outcome(line: str) -> Outcome:
    """Return what `render` wrote."""
    return Outcome(**json.loads(line))


class Tally:
    """Counts while calls run."""

    late_s = 3.0

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._good = 0
        self._late = 0
        self._failures: Counter[str] = Counter()
        self._times_s: list[float] = []

    def good(self, took_s: float) -> None:
        """Count a call that was answered as it should be."""
        self._good += 1
        self._late += took_s > self.late_s
        self._times_s.append(took_s)

    def failed(self, sort: str) -> None:
        """Count a call that was not."""
        known = sort in self._failures or len(self._failures) < _SORTS_MAX
        self._failures[sort if known else "others"] += 1

    def outcome(self, connections: int) -> Outcome:
        """Return the present state."""
        ordered = sorted(self._times_s) or [0.0]

        def quantile_ms(part: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000, 2)

        return Outcome(
            good=self._good,
            failures=dict(self._failures),
            late=self._late,
            connections=connections,
            seconds=round(time.monotonic() - self._began_s, 2),
            p50_ms=quantile_ms(0.5),
            p99_ms=quantile_ms(0.99),
            longest_ms=quantile_ms(1.0),
        )
