"""What the records of a log say about nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.takeover.records import LINK, NODE, UNLINK, parse_record, render_link, render_node
from sidecar.takeover.table import load_table
from sidemount.model.errors import BadMessage

IDS = st.integers(1, 2**64 - 1)
NAMES = st.binary(max_size=255).filter(lambda name: b"\0" not in name)


@given(IDS, st.integers(0, 2**200), IDS, NAMES)
def test_node_records_can_be_read(node: int, identity: int, parent: int, name: bytes) -> None:
    assert parse_record(render_node(node, identity, parent, name)) == (NODE, node, identity, parent, name)


@given(IDS, IDS, NAMES, st.booleans())
def test_link_records_can_be_read(node: int, parent: int, name: bytes, is_there: bool) -> None:
    kind = LINK if is_there else UNLINK
    assert parse_record(render_link(node, parent, name, is_there=is_there)) == (kind, node, 0, parent, name)


@given(st.binary(max_size=60))
def test_rubbish_is_a_value_error_or_a_record(content: bytes) -> None:
    try:
        kind, *_ = parse_record(content)
    except ValueError:
        return
    assert kind in (NODE, LINK, UNLINK)


def node(number: int, parent: int, name: bytes) -> bytes:
    return render_node(number, 1000 + number, parent, name)


def test_last_record_of_a_node_holds_and_ended_nodes_are_left_out() -> None:
    records = [node(1, 0, b""), node(2, 1, b"a"), node(3, 1, b"b"), node(2, 3, b"c"), node(4, 1, b"d")]
    table = load_table([records[:2], records[2:]], ids=[0, 1, 2, 3])
    assert table.nodes == {1: (1001, 0, b""), 2: (1002, 3, b"c"), 3: (1003, 1, b"b")}
    assert table.more == {}


def test_slot_that_is_another_nodes_by_now_says_nothing_of_the_first() -> None:
    later = 7 << 24 | 2
    records = [
        node(1, 0, b""),
        node(2, 1, b"a"),
        render_link(2, 1, b"x", is_there=True),
        node(later, 1, b"n"),
    ]
    table = load_table([records], ids=[0, 1, later])
    assert set(table.nodes) == {1, later}
    assert table.more == {}


def test_further_links_come_and_go_once_however_often_they_are_recorded() -> None:
    def link(name: bytes, is_there: bool = True) -> bytes:
        return render_link(2, 1, name, is_there=is_there)

    records = [node(1, 0, b""), node(2, 1, b"a"), link(b"b"), link(b"c"), link(b"d"), link(b"c", False)]
    records += [link(b"b"), link(b"never", False), link(b"a"), render_link(9, 1, b"z", is_there=True)]
    assert load_table([records], ids=[0, 1, 2]).more == {2: [(1, b"b"), (1, b"d")]}


def test_directory_beneath_itself_is_an_error() -> None:
    records = [node(1, 0, b""), node(2, 3, b"a"), node(3, 2, b"b"), node(4, 3, b"c")]
    with pytest.raises(BadMessage, match="beneath itself"):
        load_table([records], ids=[0, 1, 2, 3, 4])


def test_record_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(BadMessage, match="cannot be read"):
        load_table([[b"\1\2"]], ids=[0, 1])
    with pytest.raises(BadMessage, match="unknown kind 77"):
        load_table([[b"\x4d" + bytes(30)]], ids=[0, 1])
