"""Random operations with a shadow model, through mounts with every setting; and proof that the exerciser finds what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidemount.model.mountspec import OptionValue
from tests.sidecar.directory.harness import mounted

pytestmark = [pytest.mark.fuse, pytest.mark.root]

REPOSITORY = Path(__file__).parents[3]
SECONDS = float(os.environ.get("FSX_SECONDS", "3"))  # `make fsx` gives it minutes


def exercise(directory: Path, *arguments: str, seconds: float = 3) -> "subprocess.CompletedProcess[str]":
    """Run the exerciser on a directory."""
    command = [
        sys.executable,
        "-m",
        "e2e.fsx",
        "--dir",
        str(directory),
        "--seconds",
        str(seconds),
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, cwd=REPOSITORY)


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize(
    ("runtime", "options", "more"),
    [
        pytest.param("trio", {}, [], id="trio"),
        pytest.param("poll", {}, [], id="poll"),
        pytest.param("poll", {"storage": "remote"}, [], id="remote"),
        pytest.param("poll", {"pageCache": "keep", "attributeTimeout": 3600}, [], id="keep"),
        pytest.param("poll", {"pageCache": "direct", "attributeTimeout": 0}, ["--no-map"], id="direct"),
        pytest.param("poll", {"writeback": True}, [], id="writeback"),
    ],
)
def test_every_byte_is_right(
    runtime: str, options: dict[str, OptionValue], more: list[str], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    seed = os.environ.get("FSX_SEED", "7")
    with mounted(tmp_path, source, "--runtime", runtime, options=options) as volume:
        done = exercise(volume.path, "--source", str(source), "--seed", seed, *more, seconds=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert volume.descriptors() < 60


def test_exerciser_is_right_about_a_bare_directory(tmp_path: Path) -> None:
    done = exercise(tmp_path, seconds=1)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fault", ["lying", "forgetful"])
def test_exerciser_finds_a_wrong_byte_and_says_what_led_to_it(fault: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with mounted(tmp_path, source, "--store", f"tests.sidecar.directory.faults:{fault}") as volume:
        done = exercise(volume.path, "--source", str(source), seconds=20)
    assert done.returncode == 1
    assert "wrong bytes from offset" in done.stdout
    assert "write fd=" in done.stdout


def test_exerciser_refuses_a_directory_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    done = exercise(tmp_path)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
