"""What a launcher is: where daemons run, and who starts them again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from csi.last_words import LastWords
from csi.records import Record


@dataclass(frozen=True, slots=True)
class Ended:
    """How a daemon ended."""

    code: int
    words: LastWords


class Launcher(Protocol):
    """Every method finds done what is done already. A daemon that ends is started again until `stop`."""

    async def start(self, record: Record, secrets: Mapping[str, str]) -> None:
        """See that the target's daemon runs. Raises VolumeError."""
        ...

    async def stop(self, record: Record) -> None:
        """See that it has ended, and that nothing of it is left. Raises VolumeError if it cannot be ended."""
        ...

    def ended(self, record: Record) -> Ended | None:
        """Return how it ended last since it was started, None if it never did."""
        ...

    def replace(self, record: Record, why: str) -> None:
        """End what stands still, so that another one begins."""
        ...

    async def close(self) -> None:
        """Start none again; leave those that run."""
        ...
