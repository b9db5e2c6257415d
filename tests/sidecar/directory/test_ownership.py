"""Who owns new files, and that nothing but a new file is ever given away, in the core without FUSE.

With FUSE the kernel takes set-id bits away by itself where it knows of them; here nobody but the core does.
"""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.directory.filesystem import DirectoryFilesystem
from sidecar.directory.store import Powers, Store
from sidecar.protocol_filesystem import ROOT, Changes
from tests.sidecar.directory.core import Someone, make_filesystem, run
from tests.sidecar.directory.harness import outcome

pytestmark = pytest.mark.root

USER = Someone(1000, 1001)
ADMIN = Someone(0, 0)


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """As the daemon sets it: the kernel has applied the caller's."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    """Return the permission and set-id bits."""
    return stat.S_IMODE(path.lstat().st_mode)


def test_new_files_belong_to_the_caller_with_all_the_bits_it_asked_for(tmp_path: Path) -> None:
    filesystem = make_filesystem(tmp_path)
    run(filesystem.create(ROOT, b"f", 0o6755, os.O_RDWR, USER))
    run(filesystem.mkdir(ROOT, b"d", 0o1755, USER))
    run(filesystem.mknod(ROOT, b"p", stat.S_IFIFO | 0o4640, 0, USER))
    run(filesystem.symlink(ROOT, b"l", b"t", USER))
    found = {path.name: (path.lstat().st_uid, path.lstat().st_gid) for path in tmp_path.iterdir()}
    assert found == dict.fromkeys("fdpl", (1000, 1001))
    assert [mode_of(tmp_path / name) for name in "fdp"] == [0o6755, 0o1755, 0o4640]


def test_new_file_is_never_roots_set_user_id_program_even_for_an_instant(tmp_path: Path) -> None:
    """It is made without set-id bits, given away, and only then gets them."""
    seen: list[int] = []

    class Watching(Store):
        def chown(self, fd: int, uid: int, gid: int) -> None:
            seen.append(stat.S_IMODE(os.stat(f"/proc/self/fd/{fd}").st_mode))
            super().chown(fd, uid, gid)

    filesystem = make_filesystem(tmp_path, store=Watching)
    run(filesystem.create(ROOT, b"f", 0o6755, os.O_RDWR, USER))
    run(filesystem.mknod(ROOT, b"g", stat.S_IFREG | 0o6755, 0, USER))
    assert seen == [0o755, 0o755]


def _swapping(victim: Path) -> type[Store]:
    """Return a store in which somebody puts another file in the place of one that was just made."""

    class Swapping(Store):
        def _swap(self, directory: int, name: bytes) -> None:
            made = f"/proc/self/fd/{directory}/{os.fsdecode(name)}"
            os.rename(made, f"{made}-taken")
            os.rename(victim, made)

        def mkdir(self, directory: int, name: bytes, mode: int) -> None:
            super().mkdir(directory, name, mode)
            self._swap(directory, name)

        def mknod(self, directory: int, name: bytes, mode: int, rdev: int) -> None:
            super().mknod(directory, name, mode, rdev)
            self._swap(directory, name)

        def symlink(self, directory: int, name: bytes, target: bytes) -> None:
            super().symlink(directory, name, target)
            self._swap(directory, name)

    return Swapping


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_file_put_in_the_place_of_a_new_one_is_neither_given_away_nor_removed(
    kind: str, tmp_path: Path
) -> None:
    """Somebody who shares the volume through another mount could otherwise make any file of the daemon's its own."""
    source, victim = tmp_path / "source", tmp_path / "victim"
    source.mkdir()
    match kind:
        case "directory":
            victim.mkdir(0o700)
        case "file":
            victim.write_text("roots secret")
        case "link":
            victim.symlink_to("/etc/shadow")
    identity = victim.lstat().st_ino
    time.sleep(0.05)  # some ticks of the kernel's clock, which the check is as fine as
    filesystem = make_filesystem(source, store=_swapping(victim))
    match kind:
        case "directory":
            result = outcome(run, filesystem.mkdir(ROOT, b"n", 0o777, USER))
        case "file":
            result = outcome(run, filesystem.mknod(ROOT, b"n", stat.S_IFREG | 0o666, 0, USER))
        case _:
            result = outcome(run, filesystem.symlink(ROOT, b"n", b"t", USER))
    assert result == "ESTALE"
    found = (source / "n").lstat()
    assert (found.st_ino, found.st_uid, found.st_gid) == (identity, 0, 0)


