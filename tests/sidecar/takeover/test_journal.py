"""Operations that may not be done twice: which of them a successor recalls."""

import os
import random
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.takeover import layout, operation
from sidecar.takeover.drain import Unanswered
from sidecar.takeover.errand import Errands
from sidecar.takeover.journal import Journal
from sidecar.takeover.operation import CREATE, MKDIR, OPEN, OPENDIR, SETXATTR, UNLINK, Operation
from sidecar.takeover.shared_journal import SharedJournal, SharedStep
from tests.sidecar.takeover.lives import killed_at_line
from tests.sidecar.takeover.processes import child_that_dies, die

STRIDE = 3  # lines between two deaths; others each time
IDENTITY = 12345 | 8 << 64 | 1_700_000_000_123_456_789 << 68 | 2049 << 132


class Life:
    """One process's journal, and what it has to do between requests."""

    def __init__(self, path: Path) -> None:
        self.lost: list[str] = []
        self.untold: list[int] = []
        self.errands: Errands = deque()
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.truncate(file, layout.LOG)
        self.journal = SharedJournal(file, self.errands, self._lose)
        self.journal.untold = self.untold.append
        os.close(file)

    def _lose(self, reason: str) -> None:
        self.lost.append(reason)
        self.journal.stop()

    def read_on(self, *, idle: bool = False) -> None:
        """Do what is done before the next request is read."""
        for _ in range(len(self.errands)):
            errand = self.errands.popleft()
            if errand(idle):
                self.errands.append(errand)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def asked(*operations: tuple[int, int, bytes]) -> list[Unanswered]:
    return [Unanswered(Operation(*what)) for what in operations]


MAKE = (MKDIR, 7, b"name")


def test_operation_that_was_done_and_not_answered_is_recalled_with_its_result(path: Path) -> None:
    with Life(path).journal.step(*MAKE) as step:
        assert not step.is_recalled
        step.intend(since_ns=99, first=IDENTITY, second=IDENTITY + 1)
        step.done(node=1234)
    life = Life(path)
    life.journal.resume(asked(MAKE))
    with life.journal.step(*MAKE) as step:
        assert (step.is_recalled, step.is_done, step.node) == (True, True, 1234)
        assert (step.since_ns, step.first, step.second) == (99, IDENTITY, IDENTITY + 1)
    with life.journal.step(*MAKE) as step:
        assert not step.is_recalled, "it is recalled once"


def test_operation_that_was_begun_is_recalled_with_what_was_before(path: Path) -> None:
    def begin() -> None:
        with Life(path).journal.step(*MAKE) as step:
            step.intend(since_ns=5)
            die()

    assert child_that_dies(begin) == -9
    life = Life(path)
    life.journal.resume(asked(MAKE))
    with life.journal.step(*MAKE) as step:
        assert (step.is_recalled, step.is_done, step.since_ns, step.node) == (True, False, 5, 0)
        step.done(node=9)
    third = Life(path)
    third.journal.resume(asked(MAKE))
    with third.journal.step(*MAKE) as step:
        assert (step.is_done, step.node) == (True, 9), "a successor that dies as well hands it on"


def test_answered_operation_is_not_recalled_for_an_equal_one(path: Path) -> None:
    """An exchange of the same two names, twice: the second was read and not begun when the daemon died."""
    exchange = operation.rename(1, b"a", 1, b"b", 2)
    life = Life(path)
    with life.journal.step(*exchange) as step:
        step.intend(first=1, second=2)
        step.done()
    life.read_on()
    successor = Life(path)
    successor.journal.resume(asked(exchange))
    with successor.journal.step(*exchange) as step:
        assert not step.is_recalled


def test_failed_operation_is_as_if_it_had_never_begun(path: Path) -> None:
    life = Life(path)

    def fail() -> None:
        with life.journal.step(*MAKE) as step:
            step.intend()
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    successor = Life(path)
    successor.journal.resume(asked(MAKE))
    with successor.journal.step(*MAKE) as step:
        assert not step.is_recalled


