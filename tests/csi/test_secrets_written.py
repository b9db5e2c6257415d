"""Credentials as they are written: whole or not at all, beside nothing that a killed plugin has left, past whatever a daemon plants."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from csi.credentials import read_credentials, renew_credentials, write_credentials
from sidemount.model.errors import HostFailure

pytestmark = pytest.mark.root

UID = 65532


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Return a memory filesystem of 64 KiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "credentials", tmp_path], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_what_a_killed_plugin_has_left_half_written_goes_with_the_next_writing(tmp_path: Path) -> None:
    (tmp_path / ".new-0123456789abcdef").write_text("half of a sec")
    write_credentials(str(tmp_path), {}, UID)
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_as_it_should_be_is_not_written_again(tmp_path: Path) -> None:
    write_credentials(str(tmp_path), {"a": "1", "b": "2"}, UID)
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    write_credentials(str(tmp_path), {"a": "1", "b": "3"}, UID)
    after = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert after["a"] == before["a"]
    assert after["b"] != before["b"]
    (tmp_path / "a").chmod(0o644)
    write_credentials(str(tmp_path), {"a": "1"}, UID)
    status = (tmp_path / "a").stat()
    assert (status.st_mode & 0o777, status.st_uid) == (0o400, UID)


def test_no_room_leaves_what_was_there_and_no_part_of_what_was_to_be(memory: Path) -> None:
    write_credentials(str(memory), {"a": "before"}, UID)
    with pytest.raises(HostFailure, match="No space") as raised:
        renew_credentials(str(memory), {"a": "c4nary" * 20_000}, UID)
    assert "c4nary" not in str(raised.value)
    assert read_credentials(str(memory)) == {"a": "before"}
    assert [path.name for path in memory.iterdir()] == ["a"]


def test_what_a_daemon_plants_is_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    directory, victim = tmp_path / "secrets", tmp_path / "victim"
    directory.mkdir()
    victim.write_text("root's own")
    os.mkfifo(directory / "pipe")
    (directory / "link").symlink_to(victim)
    (directory / "dir").mkdir()
    assert read_credentials(str(directory)) == {}
    write_credentials(str(directory), {"pipe": "1", "link": "2"}, UID)
    assert read_credentials(str(directory)) == {"pipe": "1", "link": "2"}
    assert victim.read_text() == "root's own"
    with pytest.raises(HostFailure, match="directory"):
        write_credentials(str(directory), {"dir": "3"}, UID)
    (tmp_path / "elsewhere").symlink_to(directory)
    assert read_credentials(str(tmp_path / "elsewhere")) == {}
    with pytest.raises(HostFailure):
        write_credentials(str(tmp_path / "elsewhere"), {"a": "4"}, UID)
