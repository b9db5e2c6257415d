"""Whoever reads many small files in order on a real mount gets each as it is, whatever was fetched before he asked."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.objects.scripted_store import content_of, until
from tests.sidecar.objects.test_mount import mounted, shell
from tests.sidecar.objects.test_mount_kills import bucket, kill
from tests.sidecar.objects.walking_application import SIZE

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(240)]

_REPOSITORY = Path(__file__).parents[3]
_BELIEVED_S: dict[str, Any] = {"attributeTimeout": 3600, "knownTimeout": 3600, "openTimeout": 3600}


def _make(directory: Path, files: int) -> None:
    directory.mkdir(parents=True)
    for number in range(files):
        (directory / f"{number:04d}").write_bytes(content_of(SIZE, number % 251))


def test_a_tree_is_copied_as_it_is(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _make(tmp_path / "objects" / "tree" / name, 150)
    with mounted(tmp_path, "mount", **_BELIEVED_S) as volume:
        shell(f"cp -r {volume.path}/tree {tmp_path}/copy", tmp_path)
        shell(f"diff -r {tmp_path}/copy {tmp_path}/objects/tree", tmp_path)
        grepped = shell(f"grep -rlc . {volume.path}/tree | wc -l", tmp_path)
        assert grepped.strip() == "300"


def test_what_was_replaced_or_removed_after_it_was_fetched_is_seen_when_opens_ask(tmp_path: Path) -> None:
    """Files are fetched ahead as the listing told; an open that may not believe that any more asks, and sees what is there."""
    objects = tmp_path / "objects" / "d"
    _make(objects, 100)
    with mounted(tmp_path, "mount", attributeTimeout=0, knownTimeout=2, openTimeout=2) as volume:
        here = volume.path / "d"
        names = sorted(here.iterdir())
        listed = time.monotonic()
        for number, path in enumerate(names[:8]):
            assert path.read_bytes() == content_of(SIZE, number)
        (objects / "0010").write_bytes(b"another")
        (objects / "0011").unlink()
        until(lambda: time.monotonic() > listed + 2.1)  # the listing is not believed from here on
        assert (here / "0010").read_bytes() == b"another"
        with pytest.raises(FileNotFoundError):
            (here / "0011").read_bytes()
        for number, path in list(enumerate(names))[12:]:
            assert path.read_bytes() == content_of(SIZE, number)


def test_who_reads_in_order_notices_no_kill(tmp_path: Path) -> None:
    """S4-09: one reader and eight at once, past the kernel's cache; the memory does not hold all files."""
    with bucket(tmp_path, memoryCacheBytes=2 << 20, blockSize=64 << 10, **_BELIEVED_S) as here:
        for threads in (1, 8):
            _make(tmp_path / "objects" / f"for-{threads}", 300)
            command = [sys.executable, "-m", "tests.sidecar.objects.walking_application"]
            command += [str(here.path / f"for-{threads}"), str(threads)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY)
            here._applications.append((f"walker{threads}", process))
        kill(here, 8, 50, 500)
        verdict = here.end()
        assert verdict.complaints == [], verdict.log
        assert verdict.kills >= 8
        assert all(application["operations"] >= 300 for application in verdict.applications)
