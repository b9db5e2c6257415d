"""Lookup counts over many lives: no node that the kernel knows is given up, and none is kept for ever that it does not."""

import os
import random
from array import array
from pathlib import Path

import pytest

from sidecar.directory.nodes import NodeTable
from sidecar.takeover import layout
from sidecar.takeover.holder import NoHolder
from sidecar.takeover.layout import SLOT
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


def table_of(state: State, kernel: Kernel, clock: Clock) -> NodeTable:
    """Return the node table of a life."""
    table = NodeTable(ROOT_IDENTITY, lambda node: None, state.ledger)
    state.ledger.follow(table)
    if state.inheritance is None:
        state.ledger.node(table.root)
        return table
    reserved = state.ledger._head[layout.AT_NODES_RESERVED]
    ids = array("Q", state.ledger._ids[:reserved].tobytes())
    counts = array("Q", (state.ledger.lookups[slot] for slot in range(reserved)))
    leftovers = Leftovers(ids, counts, kernel.knows, quiet_s=QUIET_S, clock=clock)
    table.restore(state.inheritance.nodes, leftovers)
    return table


def identity(number: int) -> int:
    return number + 1000 | 8 << 64


@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_takeovers_lose_no_node_and_leave_none(tmp_path: Path, seed: int) -> None:
    """Requests in hand are counted and not told, forgets in hand are lost: at every kill."""
    dice, kernel, clock = random.Random(seed), Kernel(), Clock()
    state = begin_state(str(tmp_path), NoHolder())
    table = table_of(state, kernel, clock)
    node_of: dict[int, int] = {}
    most = 0

    def look_up(number: int, *, is_told: bool = True) -> None:
        node = table.admit(identity(number), table.root, b"%d" % number, 1)
        if is_told:
            kernel.told(node.id)
            node_of[number] = node.id

    for takeover in range(1000):
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
        clock.now += dice.choice((0.05, 1.0, 15.0))
        if takeover % 50 == 49:
            state.close()
            state = resume_state(str(tmp_path), NoHolder(), {})
            table = table_of(state, kernel, clock)
            clock.now += QUIET_S
            for _ in range(100):
                look_up(600 + dice.randrange(200))  # names that are new pay for questions
        else:
            state.close()
            state = resume_state(str(tmp_path), NoHolder(), {})
            table = table_of(state, kernel, clock)
        for node, count in kernel.lookups.items():
            assert table.lookups(table[node]) >= count
        most = max(most, len(table) - len(kernel.lookups))
    assert most < 500
    # Left alone for a while, every question is asked.
    clock.now += QUIET_S
    for number in range(8000, 8000 + 2 * len(table)):
        look_up(number)
        table.forget(node_of[number], kernel.forget(node_of[number]))
        clock.now += 0.1
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


def leftovers_of(kernel: Asked, clock: Clock, counts: list[int]) -> tuple[Leftovers, Ledger, list[int]]:
    ledger = Ledger()
    ids = [0, ROOT]
    for count in counts:
        node = ledger.new_id()
        ledger.lookups[node & SLOT] = count
        ids.append(node)
    values = [ledger.lookups[slot] for slot in range(len(ids))]
    return Leftovers(ids, values, kernel, quiet_s=QUIET_S, clock=clock), ledger, ids[2:]


def test_nothing_is_given_up_before_it_was_quiet_for_a_while() -> None:
    kernel, clock = Asked(set()), Clock()
    leftovers, ledger, nodes = leftovers_of(kernel, clock, [1, 1])
    clock.now = QUIET_S - 0.01
    assert leftovers.find(ledger.lookups) is None
    assert kernel.asked == []
    clock.now = QUIET_S
    assert [leftovers.find(ledger.lookups) for _ in range(4)] == [*nodes, None, None]
    assert kernel.asked == nodes


def test_node_that_was_looked_up_since_is_not_given_up() -> None:
    """Its answer may be on its way to the kernel, which does not know it yet."""
    kernel, clock = Asked(set()), Clock()
    leftovers, ledger, nodes = leftovers_of(kernel, clock, [1, 1])
    ledger.lookups[nodes[0] & SLOT] += 1
    clock.now = QUIET_S
    assert [leftovers.find(ledger.lookups) for _ in range(3)] == [None, nodes[1], None]
    assert kernel.asked == nodes[1:]


def test_node_that_was_forgotten_with_a_rest_is_asked_for_after_a_while() -> None:
    kernel, clock = Asked(set()), Clock()
    leftovers, ledger, nodes = leftovers_of(kernel, clock, [5])
    clock.now = QUIET_S - 1
    ledger.lookups[nodes[0] & SLOT] = 2
    leftovers.forgot(nodes[0], 2)
    clock.now = QUIET_S + 1
    assert leftovers.find(ledger.lookups) is None, "it was touched two seconds ago"
    clock.now = 2 * QUIET_S
    assert leftovers.find(ledger.lookups) == nodes[0]
    assert leftovers.find(ledger.lookups) is None


def test_node_that_came_back_after_it_was_forgotten_is_not_given_up() -> None:
    kernel, clock = Asked(set()), Clock()
    leftovers, ledger, nodes = leftovers_of(kernel, clock, [5])
    ledger.lookups[nodes[0] & SLOT] = 2
    leftovers.forgot(nodes[0], 2)
    ledger.lookups[nodes[0] & SLOT] = 3
    clock.now = 2 * QUIET_S
    assert [leftovers.find(ledger.lookups) for _ in range(3)] == [None, None, None]
    assert kernel.asked == []


def test_node_that_the_kernel_knows_stays() -> None:
    kernel, clock = Asked(set()), Clock()
    leftovers, ledger, nodes = leftovers_of(kernel, clock, [1, 1])
    kernel.known = set(nodes)
    clock.now = QUIET_S
    assert [leftovers.find(ledger.lookups) for _ in range(3)] == [None, None, None]
    assert kernel.asked == nodes


def test_own_nodes_are_never_asked_for(tmp_path: Path) -> None:
    state = begin_state(str(tmp_path), NoHolder())
    table = table_of(state, Kernel(), Clock())
    table.admit(identity(1), table.root, b"1", 1)
    state.close()
    state = resume_state(str(tmp_path), NoHolder(), {})
    asked = Asked(set())
    clock = Clock()
    kernel = Kernel()
    kernel.knows = asked  # type: ignore[method-assign]  # the question itself
    table = table_of(state, kernel, clock)
    own = [table.admit(identity(number), table.root, b"%d" % number, 1).id for number in range(2, 50)]
    for node in own:
        table.forget(node, 1)
    clock.now = 5 * QUIET_S
    for number in range(50, 100):
        table.admit(identity(number), table.root, b"%d" % number, 1)
    assert len(asked.asked) == 1
    assert asked.asked[0] < own[0]
    state.close()


def test_slots_are_used_again(tmp_path: Path) -> None:
    state = begin_state(str(tmp_path), NoHolder())
    table = table_of(state, Kernel(), Clock())
    for number in range(50_000):
        table.forget(table.admit(identity(number), table.root, b"%d" % number, 1).id, 1)
    assert len(table) == 1
    assert os.stat(tmp_path / "state").st_blocks * 512 < 2 << 20
    state.close()
