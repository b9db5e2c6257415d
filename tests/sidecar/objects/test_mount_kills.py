"""Daemons of an `objects` volume killed under applications, on a real kernel: nobody notices, and the store has what was written."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.objects.application import MANY
from tests.sidecar.takeover.stage import Stage, Verdict, stage

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(240)]

_REPOSITORY = Path(__file__).parents[3]


class Bucket(Stage):
    """A mount of a directory of objects."""

    def begin(self, count: int, seconds: float = 600.0) -> None:
        """Start applications."""
        for number in range(count):
            command = [sys.executable, "-m", "tests.sidecar.objects.application"]
            command += [str(self.path / f"app{number}"), str(seconds), str(number)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY)
            self._applications.append((f"objects{number}", process))


@contextmanager
def bucket(scratch: Path, *arguments: str, **options: Any) -> Iterator[Bucket]:
    """Serve a directory of objects for a block, by one daemon after another."""
    for name in ("objects", "cache"):
        (scratch / name).mkdir()
    (scratch / "objects" / "many").mkdir()
    for number in range(MANY):
        (scratch / "objects" / "many" / f"{number}").touch()
    arguments = ("--filesystem", "objects", "--uri", f"file://{scratch}/objects", *arguments)
    arguments = ("--cache", str(scratch / "cache"), *arguments)
    with stage(scratch, *arguments, stagingBytes=64 << 20, **options) as here:
        here.__class__ = Bucket
        assert isinstance(here, Bucket)
        yield here


def kill(
    here: Stage, kills: int, least_ms: float, most_ms: float, trait: str = "", longest_s: float = 60.0
) -> None:
    """Kill until there were so many kills, and a takeover with that trait among them."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        report = here.order("torture", 1, least_ms, most_ms)
        is_seen = not trait or any(takeover.get(trait) for takeover in report["takeovers"])
        if report["faults"] or (is_seen and report["kills"] >= kills):
            break


def check(verdict: Verdict, operations: int) -> None:
    """See that nobody has noticed anything."""
    assert verdict.complaints == [], verdict.log
    assert all(application["operations"] > operations for application in verdict.applications)
    assert len({takeover["state_id"] for takeover in verdict.takeovers}) == 1


def test_nobody_notices_that_daemons_are_killed(tmp_path: Path) -> None:
    """S4-09, S4-10, S4-11: reads, writes, listings and every change of names, while daemons are killed at any time."""
    with bucket(tmp_path) as here:
        here.begin(2)
        kill(here, 40, 20, 120, "drained")
        verdict = here.end()
        check(verdict, 5)
        assert verdict.kills >= 40
        assert any(takeover["drained"] for takeover in verdict.takeovers)


def test_nobody_notices_deaths_between_doing_and_noting(tmp_path: Path) -> None:
    """S4-10: a part of the boundaries of operations on names is deadly."""
    with bucket(tmp_path, "--suicide", "0.004") as here:
        here.begin(2)
        kill(here, 20, 200, 500, "operations")
        verdict = here.end()
        check(verdict, 0)
        assert sum(takeover.get("operations", 0) for takeover in verdict.takeovers) > 0


@pytest.mark.slow
def test_nobody_notices_many_kills(tmp_path: Path) -> None:
    """The same for longer, and with nothing believed."""
    with bucket(tmp_path, knownTimeout=0, missingTimeout=0, attributeTimeout=0) as here:
        here.begin(3)
        kill(here, 400, 30, 250, longest_s=120)
        check(here.end(), 20)


def test_large_file_is_written_and_read_on_under_kills(tmp_path: Path) -> None:
    """One copy into the bucket and one out of it, each by one process that has one descriptor open throughout."""
    content = os.urandom(20 << 20)
    (tmp_path / "local").write_bytes(content)
    with bucket(tmp_path, partSize=5 << 20, memoryCacheBytes=16 << 20) as here:
        for source, target in (
            (tmp_path / "local", here.path / "far"),
            (here.path / "far", tmp_path / "back"),
        ):
            process = subprocess.Popen(
                ["dd", f"if={source}", f"of={target}", "bs=256k", "status=none"], stderr=subprocess.PIPE
            )
            while process.poll() is None:
                here.order("torture", 0.3, 50, 150)
            assert process.stderr is not None
            assert (process.returncode, process.stderr.read()) == (0, b"")
            process.stderr.close()
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        assert verdict.kills > 2
        assert (tmp_path / "back").read_bytes() == content
        assert (tmp_path / "objects" / "far").read_bytes() == content
