"""What an application has done and found."""

import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SHOWN = 20
_SHORT = 200


class Tally:
    """Counts and complaints. A complaint is told at once, as a JSON line on standard error: whoever waits need not wait for the end.

    `leaves` are the files that must be in the source when all is over, with digests of their contents.
    """

    def __init__(self) -> None:
        self.operations = 0
        self.errors: list[str] = []
        self.wrong: list[str] = []
        self.leaves: dict[str, str] = {}

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Note what is not as it must be."""
        if found != wanted:
            self.complain(f"{what}: {short(found)} instead of {short(wanted)}")

    def complain(self, what: str) -> None:
        """Note something wrong."""
        self.wrong.append(what)
        _tell("wrong", what)

    def fail(self, error: str) -> None:
        """Note a call that must not have failed."""
        self.errors.append(error)
        _tell("error", error)

    def leave(self, path: Path, content: bytes) -> None:
        """Say what a file must hold in the source from now on."""
        self.leaves[path.name] = hashlib.sha256(content).hexdigest()

    def report(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "operations": self.operations,
            "errors": self.errors[:_SHOWN],
            "wrong": self.wrong[:_SHOWN],
            "leaves": self.leaves,
        }

    def add(self, report: dict[str, Any]) -> None:
        """Add what another one has reported."""
        self.operations += report["operations"]
        self.errors += report["errors"]
        self.wrong += report["wrong"]
        self.leaves |= report["leaves"]


GoesOn = Callable[[], bool]
Application = Callable[[Path, GoesOn, random.Random, Tally], None]


def short(what: object) -> str:
    """Return a value as text that fits on a line."""
    text = repr(what)
    return text if len(text) < _SHORT else f"{text[:90]}…{text[-90:]} ({len(text)})"


def _tell(kind: str, what: str) -> None:
    sys.stderr.write(json.dumps({kind: what}) + "\n")
    sys.stderr.flush()
