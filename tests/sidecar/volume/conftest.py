"""Volumes for the tests of this directory. Without /dev/fuse or root what needs a mount is skipped, or fails if REQUIRE_FUSE=1."""

from pathlib import Path

import pytest

from tests.sidecar.directory.conftest import pytest_collection_modifyitems
from tests.sidecar.volume.volumes import MI, make_volume

__all__ = ["pytest_collection_modifyitems"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A volume of one mebibyte that holds nothing."""
    return make_volume(tmp_path / "source", MI)
