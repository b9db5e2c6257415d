"""Handles that outlive the process."""

import os
from pathlib import Path

import pytest

from sidecar.takeover import layout
from sidecar.takeover.handle_ledger import HandleLedger, Handles, SharedHandleLedger
from sidecar.takeover.journal import Step
from sidecar.takeover.mapping import map_words
from tests.sidecar.takeover.processes import in_small_tmpfs


class Noting(Step):
    """Notes which handle it is told of, and what was in the ledger then."""

    def __init__(self, ledger: "Kept") -> None:
        self.ledger = ledger
        self.told: list[tuple[int, bool]] = []

    def opens(self, handle: int) -> None:
        self.told.append((handle, handle in self.ledger.seen_by_another()))


class Kept:
    """A ledger in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost: list[str] = []
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        if os.fstat(self.file).st_size == 0:
            os.truncate(self.file, layout.LOG)
            map_words(self.file, 0, layout.HEAD_WORDS)[layout.AT_NEXT_HANDLE] = 1
        head = map_words(self.file, 0, layout.HEAD_WORDS)
        self.ledger = SharedHandleLedger(self.file, head, self._lose)
        self.found = self.ledger.load()

    def _lose(self, reason: str) -> None:
        self.ledger.stop()
        self.lost.append(reason)

    def seen_by_another(self) -> Handles:
        other = Kept(self.path)
        os.close(other.file)
        return other.found


STEP = Step()


def test_handles_are_found_again_and_never_given_out_twice(tmp_path: Path) -> None:
    seen: set[int] = set()
    wanted: Handles = {}
    for generation in range(5):
        kept = Kept(tmp_path / "state")
        assert kept.found == wanted
        for number in range(200):
            handle = kept.ledger.opened(number, generation << 32 | number, STEP)
            assert handle not in seen
            assert 0 < handle < 1 << 64
            seen.add(handle)
            wanted[handle] = (number, generation << 32 | number)
        for handle in list(wanted)[::2]:
            kept.ledger.closed(handle)
            del wanted[handle]


def test_slots_are_used_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "state")
    for _ in range(10_000):
        kept.ledger.closed(kept.ledger.opened(1, 2, STEP))
    assert os.stat(tmp_path / "state").st_blocks * 512 < 40_000


def test_step_knows_the_handle_before_anybody_else(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "state")
    step = Noting(kept)
    handle = kept.ledger.opened(1, 2, step)
    assert step.told == [(handle, False)]
    assert handle in kept.seen_by_another()


def test_unknown_handles_are_no_error(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "state")
    handle = kept.ledger.opened(1, 2, STEP)
    for wrong in (0, 1, handle + (1 << 20), 2**64 - 1, handle ^ 1):
        kept.ledger.closed(wrong)
    assert kept.seen_by_another() == {handle: (1, 2)}


@pytest.mark.root
def test_full_filesystem_loses_the_state_and_handles_go_on(tmp_path: Path) -> None:
    def fill() -> tuple[list[str], int]:
        kept = Kept(tmp_path / "state")
        handles = {kept.ledger.opened(1, 2, STEP) for _ in range(40_000)}
        return kept.lost, len(handles)

    lost, handles = in_small_tmpfs(tmp_path, "600k", fill)
    assert len(lost) == 1
    assert "handles cannot grow" in lost[0]
    assert handles == 40_000


def test_without_a_file_handles_are_numbers() -> None:
    ledger = HandleLedger()
    assert [ledger.opened(9, 9, STEP) for _ in range(3)] == [1, 2, 3]
    ledger.closed(2)