def test_step_without_an_intention_notes_nothing(path: Path) -> None:
    life = Life(path)
    with life.journal.step(*MAKE) as step:
        step.done(5)
    successor = Life(path)
    successor.journal.resume(asked(MAKE))
    assert not successor.journal.is_recalled(*MAKE)


def test_operation_that_is_not_asked_for_has_been_answered(path: Path) -> None:
    with Life(path).journal.step(*MAKE) as step:
        step.intend()
        step.done(1)
    life = Life(path)
    life.journal.resume(asked((MKDIR, 7, b"other"), (MKDIR, 8, b"name"), (UNLINK, 7, b"name")))
    with life.journal.step(*MAKE) as step:
        assert not step.is_recalled
    third = Life(path)
    third.journal.resume(asked(MAKE))
    with third.journal.step(*MAKE) as step:
        assert not step.is_recalled, "and stays so"


def test_recalled_is_given_up_when_another_operation_shows_that_its_caller_is_gone(path: Path) -> None:
    """The kernel drops a request that nobody has read yet when its caller is killed."""
    with Life(path).journal.step(*MAKE) as step:
        step.intend()
        step.done(1)
    life = Life(path)
    life.journal.resume(asked(MAKE))
    with life.journal.step(OPEN, 7, b"\0\0\0\0"):
        assert life.journal.is_recalled(*MAKE), "an open says nothing about the directory's lock"
    with life.journal.step(UNLINK, 8, b"name"):
        assert life.journal.is_recalled(*MAKE), "nor does another directory"
    with life.journal.step(UNLINK, 7, b"else"):
        assert not life.journal.is_recalled(*MAKE)
    with life.journal.step(*MAKE) as step:
        assert not step.is_recalled


def test_recalled_is_given_up_when_nothing_is_left_to_read(path: Path) -> None:
    with Life(path).journal.step(*MAKE) as step:
        step.intend()
        step.done(1)
    life = Life(path)
    life.journal.resume(asked(MAKE))
    for _ in range(3):
        life.read_on()
        assert life.journal.is_recalled(*MAKE)
    life.read_on(idle=True)
    assert not life.journal.is_recalled(*MAKE)
    assert not life.errands


def test_recalled_is_kept_while_a_thread_may_be_about_to_recall_it(path: Path) -> None:
    """A remote store that hangs: the request was read long ago, and its thread has not come to it yet."""
    with Life(path).journal.step(*MAKE) as step:
        step.intend()
        step.done(1)
    life = Life(path)
    life.journal.resume(asked(MAKE))
    life.journal.entered()
    life.journal.entered()
    life.journal.left()
    for _ in range(3):
        life.read_on(idle=True)
    assert life.journal.is_recalled(*MAKE)
    assert not life.errands, "nothing is to be done until the thread is back"
    life.journal.left()
    life.read_on()
    assert life.journal.is_recalled(*MAKE)
    life.read_on(idle=True)
    assert not life.journal.is_recalled(*MAKE)


@pytest.mark.parametrize("kind", [OPEN, OPENDIR])
def test_handles_that_nobody_was_told_of_are_named(path: Path, kind: int) -> None:
    life = Life(path)
    for number in range(4):
        with life.journal.step(kind, number, b"f") as step:
            step.intend()
            step.opens(100 + number)
            if number != 3:
                step.done()
            else:
                step._finish = lambda step: None  # type: ignore[attr-defined]  # killed here
        if number == 0:
            life.read_on()  # answered
    life = Life(path)
    life.journal.resume(asked((kind, 1, b"f"), (kind, 3, b"f")))
    assert sorted(life.untold) == [101, 103], "2 is not asked for again, so it was answered"
    with life.journal.step(kind, 1, b"f") as step:
        assert not step.is_recalled, "it is opened anew"


