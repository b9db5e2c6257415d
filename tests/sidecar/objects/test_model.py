"""Random operations on two real mounts of one bucket at once, compared with the stated semantics, while daemons are killed."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sidemount.stores.local_store import LocalStore
from tests.sidecar.takeover.stage import Stage, stage

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(600)]

_REPOSITORY = Path(__file__).parents[3]
_MIB = 1 << 20
OPTIONS: dict[str, Any] = {
    "stagingBytes": 64 * _MIB,
    "partSize": 5 * _MIB,
    "memoryCacheBytes": 8 * _MIB,
    "knownTimeout": 0,
    "missingTimeout": 0,
    "attributeTimeout": 0,
    "entryTimeout": 0,
}


def run(
    scratch: Path, operations: int, seed: int, kill_every_s: tuple[float, float] | None
) -> dict[str, Any]:
    """Have the application do so many operations, and daemons of both mounts killed meanwhile; return what it says."""
    bucket = scratch / "objects"
    bucket.mkdir()
    places = [scratch / name for name in ("one", "two")]
    for place in places:
        (place / "cache").mkdir(parents=True)
    arguments = ("--filesystem", "objects", "--uri", f"file://{bucket}", "--cache")
    with (
        stage(places[0], *arguments, str(places[0] / "cache"), **OPTIONS) as one,
        stage(places[1], *arguments, str(places[1] / "cache"), **OPTIONS) as two,
    ):
        command = [sys.executable, "-m", "tests.sidecar.objects.model_program"]
        command += [str(one.path), str(two.path), str(bucket), str(operations), str(seed)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY)
        try:
            until = time.monotonic() + 500
            while process.poll() is None and time.monotonic() < until:
                _torture([one, two], kill_every_s)
            assert process.stdout is not None
            assert process.poll() == 0, _logs([one, two])
            said: dict[str, Any] = json.loads(process.stdout.read())
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for here in (one, two):
            assert here.order("report")["faults"] == []
        said["kills"] = one.report["kills"] + two.report["kills"]
        said["log"] = _logs([one, two])
    _see_no_parts(bucket)
    return said


def _torture(stages: list[Stage], kill_every_s: tuple[float, float] | None) -> None:
    if kill_every_s is None:
        time.sleep(0.05)
        return
    for here in stages:
        here.order("torture", 0.15, *(1e3 * pause_s for pause_s in kill_every_s))


def _logs(stages: list[Stage]) -> str:
    return "\n".join(here._log.read_text()[-4000:] for here in stages)


def _see_no_parts(bucket: Path) -> None:
    store = LocalStore(str(bucket))
    left = [(key, upload) for key, upload, _ in store.uploads("") if key and store.parts(key, upload)]
    assert left == []


@pytest.mark.parametrize("seed", [1, 2])
def test_two_mounts_agree_with_the_semantics(tmp_path: Path, seed: int) -> None:
    said = run(tmp_path, 300, seed, None)
    assert said["wrong"] == [], said["log"]
    assert said["operations"] == 300


@pytest.mark.parametrize("seed", [3, 4])
def test_two_mounts_agree_with_the_semantics_while_daemons_die(tmp_path: Path, seed: int) -> None:
    """S4-09, S4-10: nothing that was written is lost, nothing is done twice, and no reader sees a mix of versions."""
    said = run(tmp_path, 200, seed, (0.02, 0.15))
    assert said["wrong"] == [], said["log"]
    assert said["operations"] == 200
    assert said["kills"] > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
def test_two_mounts_agree_for_long(tmp_path: Path, seed: int) -> None:
    said = run(tmp_path, 1500, seed, (0.02, 0.2))
    assert said["wrong"] == [], said["log"]
    assert said["kills"] > 20
