"""Mounts for the tests of this directory. Without /dev/fuse or root they are skipped, or fail if REQUIRE_FUSE=1."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sidecar.directory.harness import Mounted, mounted

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a kernel mount where there can be none."""
    if os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK):
        return
    if os.environ.get("REQUIRE_FUSE") == "1":
        return
    for item in items:
        if item.get_closest_marker("fuse"):
            item.add_marker(pytest.mark.skip(reason="needs root and /dev/fuse"))


@dataclass(frozen=True)
class Twins:
    """The same empty directory twice: bare, and seen through a mount of it."""

    bare: Path
    mount: Path
    behind: Path  # the source of `mount`


@pytest.fixture(scope="module")
def volume(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One mounted volume for all tests of a module: `runtime-storage` as its parameter says."""
    runtime, storage = getattr(request, "param", "trio-local").split("-")
    scratch = tmp_path_factory.mktemp("volume")
    source = scratch / "source"
    source.mkdir()
    open_up(scratch)
    with mounted(scratch, source, "--runtime", runtime, options={"storage": storage}) as volume:
        yield volume


@pytest.fixture
def twins(volume: Mounted) -> Twins:
    """A fresh pair of directories on the module's volume."""
    return make_twins(volume)


def make_twins(volume: Mounted) -> Twins:
    """Return a fresh pair of directories on a volume."""
    name = f"case{next(_numbers)}"
    bare = volume.source.parent / "bare" / name
    behind = volume.source / name
    for directory in (bare, behind):
        directory.mkdir(parents=True)
        directory.chmod(0o755)
    return Twins(bare, volume.path / name, behind)


def open_up(directory: Path) -> None:
    """Let other users reach a directory of pytest's, whose parents only root may enter."""
    for above in (directory, *directory.parents[:-2]):
        above.chmod(above.stat().st_mode | 0o711)
