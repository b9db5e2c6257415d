"""Lookup counts over many lives: no node that the kernel knows is given up, and none is kept for ever that it does not."""

import os
import random
from array import array
from pathlib import Path

import pytest

from sidecar.directory.nodes import NodeTable
from sidecar.takeover import layout
from sidecar.takeover.holder import NoHolder
from sidecar.takeover.ledger import ROOT, Ledger
from sidecar.takeover.leftovers import Leftovers
from sidecar.takeover.state import State, begin_state, resume_state

ROOT_IDENTITY = 2 | 4 << 64
QUIET_S = 10.0


class Kernel:
    """What the kernel knows: lookups it was told of, by node, and by name what it has."""

    def __init__(self) -> None:
        self.lookups: dict[int, int] = {}

    def told(self, node: int) -> None:
        """Be told of a node."""
        self.lookups[node] = self.lookups.get(node, 0) + 1

    def forget(self, node: int) -> int:
        """Drop a node, and return the lookups to be taken back."""
        return self.lookups.pop(node)

    def knows(self, node: int) -> bool:
        """Answer the question that the daemon asks."""
        return node in self.lookups


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table_of(state: State, clock: Clock) -> tuple[NodeTable, Leftovers]:
    """Return the node table of a life, and what may be left over in it."""
    table = NodeTable(ROOT_IDENTITY, lambda node: None, state.ledger)
    state.ledger.follow(table)
    if state.inheritance is None:
        state.ledger.node(table.root)
        return table, Leftovers([], [], quiet_s=QUIET_S, clock=clock)
    reserved = state.ledger._head[layout.AT_NODES_RESERVED]
    ids = array("Q", state.ledger._ids[:reserved].tobytes())
    counts = array("Q", (state.ledger.lookups[slot] for slot in range(reserved)))
    leftovers = Leftovers(ids, counts, quiet_s=QUIET_S, clock=clock)
    table.restore(state.inheritance.nodes, leftovers)
    return table, leftovers


def identity(number: int) -> int:
    return number + 1000 | 8 << 64


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_takeovers_lose_no_node_and_leave_none(tmp_path: Path, seed: int) -> None:
    """Requests in hand are counted and not told, forgets in hand are lost: at every kill."""
    dice, kernel, clock = random.Random(seed), Kernel(), Clock()
    state = begin_state(str(tmp_path), NoHolder())
    table, leftovers = table_of(state, clock)
    node_of: dict[int, int] = {}
    most = 0

    def look_up(number: int, *, is_told: bool = True) -> None:
        node = table.admit(identity(number), table.root, b"%d" % number, 1)
        if is_told:
            kernel.told(node.id)
            node_of[number] = node.id

    for _ in range(1000):
        for _ in range(dice.randrange(40)):
            number = dice.randrange(600)
            if dice.random() < 0.6:
                look_up(number)
            elif node_of.get(number) in kernel.lookups:
                table.forget(node_of[number], kernel.forget(node_of[number]))
        for _ in range(dice.randrange(4)):
            look_up(dice.randrange(600), is_told=False)  # its answer never leaves
        for number in dice.sample(range(600), 8):
            if node_of.get(number) in kernel.lookups:
                kernel.forget(node_of[number])  # read and never applied
        state.close()
        state = resume_state(str(tmp_path), NoHolder(), {})
        table, leftovers = table_of(state, clock)
        clock.now += dice.choice((0.05, 1.0, 15.0))
        for _ in range(dice.choice((0, 3, 1000))):
            leftovers.ask(table, kernel.knows)
        for node, count in kernel.lookups.items():
            assert table.lookups(table[node]) >= count
        most = max(most, len(table) - len(kernel.lookups))
    assert most < 300
    clock.now += QUIET_S
    while leftovers.ask(table, kernel.knows):
        pass
    assert len(table) == len(kernel.lookups) + 1
    for node, count in kernel.lookups.items():
        assert table.lookups(table[node]) >= count
    state.close()


class Asked:
    """A kernel that notes which nodes it is asked for."""

    def __init__(self, known: set[int]) -> None:
        self.known = known
        self.asked: list[int] = []

    def __call__(self, node: int) -> bool:
        self.asked.append(node)
        return node in self.known


class Counts:
    """A table that has nothing but counts."""

    def __init__(self, counts: list[int]) -> None:
        ledger = Ledger()
        self.counts = {ledger.new_id(): count for count in counts}

    def count_of(self, node: int) -> int:
        return self.counts.get(node, 0)

    def give_up(self, node: int, count: int) -> None:
        if self.counts[node] == count:
            del self.counts[node]


