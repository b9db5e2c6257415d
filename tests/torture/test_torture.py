"""The torture in its short form: a few seconds of each kind; `make torture` has the long one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.fuse, pytest.mark.root]


def torture(*arguments: str) -> list[dict[str, Any]]:
    """Run the torture and return its outcomes; its exit code must be what they say."""
    done = subprocess.run(
        [sys.executable, "-m", "e2e.torture", "-o", "json", "--plot", "", "--logs", "", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    is_good = not any(o["errors"] or o["wrong"] or o["faults"] for o in outcomes)
    assert done.returncode == (0 if is_good else 1), done.stderr
    return outcomes


def test_applications_notice_nothing_of_blows_on_everybody() -> None:
    """S4-09, S4-10: no error, no wrong byte, and everything as before afterwards."""
    (outcome,) = torture("--variant", "mixed", "--seconds", "60", "--kills", "10", "--seed", "1")
    assert (outcome["errors"], outcome["wrong"], outcome["faults"]) == ([], [], [])
    assert outcome["blows"] == 10
    assert outcome["operations"] > 100


def test_a_lost_connection_costs_what_was_open_and_nothing_else_and_nothing_of_it_stays() -> None:
    (outcome,) = torture("--variant", "both", "--seconds", "60", "--kills", "2", "--seed", "2")
    assert (outcome["errors"], outcome["wrong"], outcome["faults"]) == ([], [], [])
    assert outcome["blows"] == 2
    assert "torture-" not in Path("/proc/self/mountinfo").read_text()


def test_an_unknown_variant_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "e2e.torture", "--variant", "gentle"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "no variant 'gentle'" in done.stderr
