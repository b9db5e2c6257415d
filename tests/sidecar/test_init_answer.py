"""Flags in libfuse's answer to FUSE_INIT."""

import struct

import pytest

from sidecar.init_answer import InitFlag, add_flags, idle_request

ALL = InitFlag.DONT_MASK | InitFlag.PARALLEL_DIROPS | InitFlag.HANDLE_KILLPRIV_V2
ASYNC_READ = 1
BIG_WRITES = 1 << 5


def question(offered: int) -> bytes:
    """Return a FUSE_INIT that offers flags."""
    body = struct.pack("<IIIII44x", 7, 45, 1 << 17, offered, 0x5FD)
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


def test_idle_request_forgets_nothing_of_no_node() -> None:
    length, opcode, unique, node, *_, lookups = struct.unpack("<IIQQIIIHHQ", idle_request())
    assert (length, opcode, node, lookups) == (len(idle_request()), 2, 0, 0)
    assert unique
