"""Nodes of a bucket: one name each, ended when nothing needs them, and the same for a successor."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.objects.nodes import Node, NodeTable
from sidecar.takeover.holder import NoHolder
from sidecar.takeover.state import State, begin_state, resume_state


def admit(table: NodeTable, parent: Node, name: bytes, *, is_directory: bool = False) -> Node:
    """Have a name looked up."""
    above = table.path(parent)
    path = f"{above}/{name.decode()}" if above else name.decode()
    return table.admit(parent, name, path, is_directory=is_directory)


@pytest.fixture
def table() -> NodeTable:
    return NodeTable()


def test_node_ends_with_the_last_lookup_and_its_directory_after_it(table: NodeTable) -> None:
    directory = admit(table, table.root, b"d", is_directory=True)
    file = admit(table, directory, b"f")
    assert admit(table, directory, b"f") is file
    assert (table.path(file), table.lookups(file)) == ("d/f", 2)
    table.forget(directory.id, 1)
    assert table.path(file) == "d/f"  # a directory lives for what is in it
    table.forget(file.id, 2)
    assert len(table) == 1
    assert table.child(table.root, b"d") is None
    with pytest.raises(OSError, match="Stale"):
        table[file.id]


def test_renamed_directory_takes_everything_along(table: NodeTable) -> None:
    directory = admit(table, table.root, b"d", is_directory=True)
    file = admit(table, directory, b"f")
    other = admit(table, table.root, b"other", is_directory=True)
    table.move(directory, other, b"new")
    assert table.path(file) == "other/new/f"
    assert table.child(other, b"new") is directory
    assert [node.id for node in table.lineage(file)] == [file.id, directory.id, other.id, table.root.id]


def test_whatever_had_a_name_loses_it_to_what_is_moved_there(table: NodeTable) -> None:
    one, two = admit(table, table.root, b"one"), admit(table, table.root, b"two")
    table.move(one, table.root, b"two")
    assert table.known_path(two) is None
    assert table.path(one) == "two"
    assert table.child(table.root, b"one") is None
    with pytest.raises(OSError, match="Stale"):
        table.path(two)
    table.forget(two.id, 1)
    assert len(table) == 2


def test_another_kind_of_thing_at_a_name_is_another_node(table: NodeTable) -> None:
    file = admit(table, table.root, b"x")
    directory = admit(table, table.root, b"x", is_directory=True)
    assert file is not directory
    assert table.known_path(file) is None
    assert table.path(directory) == "x"


def test_pinned_node_keeps_its_name_when_the_kernel_forgets_it(table: NodeTable) -> None:
    file = admit(table, table.root, b"f")
    table.pin(file)
    table.forget(file.id, 1)
    assert table.path(file) == "f"
    table.unpin(file)
    assert len(table) == 1


@pytest.fixture
def states(tmp_path: Path) -> Iterator[list[State]]:
    """States that end with the test."""
    states: list[State] = [begin_state(str(tmp_path), NoHolder())]
    yield states
    states[-1].close()


def test_successor_has_the_same_nodes(states: list[State], tmp_path: Path) -> None:
    """S4-11."""
    table = NodeTable(states[0].ledger)
    states[0].ledger.follow(table)
    states[0].ledger.node(table.root)
    directory = admit(table, table.root, b"d", is_directory=True)
    file = admit(table, directory, "ü".encode())
    lost = admit(table, table.root, b"lost")
    gone = admit(table, table.root, b"gone")
    table.keep(directory, is_kept=True)
    table.move(directory, table.root, b"moved")
    table.detach(lost)
    table.forget(gone.id, 1)
    states[0].close()
    states.append(resume_state(str(tmp_path), NoHolder(), {}))
    again = NodeTable(states[1].ledger)
    states[1].ledger.follow(again)
    inheritance = states[1].inheritance
    assert inheritance is not None
    again.restore(inheritance.nodes, inheritance.leftovers)
    assert set(again.all) == {1, directory.id, file.id, lost.id}
    assert again.path(again[file.id]) == "moved/ü"
    assert again[directory.id].is_directory
    assert again[directory.id].is_kept
    assert again[file.id].ino == file.ino
    assert again.known_path(again[lost.id]) is None
    assert admit(again, again[directory.id], "ü".encode()).id == file.id
    assert admit(again, again.root, b"gone").id > file.id  # no id is used twice
