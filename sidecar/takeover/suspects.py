"""Requests that were being worked on whenever a process died: one of them may be what kills.

The kernel gives an unanswered request to every successor. One that ends its process would end them all, so it is found and, after
a bounded number of deaths, answered with an error: an errno for one caller instead of a mount that never comes back.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

_FILE = "suspects"
_NEW = "suspects.new"
_BYTES_MAX = 1 << 16
ALONE_AFTER = 2  # deaths, before requests are served one by one
CONDEMNED_AT = 6  # of suspicion: three crashes, or twice as many hangs
_ALONE_S = 10.0


@dataclass(frozen=True, slots=True)
class Suspect:
    """`deaths` it was there at, and the suspicion of those at which it was the only one."""

    deaths: int = 0
    suspicion: int = 0


class Suspects:
    """Those of one connection, by the kernel's number. Only what was there at the last death stays: all else has been answered."""

    def __init__(self, found: dict[int, Suspect] | None = None) -> None:
        self._found = found or {}

    @classmethod
    def load(cls, directory: str) -> Self:
        """Return what the last process noted; nobody is suspected if that cannot be read."""
        try:
            with open(os.path.join(directory, _FILE), encoding="ascii") as file:
                return cls(dict(_parse(file.read(_BYTES_MAX))))
        except (OSError, ValueError):
            return cls()

    def note_death(self, in_hand: frozenset[int], suspicion: int) -> None:
        """Note at a process's death which requests it had in its hands, and how much speaks for one of them being the cause."""
        alone = suspicion if len(in_hand) == 1 else 0
        before = {unique: self._found.get(unique, Suspect()) for unique in in_hand}
        self._found = {
            unique: Suspect(earlier.deaths + bool(suspicion), earlier.suspicion + alone)
            for unique, earlier in before.items()
            if earlier.deaths + bool(suspicion)
        }

    def __len__(self) -> int:
        return len(self._found)

    @property
    def condemned(self) -> frozenset[int]:
        """Return those that are to be answered with an error."""
        return frozenset(unique for unique, it in self._found.items() if it.suspicion >= CONDEMNED_AT)

    @property
    def must_be_alone(self) -> bool:
        """Tell whether requests have to be served one by one, to see which of them it is."""
        return any(it.deaths >= ALONE_AFTER for it in self._found.values())

    def save(self, directory: str) -> None:
        """Note them for the next process. If that cannot be done, nothing is lost but the suspicion."""
        lines = [f"{unique} {it.deaths} {it.suspicion}\n" for unique, it in self._found.items()]
        with contextlib.suppress(OSError):
            path = os.path.join(directory, _NEW)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write("".join(lines))
            os.replace(path, os.path.join(directory, _FILE))


def alone_for_s(hung_after_s: float) -> float:
    """Return how long requests are served one by one. Shorter than what passes for a hang: a slow one stops all others that long."""
    return min(_ALONE_S, hung_after_s / 2)


def forget_suspects(directory: str) -> None:
    """Forget all: a new connection counts its requests anew."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, _FILE))


def _parse(text: str) -> Iterator[tuple[int, Suspect]]:
    for line in text.splitlines():
        unique, deaths, suspicion = map(int, line.split())
        yield unique, Suspect(deaths, suspicion)
