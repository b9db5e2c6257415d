"""New requests that only drains have read, whose processes died over it: nothing that was answered is answered with once more."""

import contextlib
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sidecar.takeover import layout, operation, wire
from sidecar.takeover.drain import Drained, Unanswered, drain, requeue
from sidecar.takeover.holder import NoHolder
from sidecar.takeover.newcomers import Newcomers
from sidecar.takeover.operation import CREATE, MKDIR, OPEN, UNLINK, Operation
from sidecar.takeover.state import begin_state, resume_state
from sidemount.host.readiness import wait_readable
from tests.sidecar.takeover.processes import child_that_dies, die
from tests.sidecar.takeover.raw_kernel import LOOKUP, RawConnection, entry_of_file, with_raw_connection

HEADER = struct.Struct("=IIQQIIIHH")
FILE = 2
HANDLE = 77


class Case(NamedTuple):
    """A system call that can be made a second time as soon as it has had its answer."""

    opcode: int
    call: Callable[[Path], object]
    asks: Operation
    is_there: bool


CASES = {
    "open": Case(OPEN, lambda path: os.open(path, os.O_RDWR), Operation(OPEN, FILE, b""), is_there=True),
    "mkdir": Case(MKDIR, lambda path: path.mkdir(), Operation(MKDIR, 1, b"a"), is_there=False),
    "create": Case(
        CREATE,
        lambda path: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL),
        Operation(CREATE, 1, b"a"),
        is_there=False,
    ),
    "unlink": Case(UNLINK, lambda path: path.unlink(), Operation(UNLINK, 1, b"a"), is_there=True),
}


def header(opcode: int, unique: int) -> bytes:
    return HEADER.pack(HEADER.size, opcode, unique, 1, 0, 0, 0, 0, 0)


def receive(newcomers: Newcomers, message: bytes) -> None:
    """Have a message come."""

    def read(place: memoryview) -> int:
        place[:] = message
        return len(message)

    assert newcomers.receive(read) == len(message)


def drain_and_die(device: int, directory: Path) -> None:
    """Take over, and be killed the moment that the kernel has given the first new request, or says that there is none."""
    readv = os.readv

    def deadly(descriptor: int, buffers: tuple[memoryview, ...]) -> int:
        try:
            length = readv(descriptor, buffers)
        except BlockingIOError:
            die()
            raise
        request = wire.parse_request(b"".join(buffers)[:length])
        if not request.is_resent and request.opcode not in (wire.FORGET, wire.BATCH_FORGET, wire.INTERRUPT):
            die()
        return length

    vars(os)["readv"] = deadly
    state = resume_state(str(directory), NoHolder(), {})
    drain(device, newcomers=state.newcomers)


@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.parametrize("deaths", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_new_request_is_none_that_was_answered_though_processes_die_that_have_read_it(
    tmp_path: Path, name: str, deaths: int
) -> None:
    """S4-10. A daemon dies between an answer and the end of its step, its successors when they have read an equal request."""
    case = CASES[name]
    target, directory = tmp_path / "target", tmp_path / "state"
    target.mkdir()
    directory.mkdir()

    def call() -> None:
        with contextlib.suppress(PermissionError):
            case.call(target / "a")

    def answered_and_not_closed(raw: RawConnection) -> Operation:
        first = raw.call(call)
        request = raw.serve_until(case.opcode)
        asked = wire.operation_of(request)
        assert asked is not None
        state = begin_state(str(directory), NoHolder())
        with state.journal.step(*asked) as step:
            step.intend()
            step.opens(HANDLE)
            step.done(FILE)
        raw.answer(request.unique, error=errno.EACCES)
        os.waitpid(first, 0)
        raw.callers.remove(first)
        state.close()
        return asked

    def scenario(raw: RawConnection) -> tuple[Operation, Drained, bool, list[int], bool, bool]:
        raw.answer_init()
        raw.found = entry_of_file(FILE) if case.is_there else b""
        asked = answered_and_not_closed(raw)
        raw.call(call)
        request = raw.read()
        assert request.opcode == LOOKUP
        raw.answer_lookup(request)
        assert wait_readable(raw.device, 10), "the equal request"
        for _ in range(deaths):
            assert child_that_dies(lambda: drain_and_die(raw.device, directory)) == -9
        state = resume_state(str(directory), NoHolder(), {})
        untold: list[int] = []
        state.journal.untold = untold.append
        drained = drain(raw.device, newcomers=state.newcomers)
        state.journal.resume(drained.operations, drained.newcomers)
        state.newcomers.clear()
        requeue(raw.device, drained)
        again = raw.serve_until(case.opcode)
        with state.journal.step(*asked) as step:
            is_recalled = step.is_recalled
        raw.answer(again.unique, error=errno.EACCES)
        return asked, drained, is_recalled, untold, again.is_resent, bool(state.newcomers.uniques)

    asked, drained, is_recalled, untold, is_resent, is_noted = with_raw_connection(target, scenario)
    assert (asked.kind, asked.node) == (case.asks.kind, case.asks.node)
    assert drained == Drained(newcomers=(Unanswered(asked),))
    assert not is_recalled, "it is answered with the result of the one before"
    assert untold == [], "a handle that an application has is closed"
    assert is_resent
    assert not is_noted


def test_newcomers_are_known_until_all_are_forgotten() -> None:
    memory = memoryview(bytearray(layout.NEWCOMERS * layout.NEWCOMER_BYTES))
    newcomers = Newcomers(memory)
    for unique in (2, 4, 1 << 40):
        receive(newcomers, header(operation.MKDIR, unique))
    for resent in (6, 8):
        receive(newcomers, header(operation.MKDIR, resent | wire.RESENT))
    for opcode in (wire.FORGET, wire.BATCH_FORGET, wire.INTERRUPT):
        receive(newcomers, header(opcode, 11))
    assert newcomers.uniques == {2, 4, 1 << 40}
    assert Newcomers(memory).uniques == newcomers.uniques, "a successor knows them"
    newcomers.clear()
    assert newcomers.uniques == Newcomers(memory).uniques == frozenset()


def test_newcomers_are_no_more_than_there_is_room_for() -> None:
    newcomers = Newcomers()
    for number in range(1, layout.NEWCOMERS + 10):
        receive(newcomers, header(operation.MKDIR, 2 * number))
    assert len(newcomers.uniques) == layout.NEWCOMERS
    assert {2, 4, 2 * (layout.NEWCOMERS + 9)} <= newcomers.uniques
    receive(newcomers, header(operation.MKDIR, 2 | wire.RESENT))
    assert 2 * (layout.NEWCOMERS - 1) in newcomers.uniques


def test_nothing_read_is_no_newcomer() -> None:
    newcomers = Newcomers()
    assert newcomers.receive(lambda place: None) is None
    assert newcomers.uniques == frozenset()


def test_newcomers_lie_beside_the_head_and_before_the_journal(tmp_path: Path) -> None:
    assert layout.NEWCOMERS_AT >= layout.HEAD_WORDS * layout.WORD
    assert layout.NEWCOMERS_AT + layout.NEWCOMERS * layout.NEWCOMER_BYTES <= 4096 <= layout.JOURNAL
    state = begin_state(str(tmp_path), NoHolder())
    for unique in range(2, 400, 2):
        receive(state.newcomers, header(operation.MKDIR, unique))
    assert state.state_id
    state.close()
    successor = resume_state(str(tmp_path), NoHolder(), {})
    assert successor.newcomers.uniques == state.newcomers.uniques
    successor.close()
