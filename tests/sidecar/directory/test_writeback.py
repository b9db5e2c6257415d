"""A mount whose kernel collects writes: it also reads through descriptors that are only for writing."""

import os
from pathlib import Path

import pytest

from tests.sidecar.directory.harness import mounted

pytestmark = [pytest.mark.fuse, pytest.mark.root]


@pytest.mark.parametrize("flags", [os.O_CREAT | os.O_EXCL, 0], ids=["created", "opened"])
def test_part_of_a_page_is_written_through_a_descriptor_that_cannot_read(flags: int, tmp_path: Path) -> None:
    """The rest of the page is no more in memory, and has to come from the store."""
    source = tmp_path / "source"
    source.mkdir()
    if not flags:
        (source / "f").write_bytes(b"")
    with mounted(tmp_path, source, options={"writeback": True}) as volume:
        file = os.open(volume.path / "f", os.O_WRONLY | flags, 0o644)
        os.write(file, b"a" * 10_000)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pwrite(file, b"b", 5000) == 1
        os.fsync(file)
        os.close(file)
        assert (source / "f").read_bytes() == b"a" * 5000 + b"b" + b"a" * 4999