def leftovers_of(clock: Clock, counts: list[int]) -> tuple[Leftovers, Counts, list[int]]:
    table = Counts(counts)
    nodes = list(table.counts)
    return Leftovers([0, ROOT, *nodes], [0, 7, *counts], quiet_s=QUIET_S, clock=clock), table, nodes


def test_nothing_is_asked_before_it_was_quiet_for_a_while() -> None:
    kernel, clock = Asked(set()), Clock()
    leftovers, table, nodes = leftovers_of(clock, [1, 1])
    clock.now = QUIET_S - 0.01
    assert not leftovers.ask(table, kernel)
    clock.now = QUIET_S
    assert [leftovers.ask(table, kernel) for _ in range(4)] == [True, True, False, False]
    assert kernel.asked == nodes
    assert table.counts == {}


def test_node_that_was_looked_up_since_is_not_given_up() -> None:
    """Its answer may be on its way to the kernel, which does not know it yet."""
    kernel, clock = Asked(set()), Clock()
    leftovers, table, nodes = leftovers_of(clock, [1, 1])
    table.counts[nodes[0]] += 1
    clock.now = QUIET_S
    while leftovers.ask(table, kernel):
        pass
    assert kernel.asked == nodes[1:]
    assert table.counts == {nodes[0]: 2}


def test_node_that_is_looked_up_while_the_kernel_is_asked_is_not_given_up() -> None:
    clock = Clock()
    leftovers, table, nodes = leftovers_of(clock, [1])
    clock.now = QUIET_S

    def look_up_meanwhile(node: int) -> bool:
        table.counts[node] += 1
        return False

    assert leftovers.ask(table, look_up_meanwhile)
    assert table.counts == {nodes[0]: 2}


def test_node_that_was_forgotten_with_a_rest_is_asked_for_after_a_while() -> None:
    kernel, clock = Asked(set()), Clock()
    leftovers, table, nodes = leftovers_of(clock, [5])
    clock.now = QUIET_S - 1
    table.counts[nodes[0]] = 2
    leftovers.forgot(nodes[0], 2)
    clock.now = QUIET_S + 1
    assert not leftovers.ask(table, kernel), "it was touched two seconds ago"
    clock.now = 2 * QUIET_S
    assert leftovers.ask(table, kernel)
    assert table.counts == {}


def test_node_that_came_back_after_it_was_forgotten_is_not_given_up() -> None:
    kernel, clock = Asked(set()), Clock()
    leftovers, table, nodes = leftovers_of(clock, [5])
    leftovers.forgot(nodes[0], 2)
    table.counts[nodes[0]] = 3
    clock.now = 2 * QUIET_S
    assert not leftovers.ask(table, kernel)
    assert kernel.asked == []


def test_node_that_the_kernel_knows_stays() -> None:
    clock = Clock()
    leftovers, table, nodes = leftovers_of(clock, [1, 1])
    kernel = Asked(set(nodes))
    clock.now = QUIET_S
    while leftovers.ask(table, kernel):
        pass
    assert kernel.asked == nodes
    assert len(table.counts) == 2


def test_own_nodes_are_never_asked_for(tmp_path: Path) -> None:
    state = begin_state(str(tmp_path), NoHolder())
    table, _ = table_of(state, Clock())
    inherited = table.admit(identity(1), table.root, b"1", 1).id
    state.close()
    state = resume_state(str(tmp_path), NoHolder(), {})
    kernel, clock = Asked(set()), Clock()
    table, leftovers = table_of(state, clock)
    own = [table.admit(identity(number), table.root, b"%d" % number, 1).id for number in range(2, 50)]
    for node in own[::2]:
        table.admit(identity(2 + own.index(node)), table.root, b"again", 1)
        table.forget(node, 1)
    clock.now = 5 * QUIET_S
    while leftovers.ask(table, kernel):
        pass
    assert kernel.asked == [inherited]
    assert len(table) == 1 + len(own)
    state.close()


def test_slots_are_used_again(tmp_path: Path) -> None:
    state = begin_state(str(tmp_path), NoHolder())
    table, _ = table_of(state, Clock())
    for number in range(50_000):
        table.forget(table.admit(identity(number), table.root, b"%d" % number, 1).id, 1)
    assert len(table) == 1
    assert os.stat(tmp_path / "state").st_blocks * 512 < 2 << 20
    state.close()
