"""The session machine: every phase takes every event, and what must never happen does not."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.host.limits import Limits
from sidemount.host.session import Action, Event, Phase, Session, begin, step

P, E, A = Phase, Event, Action

# phase, event → phase, actions; of a class that gets a descriptor and cannot be taken over. What is not here changes nothing.
TABLE: dict[tuple[Phase, Event], tuple[Phase, tuple[Action, ...]]] = {
    (P.MOUNTING, E.MOUNTED): (P.WAITING, ()),
    (P.MOUNTING, E.MOUNT_FAILED): (P.MOUNTING, ()),
    (P.MOUNTING, E.DEADLINE): (P.MOUNTING, (A.MAKE_CONNECTION,)),
    (P.MOUNTING, E.CONNECTED): (P.MOUNTING, (A.REFUSE_BUSY,)),
    (P.MOUNTING, E.HANDED_BACK): (P.MOUNTING, (A.REFUSE_STALE,)),
    (P.MOUNTING, E.TERMINATE): (P.DETACHED, (A.DETACH, A.ABORT, A.FINISH)),
    (P.ADOPTING, E.CONNECTED): (P.ADOPTING, (A.REFUSE_BUSY, A.INSPECT_FOUND)),
    (P.ADOPTING, E.HANDED_BACK): (P.ATTACHING, (A.ACCEPT, A.ATTACH)),
    (P.ADOPTING, E.DEAD): (P.MOUNTING, (A.MAKE_CONNECTION,)),
    (P.ADOPTING, E.DEADLINE): (P.MOUNTING, (A.ABORT, A.MAKE_CONNECTION)),
    (P.ADOPTING, E.TERMINATE): (P.FLUSHING, (A.DETACH, A.SYNC)),
    (P.WAITING, E.CONNECTED): (P.STARTING, (A.SERVE,)),
    (P.WAITING, E.HANDED_BACK): (P.WAITING, (A.REFUSE_STALE,)),
    (P.WAITING, E.LOST): (P.MOUNTING, (A.ABORT, A.MAKE_CONNECTION)),
    (P.WAITING, E.TERMINATE): (P.DETACHED, (A.DETACH, A.ABORT, A.FINISH)),
    (P.STARTING, E.READY): (P.ATTACHING, (A.ATTACH,)),
    (P.STARTING, E.STOPPING): (P.STARTING, (A.STOP_DAEMON,)),
    (P.ATTACHING, E.ATTACHED): (P.SERVING, ()),
    (P.ATTACHING, E.ATTACH_FAILED): (P.ATTACHING, ()),
    (P.ATTACHING, E.DEADLINE): (P.ATTACHING, (A.ATTACH,)),
    (P.ATTACHING, E.STOPPING): (P.ATTACHING, (A.WATCH_QUIET,)),
    (P.SERVING, E.STOPPING): (P.SERVING, (A.WATCH_QUIET,)),
    (P.SERVING, E.ATTACH_FAILED): (P.ATTACHING, ()),
    (P.ABORTED, E.GONE): (P.MOUNTING, (A.DROP_DAEMON, A.ABORT, A.MAKE_CONNECTION)),
    (P.ABORTED, E.STOPPING): (P.ABORTED, (A.STOP_DAEMON,)),
    (P.ABORTED, E.CONNECTED): (P.ABORTED, (A.REFUSE_BUSY,)),
    (P.ABORTED, E.HANDED_BACK): (P.ABORTED, (A.REFUSE_STALE,)),
    (P.ABORTED, E.TERMINATE): (P.FLUSHING, (A.DETACH, A.STOP_DAEMON)),
    (P.FLUSHING, E.CONNECTED): (P.FLUSHING, (A.REFUSE_STOPPING,)),
    (P.FLUSHING, E.HANDED_BACK): (P.FLUSHING, (A.ACCEPT, A.STOP_DAEMON)),
    (P.FLUSHING, E.SYNCED): (P.FLUSHING, (A.STOP_DAEMON,)),
    (P.DETACHED, E.CONNECTED): (P.DETACHED, (A.REFUSE_STOPPING,)),
    (P.DETACHED, E.HANDED_BACK): (P.DETACHED, (A.REFUSE_STOPPING,)),
}
_REPLACE = (A.KILL_DAEMON, A.DROP_DAEMON, A.ABORT, A.MAKE_CONNECTION)
for _phase in (P.STARTING, P.ATTACHING, P.SERVING):
    TABLE |= {
        (_phase, E.CONNECTED): (_phase, (A.REFUSE_BUSY,)),
        (_phase, E.HANDED_BACK): (_phase, (A.ACCEPT,)),
        (_phase, E.GONE): (P.MOUNTING, (A.DROP_DAEMON, A.ABORT, A.MAKE_CONNECTION)),
        (_phase, E.HUNG): (P.MOUNTING, _REPLACE),
        (_phase, E.UNKILLABLE): (P.MOUNTING, _REPLACE),
        (_phase, E.QUIET): (_phase, (A.SYNC,)),
        (_phase, E.SYNCED): (_phase, (A.STOP_DAEMON,)),
        (_phase, E.LOST): (P.ABORTED, (A.ABORT,)),
        (_phase, E.TERMINATE): (P.FLUSHING, (A.DETACH, A.SYNC)),
    }
TABLE |= {
    (P.STARTING, E.DEADLINE): (P.MOUNTING, _REPLACE),
    (P.ABORTED, E.HUNG): (P.MOUNTING, _REPLACE),
    (P.ABORTED, E.DEADLINE): (P.MOUNTING, _REPLACE),
}
for _event in (E.GONE, E.DEAD, E.DEADLINE):
    TABLE[P.FLUSHING, _event] = (P.DETACHED, (A.STOP_DAEMON, A.DROP_DAEMON, A.ABORT, A.FINISH))


@pytest.mark.parametrize(
    ("phase", "event"), [pytest.param(p, e, id=f"{p.value}-{e.value}") for p, e in product(Phase, Event)]
)
def test_every_phase_answers_every_event_as_the_table_says(phase: Phase, event: Event) -> None:
    session = Session(phase=phase, generation=3)
    after, actions = step(session, event)
    assert (after.phase, actions) == TABLE.get((phase, event), (phase, ()))


SERVED = Session(phase=P.SERVING, takeover=True, able=True, held=True, generation=4)


@pytest.mark.parametrize("phase", [P.STARTING, P.ATTACHING, P.SERVING])
def test_the_connection_of_a_class_with_takeover_is_held_when_its_daemon_dies(phase: Phase) -> None:
    after, actions = step(replace(SERVED, phase=phase), E.GONE)
    assert (after.phase, after.held, actions) == (P.WAITING, True, (A.DROP_DAEMON,))


def test_a_held_connection_is_continued_by_a_daemon_that_can() -> None:
    waiting, _ = step(SERVED, E.GONE)
    after, actions = step(waiting, E.CONNECTED, able=True)
    assert (after.phase, after.held, after.generation, actions) == (P.STARTING, True, 5, (A.SERVE,))


def test_a_held_connection_is_never_given_to_a_daemon_that_cannot_take_over() -> None:
    waiting, _ = step(SERVED, E.GONE)
    after, actions = step(waiting, E.CONNECTED, able=False)
    assert (after.phase, after.held) == (P.MOUNTING, False)
    assert actions == (A.REFUSE_BUSY, A.ABORT, A.MAKE_CONNECTION)


def test_a_daemon_that_can_take_over_is_not_believed_if_its_class_cannot() -> None:
    after, _ = step(Session(phase=P.WAITING), E.CONNECTED, able=True)
    assert not after.able


def test_a_hung_daemon_is_succeeded_only_after_its_end_is_seen() -> None:
    hung, actions = step(SERVED, E.HUNG)
    assert (hung.phase, actions) == (P.SERVING, (A.KILL_DAEMON,))
    assert step(hung, E.GONE)[0].phase is P.WAITING
    assert step(hung, E.UNKILLABLE) == (
        replace(SERVED, phase=P.MOUNTING, held=False, able=False),
        _REPLACE,
    )


@pytest.mark.parametrize("phase", [P.STARTING, P.ATTACHING, P.SERVING])
def test_a_daemon_that_can_be_succeeded_no_more_says_so_before_it_dies(phase: Phase) -> None:
    """Its state could not grow: the volume goes on, and its death ends in a new mount."""
    told, actions = step(replace(SERVED, phase=phase), E.CONDITION, able=False)
    assert (told.phase, told.held, told.able, actions) == (phase, True, False, ())
    assert step(told, E.GONE)[0].phase is P.MOUNTING
    again, _ = step(told, E.CONDITION, able=True)
    assert step(again, E.GONE)[0].phase is P.WAITING


def test_a_condition_is_not_believed_of_a_class_without_takeover() -> None:
    told, _ = step(Session(phase=P.SERVING, held=True), E.CONDITION, able=True)
    assert not told.able


@pytest.mark.parametrize("phase", [P.MOUNTING, P.ADOPTING, P.WAITING, P.ABORTED, P.FLUSHING, P.DETACHED])
def test_a_condition_of_nobody_changes_nothing(phase: Phase) -> None:
    session = replace(SERVED, phase=phase)
    assert step(session, E.CONDITION, able=False) == (session, ())


def test_a_client_that_mounts_by_itself_is_shown_when_its_mount_appears() -> None:
    session, actions = begin(found=False, self_mounting=True)
    assert (session.phase, actions) == (P.MOUNTING, (A.MAKE_CONNECTION,))
    waiting, _ = step(session, E.MOUNTED)
    shown, actions = step(waiting, E.READY)
    assert (shown.phase, actions) == (P.ATTACHING, (A.ATTACH,))
    serving, _ = step(shown, E.ATTACHED)
    lost, actions = step(serving, E.LOST)
    assert lost.phase is P.MOUNTING
    assert actions == (A.STOP_DAEMON, A.DROP_DAEMON, A.ABORT, A.MAKE_CONNECTION)


def test_an_answer_before_anyone_was_asked_shows_nothing() -> None:
    waiting = Session(phase=P.WAITING)
    assert step(waiting, E.READY) == (waiting, ())


def test_a_restarted_keeper_adopts_what_it_finds() -> None:
    session, actions = begin(found=True, takeover=True)
    assert (session.phase, actions) == (P.ADOPTING, (A.INSPECT_FOUND,))
    adopted, _ = step(session, E.HANDED_BACK, able=True)
    assert adopted.held
    assert adopted.able


def test_failures_are_counted_until_the_volume_is_live() -> None:
    session = Session(phase=P.ATTACHING)
    for count in (1, 2, 3):
        session, _ = step(session, E.ATTACH_FAILED)
        assert session.failures == count
    assert step(session, E.ATTACHED)[0].failures == 0


def test_waits_between_failures_grow_to_a_bound() -> None:
    limits = Limits()
    waits = [limits.retry_s(failures) for failures in range(1, 400)]
    assert waits[0] == limits.retry_first_s
    assert waits == sorted(waits)
    assert waits[-1] == limits.retry_most_s


@pytest.mark.parametrize("phase", [P.MOUNTING, P.ADOPTING, P.STARTING, P.ATTACHING, P.ABORTED, P.FLUSHING])
def test_phases_that_depend_on_others_have_a_deadline(phase: Phase) -> None:
    deadline_s = Limits().deadline_s(Session(phase=phase))
    assert deadline_s is not None
    assert deadline_s > 0


@pytest.mark.parametrize("phase", [P.WAITING, P.SERVING, P.DETACHED])
def test_phases_that_may_last_have_none(phase: Phase) -> None:
    assert Limits().deadline_s(Session(phase=phase, failures=3)) is None


EVENTS = st.lists(st.tuples(st.sampled_from(list(Event)), st.booleans()), max_size=40)


@given(st.booleans(), st.booleans(), st.booleans(), EVENTS)
def test_whatever_happens_in_whatever_order(
    found: bool, self_mounting: bool, takeover: bool, events: list[tuple[Event, bool]]
) -> None:
    session, actions = begin(found=found, self_mounting=self_mounting, takeover=takeover)
    is_told_to_end = False
    finished = 0
    for event, able in events:
        before = session
        session, actions = step(session, event, able=able)
        is_told_to_end = is_told_to_end or event is E.TERMINATE
        finished += actions.count(A.FINISH)
        if A.SERVE in actions and before.held:
            assert able, "a served connection went to a daemon that cannot continue it"
            assert takeover, "a class without takeover continued a connection"
        if A.MAKE_CONNECTION in actions:
            assert session.phase is P.MOUNTING
        if is_told_to_end:
            assert session.phase in (P.FLUSHING, P.DETACHED)
            assert not {A.SERVE, A.ATTACH, A.MAKE_CONNECTION} & set(actions), (
                "something is made after the end"
            )
        assert session.generation >= before.generation
        assert finished <= 1
    after, _ = step(session, E.TERMINATE)
    over, _ = step(after, E.DEADLINE)
    assert over.phase is P.DETACHED, "an end that is not reached by waiting"
