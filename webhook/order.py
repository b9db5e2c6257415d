"""The order of init containers: the keeper before its daemons, all of them before every container that shows a view.

Other injectors may insist on their own place. So ours are moved only where a pod could not start as it stands, and an order
that works is left as it is: two injectors never push each other aside for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Insertion:
    """Put a container of ours in at an index."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Move:
    """Take the container at `source` out and put it in at `index`, counted without it."""

    source: int
    index: int


Step = Insertion | Move


def arrange(
    found: Sequence[str], ours: Sequence[str], dependents: frozenset[int], network: frozenset[str]
) -> list[Step]:
    """Return the steps that bring ours, in their order, to a place that works; applied one after the other.

    `dependents` are indices in `found` of containers that show a view. Ours go behind a leading run of `network` containers
    that show none: they carry the traffic that ours need.
    """
    tokens: list[str | int] = [name if name in ours else index for index, name in enumerate(found)]
    if _works(tokens, ours, dependents):
        return _insert_missing(tokens, ours)
    start = 0
    while start < len(found) and found[start] in network and start not in dependents:
        start += 1
    steps: list[Step] = []
    for offset, name in enumerate(ours):
        index = start + offset
        if name in tokens:
            # Never before its place: in front of it stand others' containers and those of ours already set.
            source = tokens.index(name)
            if source != index:
                steps.append(Move(source, index))
            tokens.insert(index, tokens.pop(source))
        else:
            steps.append(Insertion(name, index))
            tokens.insert(index, name)
    return steps


def _works(tokens: Sequence[str | int], ours: Sequence[str], dependents: frozenset[int]) -> bool:
    """Say whether what is there of ours is in order and before every dependent; false if none is there."""
    placed = [tokens.index(name) for name in ours if name in tokens]
    if not placed or ours[0] not in tokens:
        return False
    first_dependent = next((i for i, token in enumerate(tokens) if token in dependents), len(tokens))
    return placed[0] == min(placed) and max(placed) < first_dependent


def _insert_missing(tokens: list[str | int], ours: Sequence[str]) -> list[Step]:
    """Put each missing one behind the one of ours that precedes it."""
    steps: list[Step] = []
    for position, name in enumerate(ours):
        if name not in tokens:
            index = tokens.index(ours[position - 1]) + 1
            steps.append(Insertion(name, index))
            tokens.insert(index, name)
    return steps
