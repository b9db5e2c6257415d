"""The same random program on a bare directory and on a mount whose daemons die: nothing that it sees differs."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.takeover.processes import in_child
from tests.sidecar.takeover.program import run_program
from tests.sidecar.takeover.stage import stage

pytestmark = [pytest.mark.fuse, pytest.mark.root]

SETTINGS = [
    pytest.param({}, "0.01", id="local"),
    pytest.param({"storage": "remote"}, "0.003", id="remote"),
    pytest.param({"attributeTimeout": 0}, "0.01", id="nothing-cached"),
]


def play(directory: Path, seed: int, calls: int) -> list[Any]:
    outcomes: list[Any] = in_child(lambda: run_program(str(directory), seed, calls))
    return outcomes


def compare(scratch: Path, seed: int, calls: int, suicide: str, options: dict[str, Any]) -> int:
    """Fail at the first difference. Return how many daemons died."""
    scratch.mkdir()
    bare = scratch / "bare"
    bare.mkdir(mode=0o777)
    bare.chmod(0o777)
    expected = play(bare, seed, calls)
    with ThreadPoolExecutor(1) as pool, stage(scratch, "--suicide", suicide, **options) as here:
        (scratch / "source").chmod(0o777)
        playing = pool.submit(play, here.path, seed, calls)
        while not playing.done():
            assert here.order("torture", 0.3, 5, 60)["faults"] == [], seed
        for bare_outcome, outcome in zip(expected, playing.result(), strict=False):
            assert outcome == bare_outcome, f"seed {seed}"
        assert len(playing.result()) == len(expected)
        kills: int = here.report["kills"]
        return kills


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("options", "suicide"), SETTINGS)
def test_program_sees_no_difference(tmp_path: Path, options: dict[str, Any], suicide: str) -> None:
    """S4-10, S4-11. The program is always the same, the deaths are not."""
    assert compare(tmp_path / "twins", 53, 400, suicide, options) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("options", "suicide"), SETTINGS)
def test_many_programs_see_no_difference(tmp_path: Path, options: dict[str, Any], suicide: str) -> None:
    first = int(os.environ.get("TWINS_SEED", "1"))
    kills = sum(
        compare(tmp_path / str(seed), seed, 800, suicide, options) for seed in range(first, first + 20)
    )
    assert kills > 100