def test_another_kind_of_file_in_the_place_of_a_new_one(tmp_path: Path) -> None:
    source, victim = tmp_path / "source", tmp_path / "victim"
    source.mkdir()
    victim.symlink_to("/etc")
    filesystem = make_filesystem(source, store=_swapping(victim))
    assert outcome(run, filesystem.mkdir(ROOT, b"n", 0o777, USER)) == "ESTALE"
    assert os.stat("/etc").st_uid == 0
    assert (source / "n").is_symlink()


@pytest.fixture
def privileged_file(tmp_path: Path) -> tuple[DirectoryFilesystem, int, Path]:
    """A set-user-id and set-group-id program, its node and its path."""
    path = tmp_path / "f"
    path.write_text("program")
    path.chmod(0o6777)
    filesystem = make_filesystem(tmp_path)
    return filesystem, run(filesystem.lookup(ROOT, b"f")).node, path


@pytest.mark.parametrize(("caller", "kept"), [(USER, 0o777), (ADMIN, 0o6777)])
def test_write_takes_set_id_bits_away(
    caller: Someone, kept: int, privileged_file: tuple[DirectoryFilesystem, int, Path]
) -> None:
    filesystem, node, path = privileged_file
    opened = run(filesystem.open(node, os.O_WRONLY, caller))
    run(filesystem.write(opened.handle, 0, b"x"))
    assert mode_of(path) == kept
    run(filesystem.release(opened.handle))


@pytest.mark.parametrize(("caller", "kept"), [(USER, 0o777), (ADMIN, 0o6777)])
def test_truncation_takes_set_id_bits_away(
    caller: Someone, kept: int, privileged_file: tuple[DirectoryFilesystem, int, Path]
) -> None:
    filesystem, node, path = privileged_file
    run(filesystem.setattr(node, Changes(size=3), None, caller))
    assert (mode_of(path), path.stat().st_size) == (kept, 3)
    path.chmod(0o6777)
    opened = run(filesystem.open(node, os.O_WRONLY | os.O_TRUNC, caller))
    assert (mode_of(path), path.stat().st_size) == (kept, 0)
    run(filesystem.release(opened.handle))


def test_change_of_nothing_is_a_change_of_owner_to_the_same(
    privileged_file: tuple[DirectoryFilesystem, int, Path],
) -> None:
    filesystem, node, path = privileged_file
    run(filesystem.setattr(node, Changes(), None, USER))
    assert mode_of(path) == 0o777


def test_change_of_owner_and_mode_together_keeps_the_mode(
    privileged_file: tuple[DirectoryFilesystem, int, Path],
) -> None:
    filesystem, node, path = privileged_file
    changes = Changes(uid=5, gid=6, mode=0o4711, size=2, atime_ns=7, mtime_ns=8)
    attributes = run(filesystem.setattr(node, changes, None, ADMIN))
    found = path.stat()
    assert (found.st_uid, found.st_gid, mode_of(path), found.st_size) == (5, 6, 0o4711, 2)
    assert (found.st_atime_ns, found.st_mtime_ns) == (7, 8) == (attributes.atime_ns, attributes.mtime_ns)


@pytest.mark.parametrize(
    ("atime_ns", "mtime_ns"), [(5, None), (None, 6), (-7, None), (None, 10**18 + 999_999_999)]
)
def test_one_time_leaves_the_other(atime_ns: int | None, mtime_ns: int | None, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    os.utime(tmp_path / "f", ns=(111, 222))
    filesystem = make_filesystem(tmp_path)
    node = run(filesystem.lookup(ROOT, b"f")).node
    run(filesystem.setattr(node, Changes(atime_ns=atime_ns, mtime_ns=mtime_ns), None, ADMIN))
    found = (tmp_path / "f").stat()
    assert found.st_atime_ns == (111 if atime_ns is None else atime_ns)
    assert found.st_mtime_ns == (222 if mtime_ns is None else mtime_ns)


def test_daemon_without_the_capability_keeps_what_it_makes(tmp_path: Path) -> None:
    class Powerless(Store):
        powers = Powers(chown=False, fsetid=False, gid=0)

        def chown(self, fd: int, uid: int, gid: int) -> None:
            raise AssertionError("it may not")

    filesystem = make_filesystem(tmp_path, store=Powerless)
    run(filesystem.mkdir(ROOT, b"d", 0o755, USER))
    run(filesystem.create(ROOT, b"f", 0o644, os.O_RDWR, USER))
    assert (tmp_path / "d").stat().st_uid == (tmp_path / "f").stat().st_uid == 0
