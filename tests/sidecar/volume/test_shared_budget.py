"""Several mounts of one volume, and daemons that are killed: what is used is what is held, to the byte."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sidemount.host import budget
from tests.sidecar.takeover.stage import stage
from tests.sidecar.volume.volumes import KI, df, held, make_volume, mount, used

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(180)]

LIMIT = 256 * KI
_REPOSITORY = Path(__file__).parents[3]
EXPECTED = {"done", "EDQUOT", "ENOENT", "EEXIST", "ESTALE"}


@contextmanager
def greedy(directory: Path, seed: int, operations: int) -> Iterator["subprocess.Popen[str]"]:
    """Run a greedy application for a block."""
    command = [
        sys.executable,
        "-m",
        "tests.sidecar.volume.greedy",
        str(directory),
        str(seed),
        str(operations),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY) as process:
        try:
            yield process
        finally:
            process.kill()


def outcomes(process: "subprocess.Popen[str]") -> Counter[str]:
    """Return what came of a greedy application's operations."""
    said, _ = process.communicate(timeout=120)
    return Counter(json.loads(said))


@pytest.mark.parametrize("storage", ["local", "remote"])
def test_mounts_that_contend_for_the_same_files_never_hold_more_than_the_limit(
    tmp_path: Path, storage: str
) -> None:
    source = make_volume(tmp_path / "source", LIMIT)
    with ExitStack() as until_done:
        mounts = [
            until_done.enter_context(mount(tmp_path / name, source, storage=storage))
            for name in ("one", "two")
        ]
        applications = [
            until_done.enter_context(greedy(volume.path, seed, 600))
            for seed, volume in enumerate((*mounts, *mounts))
        ]
        while any(application.poll() is None for application in applications):
            with budget.hold_still(str(source), 30) as still:
                assert held(source) <= still.used <= LIMIT
            time.sleep(0.05)
        for application in applications:
            came = outcomes(application)
            assert set(came) <= EXPECTED, came
            assert came["EDQUOT"]
        settle(source, mounts[0].path, mounts[1].path)


def test_nobody_is_refused_what_there_is_room_for(tmp_path: Path) -> None:
    source = make_volume(tmp_path / "source", LIMIT)
    with mount(tmp_path / "one", source) as one, mount(tmp_path / "two", source) as two:
        faults: list[OSError] = []

        def fill(path: Path) -> None:
            try:
                with open(path, "ab", buffering=0) as file:
                    for _ in range(LIMIT // 2 // 512):
                        assert file.write(b"x" * 512) == 512
            except OSError as error:
                faults.append(error)

        paths = (one.path / "one", two.path / "two")
        fillers = [threading.Thread(target=fill, args=(path,)) for path in paths]
        for filler in fillers:
            filler.start()
        for filler in fillers:
            filler.join()
        assert not faults
        assert used(source) == held(source) == LIMIT
        assert df(one.path) == df(two.path) == (LIMIT, 0)


def test_mounts_are_killed_and_the_others_settle_what_they_left(tmp_path: Path) -> None:
    source = make_volume(tmp_path / "source", LIMIT)
    dice = random.Random(1)
    with mount(tmp_path / "lasting", source) as lasting, greedy(lasting.path, 99, 10**9) as other:
        for life in range(8):
            dying = ExitStack()
            volume = dying.enter_context(mount(tmp_path / f"life{life}", source))
            with greedy(volume.path, life, 10**9):
                time.sleep(dice.uniform(0.05, 0.4))
                volume.process.kill()
                volume.process.wait()
            with pytest.raises(AssertionError, match="the daemon died"):
                dying.close()
        other.kill()
        other.wait()
        settle(source, lasting.path)
    assert used(source) == held(source)


@pytest.mark.parametrize(
    "arguments", [("--suicide", "0.002"), ()], ids=["between doing and noting", "at any time"]
)
def test_daemons_succeed_each_other_and_nothing_is_counted_twice(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with stage(tmp_path, *arguments, limit=LIMIT) as here:
        source = tmp_path / "source"
        with greedy(here.path, 1, 1200) as one, greedy(here.path, 2, 1200) as two:
            deadline = time.monotonic() + 90
            while (one.poll() is None or two.poll() is None) and time.monotonic() < deadline:
                here.order("torture", 0.5, 20, 80)
                assert not here.report["faults"], here.report["faults"]
            for application in (one, two):
                came = outcomes(application)
                assert set(came) <= EXPECTED, came
                assert came["EDQUOT"]
        assert here.report["kills"] > 10
        settle(source, here.path)
        verdict = here.end()
        assert verdict.complaints == [], verdict.log


def settle(source: Path, *paths: Path) -> None:
    """Wait until all closing has been told, and see that nothing is used that is not held."""
    for _ in range(2000):
        for path in paths:
            os.statvfs(path)
        with budget.hold_still(str(source), 30) as still:
            if still.used == held(source):
                return
        time.sleep(0.005)
    with budget.hold_still(str(source), 30) as still:
        assert still.used == held(source)
