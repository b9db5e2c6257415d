"""Which request is it that ends process after process."""

import signal
from pathlib import Path

import pytest

from sidecar.takeover.suspects import CONDEMNED_AT, Suspects, alone_for_s, forget_suspects
from sidecar.zygote_deaths import BLAMELESS, CRASHED, HUNG, suspicion_of

SIGSEGV, SIGKILL = 11, 9


def died(suspects: Suspects, *in_hand: int, suspicion: int = CRASHED, times: int = 1) -> Suspects:
    """Note deaths."""
    for _ in range(times):
        suspects.note_death(frozenset(in_hand), suspicion)
    return suspects


def test_one_death_says_nothing() -> None:
    suspects = died(Suspects(), 1, 2, 3)
    assert not suspects.condemned
    assert not suspects.must_be_alone


def test_the_second_death_has_them_served_one_by_one() -> None:
    assert died(Suspects(), 1, 2, 3, times=2).must_be_alone


def test_nobody_is_condemned_in_company() -> None:
    """However often: one of them is innocent."""
    assert not died(Suspects(), 1, 2, times=100).condemned


@pytest.mark.parametrize(("suspicion", "deaths"), [(CRASHED, 3), (HUNG, 6)])
def test_who_was_alone_at_so_many_deaths_is_condemned(suspicion: int, deaths: int) -> None:
    """A slow store looks like a hang, so it takes more of them; both are fewer than end a connection."""
    suspects = died(Suspects(), 7, suspicion=suspicion, times=deaths - 1)
    assert not suspects.condemned
    assert died(suspects, 7, suspicion=suspicion).condemned == {7}


@pytest.mark.parametrize("hung_after_s", [1, 5, 30, 3600])
def test_who_is_slow_while_served_alone_is_not_taken_for_one_that_hangs(hung_after_s: int) -> None:
    """Nobody else is answered then, which is what a hang looks like; six of them would refuse it."""
    assert 0 < alone_for_s(hung_after_s) < hung_after_s
    assert alone_for_s(hung_after_s) <= 10


def test_what_was_answered_meanwhile_is_innocent() -> None:
    suspects = died(died(Suspects(), 1, times=2), 2, times=1)
    assert not suspects.condemned
    assert not died(suspects, 1).condemned


def test_kills_from_outside_condemn_nobody_and_clear_nobody() -> None:
    """What takes long is in hand at every kill of a series, and is no cause of any."""
    suspects = died(Suspects(), 1, suspicion=BLAMELESS, times=100)
    assert not suspects.condemned
    assert not suspects.must_be_alone
    died(suspects, 1, times=2)
    died(suspects, 1, suspicion=BLAMELESS)
    assert died(suspects, 1).condemned == {1}


def test_suspicion_survives_the_process_and_the_container(tmp_path: Path) -> None:
    for _ in range(CONDEMNED_AT // CRASHED):
        suspects = died(Suspects.load(str(tmp_path)), 1 << 62)
        suspects.save(str(tmp_path))
    assert Suspects.load(str(tmp_path)).condemned == {1 << 62}
    forget_suspects(str(tmp_path))
    assert not Suspects.load(str(tmp_path)).condemned


@pytest.mark.parametrize("junk", [b"", b"1 2\n", b"x y z\n", b"\xff\xfe", b"1 2 3 4\n"])
def test_junk_suspects_nobody(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "suspects").write_bytes(junk)
    assert not Suspects.load(str(tmp_path)).must_be_alone


def test_without_a_directory_nothing_fails(tmp_path: Path) -> None:
    died(Suspects(), 1).save(str(tmp_path / "none"))
    forget_suspects(str(tmp_path / "none"))
    assert not Suspects.load(str(tmp_path / "none")).condemned


@pytest.mark.parametrize(
    ("status", "hung", "out_of_memory", "suspicion"),
    [
        (SIGSEGV, False, False, CRASHED),
        (1 << 8, False, False, CRASHED),
        (SIGKILL, False, True, CRASHED),
        (SIGKILL, False, False, BLAMELESS),
        (SIGKILL, True, False, HUNG),
        (signal.SIGHUP, False, False, BLAMELESS),
        (signal.SIGABRT | 0x80, False, False, CRASHED),
        (signal.SIGBUS, False, True, CRASHED),
    ],
)
def test_how_a_process_ended_speaks_for_or_against_its_work(
    status: int, hung: bool, out_of_memory: bool, suspicion: int
) -> None:
    assert suspicion_of(status, hung=hung, out_of_memory=out_of_memory) == suspicion
