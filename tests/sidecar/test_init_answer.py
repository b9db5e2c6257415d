"""Flags in libfuse's answer to FUSE_INIT."""

import struct

import pytest

from sidecar.init_answer import InitFlag, add_flags, idle_request, offer_passthrough

ALL = InitFlag.DONT_MASK | InitFlag.PARALLEL_DIROPS | InitFlag.HANDLE_KILLPRIV_V2
ASYNC_READ = 1
BIG_WRITES = 1 << 5


def question(offered: int, offered2: int = 0x5FD) -> bytes:
    """Return a FUSE_INIT that offers flags."""
    body = struct.pack("<IIIII44x", 7, 45, 1 << 17, offered, offered2)
    return struct.pack("<IIQQIIIHH", 40 + len(body), 26, 2, 0, 0, 0, 0, 0, 0) + body


def answer(agreed: int, *, error: int = 0) -> bytes:
    """Return an answer that agrees to flags."""
    body = struct.pack("<IIIIHHIIHHI28x", 7, 38, 1 << 17, agreed, 12, 9, 1 << 20, 1, 256, 0, 7)
    return struct.pack("<IiQ", 16 + len(body), error, 2) + body


@pytest.mark.parametrize(
    ("offered", "added"),
    [
        pytest.param(ALL | BIG_WRITES, ALL, id="all"),
        pytest.param(BIG_WRITES, 0, id="none"),
        pytest.param(InitFlag.PARALLEL_DIROPS, InitFlag.PARALLEL_DIROPS, id="one"),
    ],
)
def test_flags_are_added_that_the_kernel_has_offered_and_nothing_else_changes(
    offered: int, added: int
) -> None:
    assert add_flags(question(offered), answer(ASYNC_READ), ALL) == answer(ASYNC_READ | added)


def test_nothing_is_added_that_is_not_wanted() -> None:
    assert add_flags(question(ALL), answer(0), InitFlag.DONT_MASK) == answer(InitFlag.DONT_MASK)


@pytest.mark.parametrize("cut", [0, 15, 16, 31])
def test_what_is_no_agreement_stays_as_it_is(cut: int) -> None:
    assert add_flags(question(ALL), answer(0)[:cut], ALL) == answer(0)[:cut]
    assert add_flags(question(ALL), answer(0, error=-71), ALL) == answer(0, error=-71)
    assert add_flags(question(ALL)[:cut], answer(0), ALL) == answer(0)


INIT_EXT = 1 << 30
PASSTHROUGH = 1 << 5


def extended(agreed: int, agreed2: int, depth: int) -> bytes:
    """Return an answer that agrees to more flags."""
    body = struct.pack(
        "<IIIIHHIIHHIII20x", 7, 38, 1 << 17, agreed, 12, 9, 1 << 20, 1, 256, 0, agreed2, depth, 0
    )
    return struct.pack("<IiQ", 16 + len(body), 0, 2) + body


def test_passthrough_is_agreed_to_with_room_for_one_more_filesystem_on_top() -> None:
    assert len(extended(0, 0, 0)) == 16 + 64
    asked = question(INIT_EXT, PASSTHROUGH | 1)
    wanted = extended(ASYNC_READ | INIT_EXT, PASSTHROUGH, 1)
    assert offer_passthrough(asked, extended(ASYNC_READ, 7, 0)) == wanted, "what did not count still does not"
    kept = extended(INIT_EXT, PASSTHROUGH | 4, 1)
    assert offer_passthrough(asked, extended(INIT_EXT, 4, 0)) == kept


@pytest.mark.parametrize(
    "asked", [question(INIT_EXT, 0), question(0, PASSTHROUGH), question(INIT_EXT, PASSTHROUGH)[:59]]
)
def test_passthrough_is_agreed_to_only_if_the_kernel_offers_it(asked: bytes) -> None:
    assert offer_passthrough(asked, extended(0, 0, 0)) == extended(0, 0, 0)


def test_passthrough_is_not_added_to_what_is_no_agreement() -> None:
    asked = question(INIT_EXT, PASSTHROUGH)
    for refusal in (answer(0, error=-71), extended(0, 0, 0)[:55], b""):
        assert offer_passthrough(asked, refusal) == refusal


def test_idle_request_forgets_nothing_of_no_node() -> None:
    length, opcode, unique, node, *_, lookups = struct.unpack("<IIQQIIIHHQ", idle_request())
    assert (length, opcode, node, lookups) == (len(idle_request()), 2, 0, 0)
    assert unique
