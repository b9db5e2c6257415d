"""How soon the next process may start, and when that is called abnormal."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.zygote_deaths import FREE_DEATHS, HOPELESS_AFTER, PAUSES_S, Deaths


def test_whoever_has_done_something_is_succeeded_at_once_however_often_it_dies() -> None:
    deaths = Deaths()
    assert [deaths.died(now / 10, "signal 9", fruitful=True) for now in range(200)] == [0.0] * 200
    assert not deaths.is_hopeless


def test_deaths_in_vain_take_longer_and_longer_to_follow() -> None:
    deaths = Deaths()
    pauses = [deaths.died(float(now), "exit code 1", fruitful=False) for now in range(12)]
    assert pauses[:FREE_DEATHS] == [0.0] * FREE_DEATHS
    assert pauses[FREE_DEATHS : FREE_DEATHS + len(PAUSES_S) - 1] == list(PAUSES_S[1:])
    assert set(pauses[FREE_DEATHS + len(PAUSES_S) - 1 :]) == {PAUSES_S[-1]}


def test_one_that_did_something_takes_the_pauses_back() -> None:
    deaths = Deaths()
    for now in range(6):
        deaths.died(float(now), "exit code 1", fruitful=False)
    assert deaths.died(7.0, "exit code 1", fruitful=True) == 0.0
    assert deaths.died(8.0, "exit code 1", fruitful=False) == 0.0


def test_it_is_hopeless_only_after_many_in_vain() -> None:
    deaths = Deaths()
    for count in range(HOPELESS_AFTER):
        assert not deaths.is_hopeless, count
        deaths.died(float(count), "exit code 1", fruitful=False)
    assert deaths.is_hopeless


def test_a_death_or_two_are_nothing_to_speak_of() -> None:
    deaths = Deaths()
    for now in range(FREE_DEATHS):
        deaths.died(float(now), "signal 9 (SIGKILL)", fruitful=False)
    assert deaths.abnormal(2.0) == ""
    deaths.died(2.5, "signal 11 (SIGSEGV)", fruitful=False)
    assert "signal 11 (SIGSEGV)" in deaths.abnormal(3.0)
    assert deaths.abnormal(3.0 + 61) == "", "told for ever"


def test_who_is_killed_from_outside_is_soon_succeeded_however_often() -> None:
    """Kills every 50 ms leave no time to do anything; once they stop, work goes on, and the connection is not given up."""
    deaths = Deaths()
    pauses = [
        deaths.died(now / 20, "signal 9 (SIGKILL)", fruitful=False, from_outside=True) for now in range(1200)
    ]
    assert max(pauses) <= 0.1
    assert not deaths.is_hopeless
    assert "SIGKILL" in deaths.abnormal(60.0)


def test_kills_from_outside_neither_make_up_for_crashes_nor_add_to_them() -> None:
    deaths = Deaths()
    for now in range(HOPELESS_AFTER - 1):
        deaths.died(float(now), "exit code 1", fruitful=False)
        deaths.died(now + 0.5, "signal 9 (SIGKILL)", fruitful=False, from_outside=True)
    assert not deaths.is_hopeless
    deaths.died(20.0, "exit code 1", fruitful=False)
    assert deaths.is_hopeless


def test_very_many_deaths_are_abnormal_though_work_is_done() -> None:
    deaths = Deaths()
    for now in range(40):
        deaths.died(float(now), "signal 9 (SIGKILL)", fruitful=True)
    assert deaths.abnormal(40.0) != ""


def test_what_is_told_changes_only_with_what_is_the_matter() -> None:
    """Each change is written to the log and to the keeper."""
    deaths = Deaths()
    for now in range(5):
        deaths.died(float(now), "exit code 1", fruitful=False)
    first = deaths.abnormal(5.0)
    deaths.died(5.5, "exit code 1", fruitful=False)
    assert deaths.abnormal(6.0) == first


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.booleans()), max_size=300))
def test_pauses_are_bounded_and_so_is_the_memory(deaths: list[tuple[float, bool]]) -> None:
    kept, now = Deaths(), 0.0
    for after_s, fruitful in deaths:
        now += after_s
        assert kept.died(now, "how", fruitful=fruitful) in PAUSES_S
        kept.abnormal(now)
    assert len(kept._times) <= 64
