"""What was found out about one ability of a class."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """UNTRIED: it does not apply, or could not be tried; the reason says which."""

    OK = "ok"
    FAILED = "failed"
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row. `reason` is for people: what was seen, and the way out if that is not what should be."""

    check: str
    verdict: Verdict
    reason: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it for machines."""
        return {"check": self.check, "verdict": self.verdict.value, "reason": self.reason}

    @classmethod
    def from_json(cls, raw: dict[str, str]) -> "Finding":
        """Return what `to_json` has rendered."""
        return cls(check=raw["check"], verdict=Verdict(raw["verdict"]), reason=raw["reason"])


class NotAsDeclared(Exception):
    """A trial's check failed; the text is the finding's reason."""


class CannotTry(Exception):
    """A trial's check does not apply here; the text is the finding's reason."""
