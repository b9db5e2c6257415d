"""Who may work on names at the same time, and that nobody waits for ever."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from sidecar.objects.moves import Moves
from tests.sidecar.directory.harness import outcome


def enter(lock: AbstractContextManager[None]) -> None:
    """Take a lock and give it back."""
    with lock:
        pass


def elsewhere(work: Callable[[], object]) -> object:
    """Return what comes of a function in another thread."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(outcome(work)))
    thread.start()
    thread.join(20)
    return found[0]


@pytest.fixture
def moves() -> Moves:
    return Moves(longest_s=0.05)


def test_file_is_one_threads_and_others_are_free(moves: Moves) -> None:
    with moves.of_file(1), moves.of_file(1):
        assert elsewhere(lambda: enter(moves.of_file(1))) == "EBUSY"
        assert elsewhere(lambda: enter(moves.of_file(2))) is None
    assert elsewhere(lambda: enter(moves.of_file(1))) is None


def test_several_files_are_had_at_once_or_none_is(moves: Moves) -> None:
    with moves.of_file(2):
        assert elsewhere(lambda: enter(moves.of_files(1, 2, 65))) == "EBUSY"
        assert elsewhere(lambda: enter(moves.of_file(1))) is None
    assert elsewhere(lambda: enter(moves.of_files(1, 2, 65))) is None


def test_directory_moves_when_nobody_is_at_a_file_and_keeps_all_away(moves: Moves) -> None:
    with moves.of_file(1):
        assert elsewhere(lambda: enter(moves.of_directory())) == "EBUSY"
        assert elsewhere(lambda: enter(moves.of_file(2))) is None  # who gave up keeps nobody away
    with moves.of_directory():
        enter(moves.of_file(1))
        assert elsewhere(lambda: enter(moves.of_file(2))) == "EBUSY"
        assert elsewhere(lambda: enter(moves.of_directory())) == "EBUSY"
    assert elsewhere(lambda: enter(moves.of_directory())) is None


def test_lock_is_given_back_when_its_block_fails(moves: Moves) -> None:
    for lock in (moves.of_file(1), moves.of_directory()):
        with pytest.raises(ValueError, match="no"), lock:
            raise ValueError("no")
    assert elsewhere(lambda: enter(moves.of_directory())) is None
