"""Cuts: a volume that is written on several mounts is one state of itself while it is held still."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sidemount.host import budget
from sidemount.model.errors import NotReady
from tests.sidecar.volume.pairs import broken
from tests.sidecar.volume.volumes import MI, df, held, make_volume, mount, used

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(120)]

_REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("limit", [MI, 0], ids=["limited", "thin"])
@pytest.mark.parametrize("storage", ["local", "remote"])
def test_a_copy_is_one_state_of_a_volume_that_two_mounts_write(
    tmp_path: Path, storage: str, limit: int
) -> None:
    source = make_volume(tmp_path / "source", limit)
    with ExitStack() as until_done:
        mounts = [
            until_done.enter_context(mount(tmp_path / name, source, storage=storage))
            for name in ("one", "two")
        ]
        applications = {}
        for number, volume in enumerate((*mounts, *mounts)):
            command = [sys.executable, "-m", "tests.sidecar.volume.pairs", str(volume.path), f"w{number}"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY)
            until_done.enter_context(process)
            until_done.callback(process.kill)
            applications[f"w{number}"] = process
        deadline = time.monotonic() + 30
        while any(made(source / "data" / f"{name}.B") < 9 for name in applications):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for number in range(12):
            copy = tmp_path / f"copy{number}"
            with budget.hold_still(str(source), 30) as still:
                names = sorted(os.listdir(source / "data"))
                shutil.copytree(source / "data", copy)
                for name in names:
                    assert (copy / name).read_bytes() == (source / "data" / name).read_bytes()
                assert sorted(os.listdir(source / "data")) == names
                if limit:
                    assert still.used == held(source)
            for name in applications:
                assert broken(copy, name) == []
            time.sleep(0.02)
        for name, process in applications.items():
            before = made(source / "data" / f"{name}.B")
            deadline = time.monotonic() + 30
            while made(source / "data" / f"{name}.B") < before + 2:
                assert time.monotonic() < deadline, "it does not go on"
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=30)
            assert int(said) > before


@pytest.mark.parametrize("storage", ["local", "remote"])
def test_reading_goes_on_while_writing_waits(tmp_path: Path, source: Path, storage: str) -> None:
    with mount(tmp_path / "one", source, storage=storage) as volume, ExitStack() as until_done:
        (volume.path / "f").write_bytes(b"x" * 100)
        directories = [volume.path / f"d{number}" for number in range(12)]
        for directory in directories:
            directory.mkdir()
        with budget.hold_still(str(source), 60):
            writers = [
                until_done.enter_context(subprocess.Popen(["touch", directory / "new"]))
                for directory in directories
            ]
            for _ in range(20):
                assert (volume.path / "f").read_bytes() == b"x" * 100
                assert df(volume.path)[0] == MI
                os.listdir(volume.path)
                time.sleep(0.005)
            assert [writer.poll() for writer in writers] == [None] * 12
            assert used(source) == held(source) == 100
            assert not [directory for directory in (source / "data").glob("d*") if os.listdir(directory)]
        for writer in writers:
            assert writer.wait(30) == 0
        assert all(os.listdir(directory) for directory in directories)


def test_a_daemon_that_stands_still_by_itself_bounds_nobody(tmp_path: Path, source: Path) -> None:
    with mount(tmp_path / "one", source) as volume, mount(tmp_path / "two", source) as other:
        (volume.path / "f").write_bytes(b"x")
        volume.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            try:
                with budget.hold_still(str(source), 0.3):
                    pass
            except NotReady:
                assert time.monotonic() - began < 30
            (other.path / "g").write_bytes(b"y")
        finally:
            volume.process.send_signal(signal.SIGCONT)
        with budget.hold_still(str(source), 30):
            pass


def test_a_daemon_that_dies_lets_go(tmp_path: Path, source: Path) -> None:
    with ExitStack() as until_dead:
        volume = until_dead.enter_context(mount(tmp_path / "one", source))
        (volume.path / "f").write_bytes(b"x")
        volume.process.kill()
        with budget.hold_still(str(source), 30):
            assert used(source) == 1
        volume.process.wait()
        with pytest.raises(AssertionError, match="the daemon died"):
            until_dead.close()


def made(second: Path) -> int:
    """Return how many pairs an application has made so far."""
    return int(second.read_bytes() or b"0") if second.exists() else 0
