"""Who the daemon is: root with four capabilities, or nobody at all; and what its root is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sidecar.directory.conftest import open_up
from tests.sidecar.directory.harness import Mounted, mounted, outcome

pytestmark = [pytest.mark.fuse, pytest.mark.root]

UID = 4321


@pytest.fixture(scope="module")
def unprivileged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A volume served by an ordinary user without any capability, who owns the source."""
    scratch = tmp_path_factory.mktemp("unprivileged")
    source = scratch / "source"
    source.mkdir()
    os.chown(source, UID, UID)
    open_up(scratch)
    with mounted(scratch, source, "--uid", str(UID)) as volume:
        yield volume


def test_unprivileged_daemon_serves_everything_but_ownership(unprivileged: Mounted) -> None:
    root = unprivileged.path
    os.mkdir(root / "d")
    (root / "d/f").write_text("content")
    os.chmod(root / "d/f", 0o640)
    os.rename(root / "d/f", root / "g")
    os.link(root / "g", root / "h")
    os.symlink("g", root / "l")
    os.mkfifo(root / "p")
    os.truncate(root / "g", 3)
    os.utime(root / "g", ns=(1, 2))
    os.setxattr(root / "g", "user.a", b"1")
    assert (root / "l").read_text() == "con"
    assert os.stat(root / "g").st_mtime_ns == 2
    assert os.stat(root / "g").st_uid == os.stat(root / "d").st_uid == UID
    assert outcome(os.chown, root / "g", 1, 1) == "EPERM"
    assert outcome(os.open, root / "g", os.O_RDONLY | os.O_NOATIME) != "EPERM"
    os.unlink(root / "h")
    os.rmdir(root / "d")
    assert sorted(os.listdir(root)) == ["g", "l", "p"]


def test_unprivileged_daemon_cannot_reach_what_its_user_may_not(unprivileged: Mounted) -> None:
    secret = unprivileged.source / "secret"
    secret.write_text("roots")
    secret.chmod(0o600)
    assert outcome((unprivileged.path / "secret").read_text) == "EACCES"


def test_daemon_has_just_the_four_capabilities(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with mounted(tmp_path, tmp_path / "source") as volume:
        status = Path(f"/proc/{volume.process.pid}/status").read_text()
        effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
        assert int(effective, 16) == 0b11011
        (volume.path / "f").write_text("x")
        os.chown(volume.path / "f", 1, 2)
        os.chmod(volume.path / "f", 0o6755)
        assert stat.S_IMODE((tmp_path / "source/f").stat().st_mode) == 0o6755


def test_sub_path_is_the_root_and_nothing_above_it_is_reached(tmp_path: Path) -> None:
    """S2-07: one volume's daemon serves only beneath its sub-path."""
    source = tmp_path / "source"
    (source / "sessions/a").mkdir(parents=True)
    (source / "sessions/b").mkdir()
    (source / "secret").write_text("no")
    with mounted(tmp_path, source, "--sub-path", "sessions/a") as volume:
        (volume.path / "f").write_text("mine")
        os.symlink("../../secret", volume.path / "l")
        assert os.listdir(volume.path) == ["f", "l"] or sorted(os.listdir(volume.path)) == ["f", "l"]
        assert outcome((volume.path / "l").read_text) == "ENOENT"  # the caller's tree has no such place
    assert (source / "sessions/a/f").read_text() == "mine"
    assert os.listdir(source / "sessions/b") == []
