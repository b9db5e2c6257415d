"""A read-only volume: the daemon refuses by itself, whatever the mount would do."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.directory.harness import Mounted, mounted, outcome

pytestmark = [pytest.mark.fuse, pytest.mark.root]


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A read-only volume, mounted without the kernel's own read-only flag: only the daemon refuses."""
    scratch = tmp_path_factory.mktemp("readonly")
    source = scratch / "source"
    (source / "d").mkdir(parents=True)
    (source / "f").write_text("content")
    os.setxattr(source / "f", "user.a", b"1")
    os.symlink("f", source / "l")
    with mounted(scratch, source, "--read-only") as volume:
        yield volume


def _tree(source: Path) -> list[Any]:
    return [
        (str(path), path.lstat().st_mode, path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
        for path in sorted(source.rglob("*"))
    ]


def test_every_change_is_refused_and_nothing_changes(volume: Mounted) -> None:
    """S2-18, S2-27: EROFS whichever way a change is tried."""
    root = volume.path
    before = _tree(volume.source)
    reader = os.open(root / "f", os.O_RDONLY)
    refused = [
        outcome(os.open, root / "f", os.O_WRONLY),
        outcome(os.open, root / "f", os.O_RDWR),
        outcome(os.open, root / "f", os.O_WRONLY | os.O_APPEND),
        outcome(os.open, root / "f", os.O_RDONLY | os.O_TRUNC),
        outcome(os.open, root / "new", os.O_CREAT | os.O_WRONLY, 0o644),
        outcome(os.open, root / "new", os.O_CREAT | os.O_RDONLY, 0o644),
        outcome(os.mkdir, root / "new"),
        outcome(os.mkfifo, root / "new"),
        outcome(os.symlink, "x", root / "new"),
        outcome(os.link, root / "f", root / "new"),
        outcome(os.unlink, root / "f"),
        outcome(os.rmdir, root / "d"),
        outcome(os.rename, root / "f", root / "g"),
        outcome(os.chmod, root / "f", 0o600),
        outcome(os.chown, root / "f", 1, 1),
        outcome(os.fchmod, reader, 0o600),
        outcome(os.utime, root / "f"),
        outcome(os.truncate, root / "f", 0),
        outcome(os.setxattr, root / "f", "user.b", b""),
        outcome(os.removexattr, root / "f", "user.a"),
    ]
    os.close(reader)
    assert refused == [errno.errorcode[errno.EROFS]] * len(refused)
    assert _tree(volume.source) == before


def test_everything_can_be_read(volume: Mounted) -> None:
    root = volume.path
    assert (root / "f").read_text() == "content"
    assert (root / "l").read_text() == "content"
    assert os.getxattr(root / "f", "user.a") == b"1"
    assert sorted(os.listdir(root)) == ["d", "f", "l"]
    fd = os.open(root / "f", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
