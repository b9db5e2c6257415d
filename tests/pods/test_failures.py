"""The table of what applications see when something fails: rows that no other test here has, and that a row can fail.

All rows run in `make torture`.
"""

import dataclasses
import signal

import pytest

from e2e.failures.rows import REMOUNT, ROWS, TAKEOVER
from e2e.failures.scene import DAEMON, Scene
from e2e.failures.table import Finding, find, show
from tests.pods.stage import Images

_UPGRADES = [row for row in ROWS if row.event == "upgrade of the daemon" and row.injected.startswith("SIG")]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.fuse
def test_an_upgrade_of_the_daemon_is_a_pause(images: Images) -> None:
    """Design §12."""
    finding = find(_UPGRADES[0], images)
    assert finding.verdict == "holds", finding.fault


def _killed_and_expected_unnoticed(scene: Scene) -> str:
    scene.kill(DAEMON, number=signal.SIGKILL)
    scene.wait_restarted(DAEMON)
    return scene.expect_pause()


@pytest.mark.root
@pytest.mark.fuse
def test_a_row_fails_when_applications_see_something_else(images: Images) -> None:
    """A killed daemon without takeover is no pause: who expects one is told what was seen instead."""
    row = dataclasses.replace(_UPGRADES[1], act=_killed_and_expected_unnoticed)
    assert row.delivery == REMOUNT
    finding = find(row, images)
    assert finding.verdict == "FAILED"
    assert "ENOTCONN" in finding.fault


def test_the_table_has_a_line_for_every_row() -> None:
    findings = [
        Finding(row=row, seen="all of it", fault="no" if not number else "")
        for number, row in enumerate(ROWS)
    ]
    lines = show(findings).splitlines()
    assert lines[0].split() == ["event", "delivery", "injected", "expected", "seen", "verdict"]
    assert len(lines) == len(ROWS) + 1
    assert lines[1].endswith("FAILED")
    assert lines[2].endswith("holds")


@pytest.mark.parametrize("delivery", [TAKEOVER, REMOUNT])
def test_every_event_of_the_design_has_rows_of_every_delivery(delivery: str) -> None:
    """Design §12."""
    events = " ".join(row.event for row in ROWS if row.delivery == delivery)
    for word in ("killed", "memory", "hung", "both at once", "upgrade", "deleted"):
        assert word in events, (delivery, word)
    assert "keeper killed" in events
    assert len({row.name for row in ROWS}) == len(ROWS)
