"""The facts of a cluster as the webhook needs them: followed by watches, and read again before a refusal; a FactsSource."""

import time
from collections.abc import Callable, Sequence

from sidemount.host import live_facts
from sidemount.host.cluster_reader import ClusterReader, ReadLimits
from sidemount.host.kind_watch import Pace
from sidemount.host.live_facts import Configure, Start
from webhook.outcome import Doubt
from webhook.second_look import LookLimits, SecondLook


class LiveFacts(live_facts.LiveFacts):
    """Follows every kind once `run` runs, and settles doubts meanwhile."""

    def __init__(
        self,
        configure: Configure,
        *,
        read_limits: ReadLimits | None = None,
        look_limits: LookLimits | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(configure, read_limits=read_limits, pace=pace, clock=clock)
        self._look_limits = look_limits or LookLimits()
        self._look: SecondLook | None = None

    def _began(self, reader: ClusterReader, start: Start) -> None:
        self._look = SecondLook(reader, self._store, start, self._look_limits)

    def _ended(self) -> None:
        self._look = None

    def passed_over(self) -> tuple[str, ...]:
        """Return nothing: only known kinds are asked for."""
        return ()

    def reads(self) -> int:
        """Return how many single reads were made."""
        return self._look.reads if self._look is not None else 0

    def unsettled(self, doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
        """Return the doubts that a read could settle."""
        return self._look.unsettled(doubts) if self._look is not None else ()

    async def settle(self, doubts: Sequence[Doubt], left_s: float) -> None:
        """Look at what is doubted. Raises NotReady if it cannot be learned."""
        if self._look is not None:
            await self._look.settle(doubts, left_s)
