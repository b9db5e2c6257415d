"""Daemons killed under applications, on a real kernel: nobody notices."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.takeover.stage import Stage, stage

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(240)]

EVERYTHING = ("writer", "log", "churn", "keeper", "lister", "blocks")


def kill(here: Stage, kills: int, least_ms: float, most_ms: float, longest_s: float = 60.0) -> None:
    """Kill until there were so many kills."""
    deadline = time.monotonic() + longest_s
    while here.order("torture", 2, least_ms, most_ms)["kills"] < kills and time.monotonic() < deadline:
        if here.report["faults"]:
            break


@pytest.mark.slow
def test_nobody_notices_two_hundred_kills(tmp_path: Path) -> None:
    """S4-09, S4-10, S4-11."""
    with stage(tmp_path) as here:
        here.start(*EVERYTHING)
        kill(here, 200, 10, 60)
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        assert verdict.kills >= 200
        assert all(application["operations"] > 0 for application in verdict.applications)
        assert any(takeover["drained"] for takeover in verdict.takeovers)
        assert len({takeover["state_id"] for takeover in verdict.takeovers}) == 1
        assert verdict.takeovers[-1]["nodes"] < 3000
        assert verdict.takeovers[-1]["size_bytes"] < 2 << 20


def test_nobody_notices_deaths_between_doing_and_noting(tmp_path: Path) -> None:
    """S4-10. Two in a hundred boundaries of operations on names are deadly."""
    with stage(tmp_path, "--suicide", "0.01") as here:
        here.start("churn", "churn", "keeper")
        kill(here, 150, 200, 500)
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        assert sum(takeover.get("operations", 0) for takeover in verdict.takeovers) > 20


@pytest.mark.parametrize(
    ("options", "arguments", "kinds"),
    [
        pytest.param(
            {"storage": "remote"}, ("--suicide", "0.002"), ("churn", "churn", "keeper", "log"), id="remote"
        ),
        pytest.param({"writeback": True}, (), ("writer", "keeper", "churn", "log", "blocks"), id="writeback"),
        pytest.param(
            {"pageCache": "direct"}, (), ("writer", "log", "blocks"), id="direct", marks=pytest.mark.slow
        ),
        pytest.param(
            {"pageCache": "keep", "attributeTimeout": 3600},
            (),
            ("writer", "keeper", "churn"),
            id="keep",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"attributeTimeout": 0},
            (),
            ("churn", "lister", "keeper"),
            id="nothing-cached",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_nobody_notices_with_any_settings(
    tmp_path: Path, options: dict[str, Any], arguments: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    with stage(tmp_path, *arguments, **options) as here:
        here.start(*kinds)
        kill(here, 40, 20, 120)
        verdict = here.end()
        assert verdict.complaints == [], verdict.log


def test_nobody_notices_daemons_that_die_while_they_take_over(tmp_path: Path) -> None:
    with stage(tmp_path) as here:
        here.start("writer", "churn", "keeper")
        rounds, deadline = 0, time.monotonic() + 90
        while rounds < 8 or (here.report["kills"] <= 100 and time.monotonic() < deadline):
            here.order("storm", 0.6, 12)
            here.order("torture", 0.2, 1000, 1000)
            rounds += 1
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        assert verdict.kills > 100


def test_first_daemon_dies_before_it_answers_init(tmp_path: Path) -> None:
    with stage(tmp_path, "--stillborn") as here:
        here.start("writer", "churn", seconds=1)
        time.sleep(1.0)
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        assert verdict.takeovers[0]["drained"] == 1


@pytest.mark.slow
def test_nodes_that_the_kernel_has_forgotten_unheard_are_found_out(tmp_path: Path) -> None:
    """Every entry of a listing that was never sent is counted once too often; the kernel is asked about such nodes."""
    quiet_s = 5.0  # enough for what the application does in the end, and for the kill thereafter
    with stage(tmp_path, "--quiet-seconds", str(quiet_s), "--deadly-listing", "0.2") as here:
        here.start("lister")
        began = time.monotonic()
        while here.order("torture", 2, 1e9, 1e9)["kills"] < 50 and time.monotonic() < began + 20:
            assert not here.report["faults"]
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        here.order("kill")
        before = after = here.report["takeovers"][-1]["nodes"]
        until = time.monotonic() + 60
        while after >= 10 and time.monotonic() < until:
            time.sleep(quiet_s + 1)
            here.order("kill")
            after = here.report["takeovers"][-1]["nodes"]
        assert before > 100, "nothing was left over"
        assert after < 10, f"{before} nodes were left over, and {after} still are"


def test_everything_is_gone_afterwards(tmp_path: Path) -> None:
    with stage(tmp_path) as here:
        here.order("torture", 0.5, 10, 50)
        assert os.listdir(here.path) == []
    # Others mount and unmount on the same machine meanwhile.
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
