"""Where the facts of this process come from: a directory of manifests, or a cluster."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from sidemount.host.facts_directory import FactsDirectory
from sidemount.host.live_report import KindReport
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure
from sidemount.model.facts import Facts, SourceFault
from webhook.outcome import Doubt

_LOOK_EVERY_S = 1.0
_LOOK_SOON_S = 0.1
_STALE_S = 60.0
_log = log("webhook.facts_source")


class FactsSource(Protocol):
    """Facts that are kept up to date while `run` runs. `facts` never blocks; it raises NotReady before the first are there."""

    def facts(self) -> Facts: ...
    def known(self) -> Facts:
        """Return the facts as far as they are known, however little that is."""
        ...

    async def start(self) -> None:
        """Make ready. Raises HostFailure or InvalidRequest if there can be no facts at all."""

    async def run(self, told: Callable[[], None]) -> None:
        """Follow until cancelled; call `told` when something may have changed."""

    async def wait_loaded(self) -> None:
        """Return when there are facts."""

    def missing(self) -> tuple[str, ...]:
        """Return why there are no facts yet; empty from the first ones on."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return what is not as it should be, without keeping anything from being served."""
        ...

    def age_s(self) -> float: ...
    def passed_over(self) -> tuple[str, ...]: ...
    def kinds(self) -> tuple[KindReport, ...]: ...
    def reads(self) -> int: ...
    def unsettled(self, doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
        """Return the doubts that a look at the source could settle."""
        ...

    async def settle(self, doubts: Sequence[Doubt], left_s: float) -> None:
        """Look at what is doubted. Raises NotReady if it cannot be learned."""


class DirectorySource:
    """A directory of manifests: nothing in it is ever late."""

    def __init__(self, directory: FactsDirectory) -> None:
        self._directory = directory
        self._told_faults: tuple[SourceFault, ...] = ()

    def facts(self) -> Facts:
        """Return the present facts."""
        return self._directory.facts()

    known = facts

    async def start(self) -> None:
        """Read the directory."""
        self._directory.refresh()
        if not self._directory.is_loaded:
            raise HostFailure(self._directory.facts().faults()[0].message)
        self._tell_faults()

    async def run(self, told: Callable[[], None]) -> None:
        """Read again what changes. Nothing that is wrong with it ends this."""
        while True:
            await asyncio.sleep(_LOOK_SOON_S if self._directory.is_changing else _LOOK_EVERY_S)
            try:
                if await asyncio.to_thread(self._directory.refresh):
                    self._tell_faults()
                    told()
            except Exception:
                _log.error("facts_not_read", exc_info=True)

    async def wait_loaded(self) -> None:
        """Return at once: `start` has read it."""

    def missing(self) -> tuple[str, ...]:
        """Return why there are no facts."""
        return () if self._directory.is_loaded else ("the facts were never read",)

    def notes(self) -> tuple[str, ...]:
        """Return what is wrong with the directory and its files."""
        age_s = self.age_s()
        stale = (f"the facts could not be read for {age_s:.0f} s",) if _STALE_S < age_s < float("inf") else ()
        faults = self._directory.facts().faults()
        return (*stale, *(f"{fault.where}: {fault.message}" for fault in faults))

    def age_s(self) -> float:
        """Return the seconds since the directory could last be read."""
        return self._directory.age_s()

    def passed_over(self) -> tuple[str, ...]:
        """Return the objects that state no facts."""
        return tuple(note.where for note in self._directory.notes())

    def kinds(self) -> tuple[KindReport, ...]:
        """Return nothing: files are of no kind."""
        return ()

    def reads(self) -> int:
        """Return none."""
        return 0

    def unsettled(self, doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
        """Return nothing."""
        return ()

    async def settle(self, doubts: Sequence[Doubt], left_s: float) -> None:
        """Do nothing."""

    def _tell_faults(self) -> None:
        """Log each fault once."""
        faults = self._directory.facts().faults()
        for fault in faults:
            if fault not in self._told_faults:
                _log.warning("facts_faulty", where=fault.where, error=fault.message)
        self._told_faults = faults
