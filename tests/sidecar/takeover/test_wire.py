"""The kernel's requests, as bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.takeover import operation, wire
from sidecar.takeover.operation import Operation
from sidemount.model.errors import BadMessage

PARENT = 0x0123_4567_89AB


def message(opcode: int, body: bytes, node: int = PARENT, unique: int = 4, extensions: int = 0) -> bytes:
    """Return a request as the kernel writes it."""
    length = 40 + len(body)
    return struct.pack("=IIQQIIIHH", length, opcode, unique, node, 1000, 1000, 77, extensions, 0) + body


def asked(opcode: int, body: bytes) -> Operation | None:
    return wire.operation_of(wire.parse_request(message(opcode, body)))


@pytest.mark.parametrize(
    ("opcode", "body", "wanted"),
    [
        pytest.param(6, b"name\0target/of/it\0", Operation(6, PARENT, b"name"), id="symlink"),
        pytest.param(8, bytes(16) + b"fifo\0", Operation(8, PARENT, b"fifo"), id="mknod"),
        pytest.param(9, bytes(8) + b"dir\0", Operation(9, PARENT, b"dir"), id="mkdir"),
        pytest.param(10, b"gone\0", Operation(10, PARENT, b"gone"), id="unlink"),
        pytest.param(11, b"\xff\xfe\0", Operation(11, PARENT, b"\xff\xfe"), id="rmdir-of-any-bytes"),
        pytest.param(
            12,
            struct.pack("=Q", 9) + b"old\0new\0",
            operation.rename(PARENT, b"old", 9, b"new", 0),
            id="rename",
        ),
        pytest.param(
            45,
            struct.pack("=QII", 9, 2, 0) + b"old\0new\0",
            operation.rename(PARENT, b"old", 9, b"new", 2),
            id="rename2-exchange",
        ),
        pytest.param(13, struct.pack("=Q", 55) + b"other\0", operation.link(55, PARENT, b"other"), id="link"),
        pytest.param(14, struct.pack("=II", 0o100002, 0), operation.open_file(PARENT, 0o100002), id="open"),
        pytest.param(27, bytes(8), Operation(27, PARENT, b""), id="opendir"),
        pytest.param(35, bytes(16) + b"made\0", Operation(35, PARENT, b"made"), id="create"),
        pytest.param(
            21,
            struct.pack("=II", 3, 1) + b"user.a\0v\0v",
            Operation(21, PARENT, b"user.a"),
            id="setxattr",
        ),
        pytest.param(
            21,
            struct.pack("=IIII", 3, 1, 1, 0) + b"user.a\0v\0v",
            Operation(21, PARENT, b"user.a"),
            id="setxattr-extended",
        ),
        pytest.param(24, b"user.a\0", Operation(24, PARENT, b"user.a"), id="removexattr"),
        pytest.param(1, b"name\0", None, id="lookup"),
        pytest.param(16, bytes(40) + b"content", None, id="write"),
        pytest.param(3, bytes(16), None, id="getattr"),
        pytest.param(26, bytes(64), None, id="init"),
    ],
)
def test_request_becomes_the_operation_that_its_handler_names(
    opcode: int, body: bytes, wanted: Operation | None
) -> None:
    assert asked(opcode, body) == wanted


def test_names_differ_where_nothing_else_does() -> None:
    assert operation.rename(1, b"a", 2, b"b", 0) != operation.rename(1, b"a", 2, b"b", 1)
    assert operation.rename(1, b"ab", 2, b"c", 0) != operation.rename(1, b"a", 2, b"bc", 0)
    assert operation.link(1, 2, b"a") != operation.link(3, 2, b"a")
    assert operation.open_file(1, -1) == operation.open_file(1, 0xFFFFFFFF)


@pytest.mark.parametrize(("flags", "wanted"), [(0, False), (1, True), (2, False)])
def test_create_flag_of_an_attribute(flags: int, wanted: bool) -> None:
    request = wire.parse_request(message(21, struct.pack("=II", 1, flags) + b"user.a\0v"))
    assert wire.must_not_exist(request) is wanted
    assert not wire.must_not_exist(wire.parse_request(message(24, b"user.a\0")))


def test_extensions_are_no_part_of_the_body() -> None:
    body = bytes(8) + b"dir\0" + bytes(4) + struct.pack("=II", 16, 0) + bytes(8)
    request = wire.parse_request(message(9, body, extensions=2))
    assert request.body == body[:-16]
    assert wire.operation_of(request) == Operation(9, PARENT, b"dir")


def test_request_that_was_sent_before_says_so() -> None:
    assert wire.parse_request(message(9, bytes(12), unique=4 | 1 << 63)).is_resent
    assert not wire.parse_request(message(9, bytes(12), unique=4)).is_resent


def test_forgets() -> None:
    one = wire.parse_request(message(2, struct.pack("=Q", 3), node=7))
    many = wire.parse_request(message(42, struct.pack("=II4Q", 2, 0, 5, 1, 6, 9), node=0))
    assert wire.forgets_of(one) == ((7, 3),)
    assert wire.forgets_of(many) == ((5, 1), (6, 9))
    assert wire.forgets_of(wire.parse_request(message(1, b"n\0"))) == ()


@pytest.mark.parametrize(
    ("opcode", "body", "said"),
    [
        pytest.param(10, b"no end", "lacks a name", id="name-without-end"),
        pytest.param(9, bytes(4), "lacks a name", id="no-room-for-a-name"),
        pytest.param(45, bytes(16) + b"one\0", "lacks a name", id="one-name-of-two"),
        pytest.param(14, b"", "has 0 of 4 bytes", id="nothing"),
        pytest.param(13, b"a\0", "lacks a name", id="link-too-short"),
    ],
)
def test_damaged_request_is_an_error(opcode: int, body: bytes, said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        asked(opcode, body)


def test_damaged_forgets_are_an_error() -> None:
    with pytest.raises(BadMessage, match="a batch of 3 forgets has 24 bytes"):
        wire.forgets_of(wire.parse_request(message(42, struct.pack("=IIQQ", 3, 0, 1, 1))))


@given(st.binary(max_size=200))
def test_rubbish_is_a_bad_message_or_a_request(content: bytes) -> None:
    try:
        request = wire.parse_request(content)
        wire.operation_of(request)
        wire.forgets_of(request)
        wire.must_not_exist(request)
    except BadMessage:
        pass


@given(st.integers(0, 60), st.binary(max_size=80))
def test_any_body_of_any_opcode_is_a_bad_message_or_an_operation(opcode: int, body: bytes) -> None:
    request = wire.parse_request(message(opcode, body))
    try:
        found = wire.operation_of(request)
        wire.forgets_of(request)
        wire.must_not_exist(request)
    except BadMessage:
        return
    assert found is None or found.node == PARENT


def test_length_must_be_the_messages() -> None:
    whole = message(10, b"a\0")
    for wrong in (whole[:-1], whole + b"\0", whole[:39], b""):
        with pytest.raises(BadMessage):
            wire.parse_request(wrong)
