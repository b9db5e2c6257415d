"""What a launcher is: where daemons run, and who starts them again."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from csi.event_subject import PodRef
from csi.last_words import LastWords, redacted
from csi.records import Record


@dataclass(frozen=True, slots=True)
class Ended:
    """How a daemon ended, or why it does not begin. `what` says so if it is no code of a process.

    `is_final`: waiting does not help. `is_room_missing`: the node is full.
    """

    code: int
    words: LastWords
    what: str = ""
    is_final: bool = True
    is_room_missing: bool = False

    def without(self, secrets: Iterable[str]) -> "Ended":
        """Return it with no secret in its words."""
        words = self.words
        clean = replace(words, fault=redacted(words.fault, secrets), hint=redacted(words.hint, secrets))
        return replace(self, words=clean)

    @property
    def told(self) -> str:
        """Return all of it in one sentence."""
        what = self.what or f"its daemon has ended with code {self.code}"
        return what if self.words.fault in ("", what) else f"{what}: {self.words.fault}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What a launcher has and has done. `states`: daemons or their pods, by how they are; `starts`: by the way they were started.

    `orphans`: what was ended because it belongs to no record. `is_nursery_ready`: None without one.
    """

    states: Mapping[str, int]
    starts: Mapping[str, int]
    orphans: int = 0
    is_nursery_ready: bool | None = None


class Launcher(Protocol):
    """Every method finds done what is done already. A daemon that ends is started again until `stop`."""

    async def start(self, record: Record, secrets: Mapping[str, str]) -> None:
        """See that the target's daemon runs, or will. Raises VolumeError."""
        ...

    async def refresh(self, record: Record, secrets: Mapping[str, str]) -> None:
        """Give the credentials of a running daemon anew. Raises VolumeError."""
        ...

    async def stop(self, record: Record) -> None:
        """See that it has ended, and that nothing of it is left. Raises VolumeError if it cannot be ended."""
        ...

    async def forget(self, name: str) -> None:
        """End what an earlier state, now lost, has started for the target of that name. Raises VolumeError."""
        ...

    def ended(self, record: Record) -> Ended | None:
        """Return how it ended last since it was started, None if it never did."""
        ...

    def deaths(self, record: Record) -> int:
        """Return how often it has ended since somebody counts. That may begin anew."""
        ...

    def mount_pod(self, record: Record) -> PodRef | None:
        """Return the pod that it runs in, None if it runs in none, or nobody knows."""
        ...

    def census(self) -> Census:
        """Return what there is. Returns at once."""
        ...

    def replace(self, record: Record, why: str) -> None:
        """End what stands still, so that another one begins."""
        ...

    def settle(self, known: Callable[[], Collection[str]]) -> None:
        """Begin to end daemons that belong to no record. `known` returns the names of all records."""
        ...

    @property
    def children(self) -> set[int]:
        """Return the processes that are waited for here."""
        ...

    async def close(self) -> None:
        """Start none again; leave those that run."""
        ...
