"""Finding: one thing that was looked at on a cluster, and what it means."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_NAMES_TOLD = 5


class Verdict(Enum):
    """What a finding means."""

    OK = "ok"
    WARN = "warn"  # works, with less, or not everywhere
    FAIL = "fail"  # does not work
    UNKNOWN = "cannot tell"  # it could not be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at. `way_out` is empty when nothing need be done."""

    topic: str
    verdict: Verdict
    found: str
    meaning: str = ""
    way_out: str = ""


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence: the first few, and how many more."""
    more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
    return ", ".join(names[:_NAMES_TOLD]) + more


def many(number: int, what: str, several: str = "") -> str:
    """Return a number of things; `several` where their plural takes more than an s."""
    return f"{number} {what if number == 1 else several or what + 's'}"
