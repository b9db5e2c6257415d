"""When a daemon is thought to hang, and when it is only slow, idle, or not watched."""

from sidemount.host.handover import Heartbeat
from sidemount.host.watchdog import Verdict, Watchdog


def watchdog() -> Watchdog:
    """Return a watchdog of a class whose daemons may be silent for 30 s."""
    return Watchdog(0.0, silent_after_s=30)


def run(
    dog: Watchdog, seconds: range, *, beats: bool = True, handled: bool = False, waiting: int | None = 0
) -> list[Verdict]:
    """Return what is thought second by second; `handled` counts up with the beats."""
    verdicts = []
    for now in seconds:
        if beats:
            dog.beat(now, Heartbeat(handled=now if handled else 0, in_progress=waiting or 0))
        verdicts.append(dog.judge(now, waiting))
    return verdicts


def test_an_idle_daemon_is_fine_for_ever() -> None:
    assert set(run(watchdog(), range(10_000))) == {Verdict.FINE}


def test_a_busy_daemon_is_fine_for_ever() -> None:
    assert set(run(watchdog(), range(10_000), handled=True, waiting=9)) == {Verdict.FINE}


def test_a_silent_daemon_hangs_after_its_deadline_and_not_before() -> None:
    verdicts = run(watchdog(), range(60), beats=False)
    assert verdicts[30] is Verdict.FINE
    assert verdicts[31] is Verdict.SILENT


def test_a_daemon_that_beats_but_answers_nothing_is_suspect_at_half_the_deadline() -> None:
    verdicts = run(watchdog(), range(60), waiting=1)
    assert verdicts[15] is Verdict.FINE
    assert verdicts[16] is Verdict.SUSPECT


def test_a_mount_that_answers_clears_the_suspicion() -> None:
    dog = watchdog()
    run(dog, range(20), waiting=1)
    dog.absolve(20)
    assert dog.judge(21, 1) is Verdict.FINE
    assert dog.judge(36, 1) is Verdict.SUSPECT


def test_one_sample_without_a_waiting_request_is_progress() -> None:
    """A client that cannot count its work is judged by the kernel's counter alone."""
    dog = watchdog()
    run(dog, range(14), waiting=3)
    run(dog, range(14, 15), waiting=0)
    assert set(run(dog, range(15, 29), waiting=3)) == {Verdict.FINE}


def test_without_the_kernels_counter_silence_still_counts() -> None:
    dog = watchdog()
    assert set(run(dog, range(100), waiting=None)) == {Verdict.FINE}
    assert run(dog, range(100, 140), beats=False, waiting=None)[-1] is Verdict.SILENT


def test_a_watcher_that_was_away_blames_nobody() -> None:
    dog = watchdog()
    run(dog, range(10), waiting=1)
    dog.pardon(1000)
    assert dog.judge(1001, 1) is Verdict.FINE


def test_idle_is_since_the_last_request_that_was_seen() -> None:
    dog = watchdog()
    run(dog, range(10), handled=True)
    assert dog.idle_s(12) == 3
    run(dog, range(12, 14), waiting=1)
    assert dog.idle_s(14) == 1
