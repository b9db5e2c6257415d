"""What a dead daemon left unanswered, read back from a real kernel."""

import errno
import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from sidecar.takeover.drain import Drained, Unanswered, drain, requeue
from sidecar.takeover.operation import Operation
from sidecar.takeover.wire import RESENT
from sidemount.model.errors import HostFailure, VolumeError
from tests.sidecar.takeover.raw_kernel import LOOKUP, MKDIR, STATFS, RawConnection, with_raw_connection

pytestmark = [pytest.mark.fuse, pytest.mark.root]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "target"
    target.mkdir()
    return target


def make(raw: RawConnection, name: str) -> int:
    """Have a process make a directory."""
    return raw.call(lambda: os.mkdir(raw.target / name))


def test_unanswered_operation_is_found_and_given_to_the_successor(target: Path) -> None:
    def scenario(raw: RawConnection) -> tuple[Drained, Drained, int, int, int]:
        raw.answer_init()
        caller = make(raw, "a")
        request = raw.serve_until(MKDIR)
        first = drain(raw.device)
        requeue(raw.device, first)
        second = drain(raw.device)  # the successor dies as well
        requeue(raw.device, second)
        again = raw.serve_until(MKDIR)
        raw.answer(again.unique, error=errno.EEXIST)
        _, status = os.waitpid(caller, 0)
        raw.callers.remove(caller)
        return first, second, request.unique, again.unique, os.waitstatus_to_exitcode(status)

    first, second, unique, again, code = with_raw_connection(target, scenario)
    assert first == second
    assert first == Drained(requests=1, operations=(Unanswered(Operation(MKDIR, 1, b"a")),))
    assert (again, code) == (unique | RESENT, errno.EEXIST)


def test_request_that_nobody_had_read_is_not_counted_and_not_lost(target: Path) -> None:
    def scenario(raw: RawConnection) -> tuple[Drained, list[bytes]]:
        raw.answer_init()
        make(raw, "a")
        raw.serve_until(MKDIR)
        raw.call(lambda: os.stat(raw.target / "b"))  # lookups that wait in the queue
        raw.call(lambda: os.stat(raw.target / "c"))
        time.sleep(0.2)
        drained = drain(raw.device)
        requeue(raw.device, drained)
        names = []
        for _ in range(3):
            request = raw.read()
            names.append(request.body.rstrip(b"\0")[-1:])
            raw.answer(request.unique, error=errno.ENOENT)
        return drained, names

    drained, names = with_raw_connection(target, scenario)
    assert drained.requests == 1
    assert [unanswered.operation.arguments for unanswered in drained.operations] == [b"a"]
    assert names[0] == b"a", "what was asked before comes first"
    assert sorted(names) == [b"a", b"b", b"c"]


def test_nothing_unanswered_is_nothing(target: Path) -> None:
    def scenario(raw: RawConnection) -> tuple[Drained, bool]:
        raw.answer_init()
        drained = drain(raw.device)
        return drained, bool(fcntl.fcntl(raw.device, fcntl.F_GETFL) & os.O_NONBLOCK)

    drained, is_nonblocking = with_raw_connection(target, scenario)
    assert drained == Drained()
    assert not is_nonblocking, "the next reader would find that out the hard way"


def test_init_that_was_never_answered_is_handed_on(target: Path) -> None:
    def scenario(raw: RawConnection) -> tuple[bytes, Drained, bool]:
        drained = drain(raw.device)
        requeue(raw.device, drained)
        raw.init = drained.init
        raw.answer_init()  # as libfuse does, to whom it is played
        caller = make(raw, "a")
        request = raw.serve_until(MKDIR)
        raw.answer(request.unique, error=errno.EACCES)
        _, status = os.waitpid(caller, 0)
        raw.callers.remove(caller)
        return raw.init, drained, os.waitstatus_to_exitcode(status) == errno.EACCES

    init, drained, is_served = with_raw_connection(target, scenario)
    assert (drained.requests, drained.operations, drained.init) == (1, (), init)
    assert len(init) == 104
    assert is_served


def test_interrupts_are_passed_over(target: Path) -> None:
    def scenario(raw: RawConnection) -> tuple[Drained, int]:
        raw.answer_init()
        caller = make(raw, "a")
        raw.serve_until(MKDIR)
        os.kill(caller, signal.SIGKILL)
        time.sleep(0.1)
        drained = drain(raw.device)
        requeue(raw.device, drained)
        return drained, raw.read().opcode

    drained, opcode = with_raw_connection(target, scenario)
    assert len(drained.operations) == drained.requests
    assert drained.requests <= 1
    assert opcode in (MKDIR, 36) or drained.requests == 0


def test_aborted_connection_is_an_error_with_its_number(target: Path) -> None:
    def scenario(raw: RawConnection) -> tuple[int, str]:
        raw.answer_init()
        assert os.system(f"umount -l {raw.target}") == 0
        with pytest.raises(HostFailure) as caught:
            drain(raw.device)
        return caught.value.errno, caught.value.message

    number, said = with_raw_connection(target, scenario)
    assert number == errno.ENODEV
    assert said == "/dev/fuse: read: No such device"


def test_device_that_is_none_is_an_error(tmp_path: Path) -> None:
    with open("/dev/full", "r+b", buffering=0) as file, pytest.raises(VolumeError):
        drain(file.fileno())


def test_lookup_may_be_done_again(target: Path) -> None:
    def scenario(raw: RawConnection) -> Drained:
        raw.answer_init()
        raw.call(lambda: os.stat(raw.target / "a"))
        raw.serve_until(LOOKUP)
        drained = drain(raw.device)
        requeue(raw.device, drained)
        request = raw.serve_until(LOOKUP)
        raw.answer(request.unique, error=errno.ENOENT)
        return drained

    assert with_raw_connection(target, scenario) == Drained(requests=1)


def test_what_a_dead_process_had_in_its_hands_is_told_from_what_it_never_read(target: Path) -> None:
    """The kernel marks both. Only the former can have killed it; who is refused gets EIO, all others go on."""

    def scenario(raw: RawConnection) -> tuple[list[frozenset[int]], int, list[int], Drained]:
        raw.answer_init()
        callers = [raw.call(lambda: os.statvfs(raw.target)) for _ in range(3)]
        uniques = [raw.serve_until(STATFS).unique for _ in callers]
        judged: list[frozenset[int]] = []

        def spare_all(in_hand: frozenset[int]) -> frozenset[int]:
            judged.append(in_hand)
            return frozenset()

        first = drain(raw.device, spare_all)
        requeue(raw.device, first)
        read = raw.read().unique & ~RESENT  # the next process reads one, and dies

        def refuse_all(in_hand: frozenset[int]) -> frozenset[int]:
            judged.append(in_hand)
            return in_hand

        second = drain(raw.device, refuse_all, is_judged_before=True)
        requeue(raw.device, second)
        for _ in range(2):
            raw.answer(raw.read().unique, error=errno.EACCES)
        codes = [os.waitstatus_to_exitcode(os.waitpid(caller, 0)[1]) for caller in callers]
        raw.callers.clear()
        assert judged[0] == frozenset(uniques)
        return judged, read, codes, second

    judged, read, codes, second = with_raw_connection(target, scenario)
    assert judged[1] == {read}
    assert sorted(codes) == sorted([errno.EIO, errno.EACCES, errno.EACCES])
    assert (second.requests, second.refused) == (2, 1)