def test_two_equal_opens_of_which_one_was_answered_keep_both_handles(path: Path) -> None:
    life = Life(path)
    for handle in (1, 2):
        with life.journal.step(OPEN, 5, b"f") as step:
            step.intend()
            step.opens(handle)
            step.done()
    life = Life(path)
    life.journal.resume(asked((OPEN, 5, b"f")))
    assert life.untold == []


def open_one(life: Life, handle: int) -> None:
    """Open a file, and answer."""
    with life.journal.step(OPEN, 5, b"f") as step:
        assert not step.is_recalled
        step.intend()
        step.opens(handle)
        step.done()


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("others", [1, 3, 100])
@pytest.mark.parametrize("is_answered", [True, False])
def test_equal_opens_that_were_given_back_tell_whether_one_was_answered(
    path: Path, *, others: int, is_new: bool, is_answered: bool
) -> None:
    """The kernel marks what a successor has not come to, too. In doubt a handle is kept."""
    opens = asked((OPEN, 5, b"f")) * others
    life = Life(path)
    life.journal.resume(asked((OPEN, 5, b"f")) + ([] if is_new else opens), opens if is_new else [])
    open_one(life, 1)
    life = Life(path)
    life.journal.resume(opens if is_answered else opens + asked((OPEN, 5, b"f")))
    assert life.untold == ([] if is_answered or others == 100 else [1])
    assert life.lost == []


def test_answered_open_stays_wherever_a_successor_dies_that_resumes(path: Path) -> None:
    life = Life(path)
    life.journal.resume(asked((OPEN, 5, b"f"), (OPEN, 5, b"f")))
    open_one(life, 1)
    before = path.read_bytes()[: layout.NODE_IDS]
    line, code = random.randrange(STRIDE), -9
    while code == -9:
        with path.open("r+b") as file:
            file.write(before)

        def succeed(line: int = line) -> None:
            life = Life(path)
            killed_at_line(line, lambda: life.journal.resume(asked((OPEN, 5, b"f"))))
            assert life.untold == []

        code = child_that_dies(succeed)
        last = Life(path)
        last.journal.resume(asked((OPEN, 5, b"f")))
        assert last.untold == [], f"killed at line {line}"
        line += STRIDE
    assert code == 0
    assert line > 20


@pytest.mark.parametrize("is_answered", [True, False])
def test_open_in_a_thread_is_answered_as_soon_as_it_may_have_been(path: Path, *, is_answered: bool) -> None:
    """A remote store: an equal open was read, and no thread had come to it."""
    life = Life(path)
    life.journal.in_threads = True
    open_one(life, 1)
    if is_answered:
        life.journal.answer(life.journal.take_finished())
    life = Life(path)
    life.journal.resume(asked((OPEN, 5, b"f")))
    assert life.untold == ([] if is_answered else [1])


def test_opens_that_were_given_back_are_over_when_nothing_is_left_to_read(path: Path) -> None:
    life = Life(path)
    life.journal.resume(asked(*[(OPEN, number, b"f") for number in range(200)], (OPENDIR, 7, b"")))
    with life.journal.step(*MAKE):
        pass
    life.read_on(idle=True)
    for number in range(layout.STEPS):
        with life.journal.step(MKDIR, number, b"n") as step:
            step.intend()
            step.done(1)
    assert life.lost == [], "every place is free again"


def test_handle_of_a_recalled_create_whose_caller_is_gone_is_named(path: Path) -> None:
    with Life(path).journal.step(CREATE, 5, b"f") as step:
        step.intend()
        step.opens(77)
        step.done(9)
    life = Life(path)
    life.journal.resume(asked((CREATE, 5, b"f")))
    assert life.untold == []
    life.read_on(idle=True)
    assert life.untold == [77]


