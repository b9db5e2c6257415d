"""The nodes that a predecessor has left, as values."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sidecar.takeover import layout
from sidecar.takeover.records import LINK, NODE, parse_record
from sidemount.model.errors import BadMessage

Link = tuple[int, bytes]
Described = tuple[int, int, bytes]


@dataclass(frozen=True, slots=True)
class Table:
    """All nodes by id, as identity, parent (0: none) and name; and the further links of those that have any, oldest first."""

    nodes: dict[int, Described] = field(default_factory=dict)
    more: dict[int, list[Link]] = field(default_factory=dict)


def load_table(windows: Iterable[list[bytes]], ids: Sequence[int]) -> Table:
    """Return what the records of a log say. `ids` has the node that lives in each slot, 0 for none. Raises BadMessage."""
    nodes: dict[int, Described] = {}
    more: dict[int, dict[Link, None]] = {}
    with without_collection():
        for records in windows:
            try:
                _take(records, ids, nodes, more)
            except ValueError as error:
                raise BadMessage(f"the log has {error}") from error
    _check(nodes)
    return Table(nodes, {node: links for node, links in _further(nodes, more) if links})


def _check(nodes: dict[int, Described]) -> None:
    """Make sure that going up from any node ends. Raises BadMessage."""
    ends = {0}
    for directory in {parent for _, parent, _ in nodes.values()}:
        path = set()
        at = directory
        while at not in ends:
            if at in path:
                raise BadMessage(f"the log has a directory (node {at}) that is beneath itself")
            path.add(at)
            at = nodes[at][1] if at in nodes else 0
        ends |= path


def _take(
    records: list[bytes],
    ids: Sequence[int],
    nodes: dict[int, Described],
    more: dict[int, dict[Link, None]],
) -> None:
    slots = len(ids)
    for content in records:
        kind, node, identity, parent, name = parse_record(content)
        slot = node & layout.SLOT
        if slot >= slots or ids[slot] != node:
            continue  # it has ended, and its slot may be another's by now
        if kind == NODE:
            nodes[node] = (identity, parent, name)
        elif kind == LINK:
            more.setdefault(node, {})[parent, name] = None
        elif node in more:
            more[node].pop((parent, name), None)


def _further(
    nodes: dict[int, Described], more: dict[int, dict[Link, None]]
) -> Iterator[tuple[int, list[Link]]]:
    """Yield the further links of nodes, without the first ones: a kill can have left a link as both."""
    for node, links in more.items():
        if node in nodes:
            _, *first = nodes[node]
            yield node, [link for link in links if link != tuple(first)]


@contextmanager
def without_collection() -> Iterator[None]:
    """Have no garbage collected: a million new objects would set off many collections, none of which finds any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
