"""What SIGTERM means to a keeper: every combination of what its volumes tell, at every time."""

from itertools import combinations_with_replacement, product

import pytest

from sidemount.host.limits import Limits
from sidemount.host.pod_end import Meaning, Witness, decide

LIMITS = Limits()
# kubelet never leaves less between SIGTERM and SIGKILL, and never more without having ended the daemons first.
KUBELET_LEAST_S = 2.0
NOBODY = Witness()
ALIVE = Witness(is_linked=True, has_answered=True)
SILENT = Witness(is_linked=True)
TOLD = Witness(is_linked=True, has_answered=True, was_told=True)
TOLD_SILENT = Witness(is_linked=True, was_told=True)
CUT_OFF = Witness(has_answered=True)  # its line has broken
COMING = Witness(may_return=True)
ORPHAN = Witness(needs_us=True)
M = Meaning


@pytest.mark.parametrize(
    ("witnesses", "at_once", "after_answers", "settled", "at_last"),
    [
        pytest.param((), M.NO_DAEMON, M.NO_DAEMON, M.NO_DAEMON, M.NO_DAEMON, id="no volumes"),
        pytest.param((NOBODY,), M.NO_DAEMON, M.NO_DAEMON, M.NO_DAEMON, M.NO_DAEMON, id="daemon ended before"),
        pytest.param((CUT_OFF,), M.NO_DAEMON, M.NO_DAEMON, M.NO_DAEMON, M.NO_DAEMON, id="line broken"),
        pytest.param((ORPHAN,), M.NO_DAEMON, M.NO_DAEMON, M.NO_DAEMON, M.NO_DAEMON, id="held by us alone"),
        pytest.param((TOLD,), M.DAEMON_TOLD, M.DAEMON_TOLD, M.DAEMON_TOLD, M.DAEMON_TOLD, id="told"),
        pytest.param((TOLD_SILENT, ALIVE), M.DAEMON_TOLD, M.DAEMON_TOLD, M.DAEMON_TOLD, M.DAEMON_TOLD, id="one told"),
        pytest.param((SILENT,), M.UNKNOWN, M.NO_ANSWER, M.NO_ANSWER, M.NO_ANSWER, id="hung"),
        pytest.param((SILENT, NOBODY), M.UNKNOWN, M.NO_ANSWER, M.NO_ANSWER, M.NO_ANSWER, id="hung and gone"),
        pytest.param((COMING,), M.UNKNOWN, M.NO_ANSWER, M.NO_ANSWER, M.NO_ANSWER, id="not come back yet"),
        pytest.param((ALIVE,), M.UNKNOWN, M.UNKNOWN, M.REPLACED, M.REPLACED, id="alive"),
        pytest.param((ALIVE, SILENT), M.UNKNOWN, M.UNKNOWN, M.REPLACED, M.REPLACED, id="one of two hung"),
        pytest.param((NOBODY, ALIVE), M.UNKNOWN, M.UNKNOWN, M.REPLACED, M.REPLACED, id="one of two gone"),
        pytest.param((ALIVE, COMING), M.UNKNOWN, M.UNKNOWN, M.REPLACED, M.REPLACED, id="one of two not back"),
        pytest.param((ALIVE, ORPHAN), M.UNKNOWN, M.UNKNOWN, M.UNKNOWN, M.REPLACED, id="one of two needs us"),
    ],
)  # fmt: skip
def test_what_the_volumes_tell_is_weighed(
    witnesses: tuple[Witness, ...],
    at_once: Meaning,
    after_answers: Meaning,
    settled: Meaning,
    at_last: Meaning,
) -> None:
    moments = (0.0, LIMITS.answer_s, LIMITS.settle_s, LIMITS.leave_s)
    assert [decide(witnesses, moment, LIMITS) for moment in moments] == [
        at_once,
        after_answers,
        settled,
        at_last,
    ]


EVERY = [
    Witness(is_linked=a, was_told=b, has_answered=c, may_return=d, needs_us=e)
    for a, b, c, d, e in product((False, True), repeat=5)
]


def test_it_is_settled_at_last_whatever_the_volumes_tell() -> None:
    for pair in combinations_with_replacement(EVERY, 2):
        assert decide(pair, LIMITS.leave_s, LIMITS) is not Meaning.UNKNOWN, pair


def test_a_keeper_leaves_only_when_a_kubelet_that_ends_the_pod_would_have_killed_it() -> None:
    """So a daemon whose SIGTERM comes late is still heard, as long as anybody could act on it."""
    assert LIMITS.settle_s > KUBELET_LEAST_S
    for pair in combinations_with_replacement(EVERY, 2):
        assert decide(pair, KUBELET_LEAST_S, LIMITS) is not Meaning.REPLACED, pair


def test_a_pod_whose_daemons_hang_has_time_left_to_be_taken_down() -> None:
    assert LIMITS.answer_s <= KUBELET_LEAST_S / 2


def test_nobody_is_left_to_another_keeper_whose_daemon_was_told_to_end_or_that_is_alone() -> None:
    for pair in combinations_with_replacement(EVERY, 2):
        if decide(pair, LIMITS.leave_s, LIMITS) is Meaning.REPLACED:
            assert not any(witness.was_told for witness in pair), pair
            assert any(witness.is_linked and witness.has_answered for witness in pair), pair


def test_what_more_time_tells_never_takes_an_end_back() -> None:
    for pair in combinations_with_replacement(EVERY, 2):
        earlier, later = (decide(pair, moment, LIMITS) for moment in (LIMITS.answer_s, LIMITS.settle_s))
        assert not earlier.is_end or later.is_end, pair