@pytest.mark.parametrize("must_not_exist", [True, False])
def test_attribute_is_recalled_only_where_it_must_not_exist(path: Path, must_not_exist: bool) -> None:
    what = Operation(SETXATTR, 5, b"user.a")
    with Life(path).journal.step(*what) as step:
        step.intend()
        step.done()
    life = Life(path)
    life.journal.resume([Unanswered(what, must_not_exist)])
    assert life.journal.is_recalled(*what) is must_not_exist
    with life.journal.step(*what) as step:
        assert step.is_recalled is must_not_exist
    assert not life.journal.is_recalled(*what)


def test_long_arguments_are_told_apart(path: Path) -> None:
    long = [operation.rename(1, b"a" * 500, 2, b"b" * number, 0) for number in (599, 600, 601)]
    assert len(long[0].arguments) > layout.STEP_BYTES
    life = Life(path)
    for what in long[:2]:
        with life.journal.step(*what) as step:
            step.intend()
            step.done()
    life = Life(path)
    life.journal.resume([Unanswered(what) for what in long])
    assert [life.journal.is_recalled(*what) for what in long] == [True, True, False]


def test_step_belongs_to_its_thread_until_the_serving_thread_has_it_back(path: Path) -> None:
    """A remote store: what a thread has finished is answered only later, while other requests are read."""
    life = Life(path)
    life.journal.in_threads = True
    with life.journal.step(*MAKE) as step:
        step.intend()
        step.done(1)
    life.read_on()
    successor = Life(path)
    successor.journal.resume(asked(MAKE))
    assert successor.journal.is_recalled(*MAKE)
    life.journal.answer(life.journal.take_finished())
    assert life.journal.take_finished() == []
    life.read_on()
    again = Life(path)
    again.journal.resume(asked(MAKE))
    assert not again.journal.is_recalled(*MAKE)


def test_more_operations_at_once_than_there_are_places_lose_the_state_and_go_on(path: Path) -> None:
    life = Life(path)
    for number in range(layout.STEPS + 10):
        with life.journal.step(MKDIR, number, b"n") as step:
            step.intend()
            step.done(1)
    assert len(life.lost) == 1
    assert "at once" in life.lost[0]


def test_places_are_used_again_for_ever(path: Path) -> None:
    life = Life(path)
    for number in range(10_000):
        with life.journal.step(MKDIR, number, b"n") as step:
            step.intend()
            step.done(1)
        life.read_on()
    assert life.lost == []


def test_journal_without_a_file_recalls_nothing() -> None:
    journal = Journal()
    journal.resume(asked(MAKE))
    assert not journal.is_kept
    assert not journal.is_recalled(*MAKE)
    with journal.step(*MAKE) as step:
        step.intend(first=1)
        step.opens(5)
        step.done(5)
        assert (step.is_recalled, step.is_done, step.node, step.handle) == (False, False, 0, 0)
    assert journal.take_finished() == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["done", "begun", "answered", "failed"]), st.booleans()),
        max_size=20,
    )
)
def test_exactly_what_was_begun_and_is_asked_again_is_recalled(
    tmp_path_factory: pytest.TempPathFactory, fates: list[tuple[str, bool]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "state"
    life = Life(path)
    for number, (fate, _) in enumerate(fates):
        step = life.journal.step(MKDIR, number, b"n")
        assert isinstance(step, SharedStep)
        step.intend(since_ns=number)
        if fate in ("done", "answered"):
            step.done(number + 100)
        if fate == "answered":
            step.clear()
        if fate == "failed":
            step.__exit__(OSError, OSError(), None)
    life = Life(path)
    # What was answered or has failed cannot be asked again; an equal operation that is, is another one.
    life.journal.resume(
        asked(*((MKDIR, number, b"n") for number, (_, is_asked) in enumerate(fates) if is_asked))
    )
    for number, (fate, is_asked) in enumerate(fates):
        with life.journal.step(MKDIR, number, b"n") as step:
            assert step.is_recalled == (is_asked and fate in ("done", "begun"))
            if step.is_recalled:
                assert step.since_ns == number
                assert step.is_done == (fate == "done")
