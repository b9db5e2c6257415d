"""Components started, told to end, and started anew: real processes, a clock of the test's own."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.component import Component
from e2e.cluster.orders import obey
from e2e.cluster.supervisor import Supervisor

_SLEEPS = Component(name="sleeps", argv=("sleep", "600"))
_SPEAKS = Component(
    name="speaks",
    argv=(sys.executable, "-c", "import os, sys; print(os.environ['WORD']); print('err', file=sys.stderr)"),
    env={"WORD": "a-word"},
)


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    """A clock that stands."""
    return _Clock()


@pytest.fixture
def supervisor(tmp_path: Path, clock: _Clock) -> Iterator[Supervisor]:
    """A supervisor of both; what still runs at the end is ended."""
    made = Supervisor((_SLEEPS, _SPEAKS), tmp_path, clock)
    yield made
    for component in made.status().values():
        if component["pid"] is not None:
            os.kill(component["pid"], signal.SIGKILL)
            os.waitpid(component["pid"], 0)


def _reap(supervisor: Supervisor, name: str) -> None:
    pid, status = os.waitpid(supervisor.status()[name]["pid"], 0)
    supervisor.ended(pid, status)


def test_a_component_writes_to_its_log_and_sees_its_environment(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start("speaks")
    _reap(supervisor, "speaks")
    lines = (tmp_path / "speaks.log").read_text().splitlines()
    assert "start 1" in lines[0]
    assert {"a-word", "err"} <= set(lines)
    assert "ended with 0" in lines[-1]


def test_one_that_is_wanted_is_started_anew_after_growing_pauses(
    supervisor: Supervisor, clock: _Clock
) -> None:
    supervisor.start("sleeps")
    pauses = []
    for _ in range(3):
        assert supervisor.signal("sleeps", signal.SIGKILL, is_wanted=True)
        _reap(supervisor, "sleeps")
        pause = supervisor.start_due()
        assert pause is not None
        assert supervisor.status()["sleeps"]["pid"] is None
        pauses.append(pause)
        clock.now += pause
        assert supervisor.start_due() is None
    assert supervisor.status()["sleeps"]["starts"] == 4
    assert supervisor.status()["sleeps"]["last_exit"] == -signal.SIGKILL
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[2]


def test_one_that_is_told_to_end_stays_ended(supervisor: Supervisor) -> None:
    supervisor.start("sleeps")
    supervisor.signal("sleeps", signal.SIGTERM, is_wanted=False)
    _reap(supervisor, "sleeps")
    assert supervisor.start_due() is None
    assert not supervisor.signal("sleeps", signal.SIGTERM, is_wanted=False)


def test_a_restart_that_was_due_is_called_off(supervisor: Supervisor, clock: _Clock) -> None:
    supervisor.start("sleeps")
    supervisor.signal("sleeps", signal.SIGKILL, is_wanted=True)
    _reap(supervisor, "sleeps")
    supervisor.signal("sleeps", signal.SIGTERM, is_wanted=False)
    clock.now += 1000
    assert supervisor.start_due() is None
    assert supervisor.status()["sleeps"]["pid"] is None


def test_orphans_of_the_node_are_nobody_s_end(supervisor: Supervisor) -> None:
    supervisor.start("sleeps")
    supervisor.ended(999_999_999, 0)
    assert supervisor.status()["sleeps"]["pid"] is not None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'"status"',
        b"{}",
        b'{"order": "dance"}',
        b'{"order": "start"}',
        b'{"order": "start", "component": "no-such"}',
        b'{"order": "start", "component": []}',
        b'{"order": "signal", "component": "sleeps", "signal": "SIGNOT", "wanted": true}',
        b"\xff\xfe\n",
    ],
)
def test_a_wrong_order_is_answered_with_what_is_wrong(supervisor: Supervisor, line: bytes) -> None:
    """Whatever comes in, the first process of a node must not end of it."""
    answer = obey(supervisor, line)
    assert answer.startswith(b'{"error": ')
    assert answer.endswith(b"\n")
