"""Files that are passed through, wherever the daemon is killed: never two kinds of open, no number in use forgotten, none kept for nothing."""

import os
import random
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.directory.passage import LEAST_BYTES
from sidecar.protocol_filesystem import ROOT
from sidecar.takeover import operation
from sidecar.takeover.drain import Unanswered
from sidecar.takeover.operation import Operation
from tests.sidecar.directory.core import Someone, run
from tests.sidecar.takeover.lives import Life, Lives, killed_at_line
from tests.sidecar.takeover.processes import child_that_dies

SOMEONE = Someone(uid=1234, gid=1234)
STRIDE = 7
Ask = Callable[[Life], Coroutine[Any, Any, Any]]

pytestmark = pytest.mark.root


class KernelAndKeeper:
    """What is registered, in a directory that all processes share. Does as the keeper does."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.refuses = False

    @property
    def numbers(self) -> set[int]:
        """What is registered."""
        return {int(name) for name in os.listdir(self._place)}

    def begin(self, held: list[int]) -> None:
        """Forget all else."""
        assert set(held) <= self.numbers, "a number that is in use was forgotten"
        for number in self.numbers - set(held):
            self.unregister(number)

    def register(self, descriptor: int) -> int:
        """Give a number that never was one before."""
        if self.refuses:
            return 0
        number = int.from_bytes(os.urandom(3)) + 1
        (self._place / str(number)).mkdir()
        return number

    def unregister(self, backing: int) -> None:
        """Forget it."""
        (self._place / str(backing)).rmdir()


@pytest.fixture
def keeper(tmp_path: Path) -> KernelAndKeeper:
    place = tmp_path / "registered"
    place.mkdir()
    return KernelAndKeeper(place)


@pytest.fixture
def lives(tmp_path: Path, keeper: KernelAndKeeper) -> Iterator[Lives]:
    lives = Lives(tmp_path, keeper)
    lives.begin()
    (lives.source / "a").write_bytes(bytes(LEAST_BYTES))
    yield lives
    lives.close()


def open_in(life: Life, node: int, flags: int = os.O_RDONLY) -> Any:
    """Open the file, and have the kernel told."""
    return life.do(life.filesystem.open(node, flags, SOMEONE))


def found(life: Life) -> int:
    """Return the file's node."""
    return int(life.do(life.filesystem.lookup(ROOT, b"a")).node)


def asked_again(node: int) -> Unanswered:
    return Unanswered(Operation(*operation.open_file(node, os.O_RDONLY)))


def die_at(lives: Lives, line: int, ask: Ask, *unanswered: Unanswered) -> bool:
    """Have a process live that is killed at a line; False if it has fewer."""

    def work() -> None:
        with lives.life(*unanswered) as life:
            killed_at_line(line, lambda: run(ask(life)))

    code = child_that_dies(work)
    assert code in (-signal.SIGKILL, 0)
    return code != 0


@pytest.mark.parametrize("before", ["closed", "passed", "plain"])
def test_open_is_answered_as_what_is_open_wherever_the_daemon_is_killed(
    lives: Lives, keeper: KernelAndKeeper, before: str
) -> None:
    with lives.life(resume=False) as life:
        node = found(life)
        first = None
        if before != "closed":
            first = open_in(life, node, os.O_DIRECT if before == "plain" else os.O_RDONLY)
    line, lines = random.randrange(STRIDE), 0

    def ask(life: Life) -> Coroutine[Any, Any, Any]:
        return life.filesystem.open(node, os.O_RDONLY, SOMEONE)

    while die_at(lives, line, ask):
        lines += 1
        die_at(lives, random.randrange(150), ask, asked_again(node))
        with lives.life(asked_again(node)) as life:
            keeper.refuses = before == "passed"  # it is not asked again
            opened = open_in(life, node)
            keeper.refuses = False
            if first is not None:
                assert opened.backing == first.backing
            else:
                assert opened.backing
            assert keeper.numbers == ({opened.backing} if opened.backing else set())
            assert len(life.filesystem.files) == (2 if first is not None else 1), "a handle is left over"
            life.do(life.filesystem.release(opened.handle))
            assert keeper.numbers == ({first.backing} if first is not None and first.backing else set())
        line += STRIDE
    assert lines > 3


@pytest.mark.parametrize("others", [0, 1])
def test_a_number_is_kept_as_long_as_it_is_in_use_wherever_a_close_is_killed(
    lives: Lives, keeper: KernelAndKeeper, others: int
) -> None:
    with lives.life(resume=False) as life:
        node = found(life)
    line, lines = random.randrange(STRIDE), 0
    died = True
    while died:
        with lives.life() as life:
            handles = [open_in(life, node) for _ in range(1 + others)]
            assert keeper.numbers == {opened.backing for opened in handles}
        closing = handles.pop()
        died = die_at(lives, line, lambda life, closing=closing: life.filesystem.release(closing.handle))  # type: ignore[misc]  # mypy does not infer a lambda with a default
        with lives.life() as life:
            life.do(life.filesystem.release(closing.handle))
            assert keeper.numbers == {opened.backing for opened in handles}
            if others:
                again = open_in(life, node)
                assert again.backing == handles[0].backing
                handles.append(again)
            for opened in handles:
                life.do(life.filesystem.release(opened.handle))
            assert keeper.numbers == set()
            assert len(life.filesystem.files) == 0
        line += STRIDE
        lines += 1
    assert lines > 2


def test_what_is_open_goes_on_being_passed_through_under_options_that_begin_nothing(
    lives: Lives, keeper: KernelAndKeeper
) -> None:
    with lives.life(resume=False) as life:
        node = found(life)
        first = open_in(life, node)
    with lives.life() as life:
        life.filesystem._passage._may_begin = False
        assert open_in(life, node).backing == first.backing
        direct = open_in(life, node, os.O_DIRECT)
        assert (direct.backing, direct.direct, direct.keep_cache) == (first.backing, True, False)
        for handle in [*life.filesystem.files._open, *life.filesystem.files._inherited]:
            life.do(life.filesystem.release(handle))
        assert keeper.numbers == set()
        assert open_in(life, node).backing == 0


def test_small_files_and_refused_ones_are_opened_as_ever(lives: Lives, keeper: KernelAndKeeper) -> None:
    (lives.source / "b").write_bytes(bytes(LEAST_BYTES - 1))
    with lives.life(resume=False) as life:
        small = life.do(life.filesystem.lookup(ROOT, b"b")).node
        assert open_in(life, small).backing == 0
        keeper.refuses = True
        node = found(life)
        assert open_in(life, node).backing == 0
        keeper.refuses = False
        assert open_in(life, node).backing == 0, "it is open as any other"
        assert keeper.numbers == set()
