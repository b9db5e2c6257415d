"""Daemons killed under readers of one large file: no wrong byte and no error, whatever was cached, half written or on its way."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sidecar.objects.reading_application import SIZE
from tests.sidecar.objects.scripted_store import content_of
from tests.sidecar.objects.test_mount_kills import bucket, kill

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(240)]

_REPOSITORY = Path(__file__).parents[3]


def test_readers_notice_no_kill_and_a_successor_has_the_cache(tmp_path: Path) -> None:
    """S4-09: four readers; the cache volume is smaller than the file, so that blocks come and go in it all the time."""
    with bucket(tmp_path, memoryCacheBytes=16 << 20, cacheBytes=12 << 20, blockSize=1 << 20) as here:
        (tmp_path / "objects" / "large").write_bytes(content_of(SIZE))
        for seed in range(4):
            command = [sys.executable, "-m", "tests.sidecar.objects.reading_application"]
            command += [str(here.path / "large"), str(seed)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY)
            here._applications.append((f"reader{seed}", process))
        kill(here, 25, 20, 250)
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        assert verdict.kills >= 25
        assert all(application["operations"] > 20 for application in verdict.applications)
        files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        assert 0 < sum(path.stat().st_blocks * 512 for path in files) <= (14 << 20)


@pytest.mark.parametrize(
    "options",
    [{"memoryCacheBytes": 64 << 20}, {"memoryCacheBytes": 8 << 20, "cacheBytes": 64 << 20}],
    ids=["in memory", "on the cache volume"],
)
def test_kills_while_a_file_is_fetched_as_a_whole_are_not_noticed(
    tmp_path: Path, options: dict[str, int]
) -> None:
    """S4-09: six readers at random places, so that each daemon begins to fetch the file, and is killed at that."""
    with bucket(tmp_path, blockSize=256 << 10, **options) as here:
        (tmp_path / "objects" / "large").write_bytes(content_of(SIZE))
        for seed in range(6):
            command = [sys.executable, "-m", "tests.sidecar.objects.reading_application"]
            command += [str(here.path / "large"), str(seed), "random", "small"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY)
            here._applications.append((f"reader{seed}", process))
        kill(here, 8, 50, 600)
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        assert verdict.kills >= 8
        assert all(application["operations"] > 20 for application in verdict.applications)
