"""The answer that has a file passed through, on its way to the kernel."""

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from sidecar.detour import Detour

ANSWER = struct.Struct("=IiQQIi")
HANDLE = 5 << 20 | 3
GIVEN = ANSWER.pack(32, 0, 99, HANDLE, 1 << 1, 0)
PASSED = ANSWER.pack(32, 0, 99, HANDLE, 1 << 5 | 1 << 7, 12)


class Stage:
    """A session whose device is a socket, and what is to be called once the answer is there."""

    def __init__(self) -> None:
        self.kernel, self.device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.kernel.setblocking(False)
        self.session = os.dup(self.device.fileno())
        self.due: list[Callable[[], None]] = []
        self.detour = Detour(self.due.append)
        self.detour.attach(self.device.fileno(), self.session)

    def heard(self) -> list[bytes]:
        """Return what the kernel has been told."""
        found = []
        while True:
            try:
                found.append(self.kernel.recv(1 << 16))
            except BlockingIOError:
                return found


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.detour.close()
    stage.kernel.close()
    stage.device.close()
    os.close(stage.session)


def test_one_answer_is_changed_on_its_way(stage: Stage) -> None:
    stage.detour.begin(HANDLE, 12)
    assert stage.detour.writing.locked()
    os.write(stage.session, GIVEN)
    assert stage.heard() == []
    (end,) = stage.due
    end()
    assert stage.heard() == [PASSED]
    assert not stage.detour.writing.locked()
    os.write(stage.session, GIVEN)
    assert stage.heard() == [GIVEN]


def test_whatever_else_is_said_goes_on_as_it_is_in_its_order(stage: Stage) -> None:
    refused = struct.pack("=IiQ", 16, -5, 99)
    stage.detour.begin(HANDLE, 12)
    for said in (refused, GIVEN, b"x" * 500):
        os.write(stage.session, said)
    stage.due.pop()()
    assert stage.heard() == [refused, PASSED, b"x" * 500]


def test_no_answer_at_all_leaves_everything_as_it_was(stage: Stage) -> None:
    stage.detour.begin(HANDLE, 12)
    stage.due.pop()()
    os.write(stage.session, GIVEN)
    assert stage.heard() == [GIVEN]


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER.pack(32, 0, 99, HANDLE + 1, 0, 0),
        ANSWER.pack(32, -5, 99, HANDLE, 0, 0),
        ANSWER.pack(31, 0, 99, HANDLE, 0, 0),
        GIVEN + b"\0",
        GIVEN[:-1],
    ],
)
def test_another_answer_is_not_touched(answer: bytes, stage: Stage) -> None:
    stage.detour.begin(HANDLE, 12)
    os.write(stage.session, answer)
    stage.due.pop()()
    assert stage.heard() == [answer]


@pytest.mark.parametrize(
    ("backing", "flags"),
    [
        pytest.param(12, 1 << 0 | 1 << 5 | 1 << 7, id="passed"),
        pytest.param(0, 1 << 0 | 1 << 1 | 1 << 5, id="quiet"),
    ],
)
def test_what_was_said_of_the_cache_is_kept_where_there_is_one(
    stage: Stage, backing: int, flags: int
) -> None:
    stage.detour.begin(HANDLE, backing)
    os.write(stage.session, ANSWER.pack(32, 0, 99, HANDLE, 1 << 0 | 1 << 1, 0))
    stage.due.pop()()
    assert stage.heard() == [ANSWER.pack(32, 0, 99, HANDLE, flags, backing)]


def test_nothing_is_passed_through_before_there_is_a_device() -> None:
    with (
        contextlib.closing(Detour(lambda call: None)) as detour,
        pytest.raises(RuntimeError, match="nothing can be said"),
    ):
        detour.begin(HANDLE, 12)
    assert not detour.writing.locked()
