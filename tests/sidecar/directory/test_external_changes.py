"""The source is changed by others: through another mount, or directly. Never another file's bytes, never a stale closed write.

Requirement S4-03: close-to-open between mounts of one volume.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sidecar.directory.conftest import Twins, open_up
from tests.sidecar.directory.harness import Mounted, mounted, outcome, run_as

pytestmark = [pytest.mark.fuse, pytest.mark.root]

EXPIRED_S = 1.1


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Path, Path, Path]]:
    """Two mounts of one source, and the source."""
    source = tmp_path / "source"
    for directory in (source, tmp_path / "one", tmp_path / "two"):
        directory.mkdir()
    open_up(tmp_path)
    with mounted(tmp_path / "one", source) as one, mounted(tmp_path / "two", source) as two:
        yield one.path, two.path, source


def test_closed_write_is_seen_by_the_next_open_elsewhere(pair: tuple[Path, Path, Path]) -> None:
    one, two, _ = pair
    (one / "f").write_text("first")
    for round_ in range(20):
        content = f"round {round_} " * (round_ + 1)
        (one / "f").write_text(content)
        assert (two / "f").read_text() == content
        with open(two / "f", "a") as file:
            file.write("+")
        assert (one / "f").read_text() == content + "+"


def test_growth_is_seen_by_the_next_open_of_a_mere_reader(pair: tuple[Path, Path, Path]) -> None:
    """Well within the attribute timeout, and nothing but the open tells the reader's kernel."""
    one, two, _ = pair
    begun = time.monotonic()
    rounds = 0
    while time.monotonic() - begun < 0.9 or rounds <= 5:
        content = "x" * (rounds + 1)
        (one / "f").write_text(content)
        fd = os.open(two / "f", os.O_RDONLY)
        assert os.read(fd, 10_000) == content.encode()
        assert os.fstat(fd).st_size == len(content)
        os.close(fd)
        rounds += 1


def test_replaced_file_is_seen_by_the_next_open_elsewhere(pair: tuple[Path, Path, Path]) -> None:
    one, two, _ = pair
    (one / "f").write_text("old")
    assert (two / "f").read_text() == "old"
    for round_ in range(10):
        (one / "new").write_text(f"content {round_}")
        os.rename(one / "new", one / "f")
        assert (two / "f").read_text() == f"content {round_}"


def test_same_size_and_modification_time_do_not_hide_a_change(pair: tuple[Path, Path, Path]) -> None:
    one, two, source = pair
    (source / "f").write_text("aaaa")
    os.utime(source / "f", ns=(1, 1))
    time.sleep(EXPIRED_S)
    for _ in range(3):
        assert (two / "f").read_text() == "aaaa"
    with open(one / "f", "r+") as file:
        file.write("bbbb")
    os.utime(one / "f", ns=(1, 1))
    assert (two / "f").read_text() == "bbbb"


def test_pages_are_kept_while_nothing_changes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(b"x" * 100_000)
    time.sleep(EXPIRED_S)
    with mounted(tmp_path, source) as volume:
        for _ in range(3):
            (volume.path / "f").read_bytes()
        before = _rchar(volume)
        assert (volume.path / "f").read_bytes() == b"x" * 100_000
        assert _rchar(volume) - before < 50_000, "the content was read from the store again"


def _rchar(volume: Mounted) -> int:
    return int(Path(f"/proc/{volume.process.pid}/io").read_text().split()[1])


def test_file_made_and_removed_elsewhere(pair: tuple[Path, Path, Path]) -> None:
    one, two, source = pair
    assert not (two / "f").exists()
    (one / "f").write_text("now")
    assert (two / "f").read_text() == "now"
    os.unlink(source / "f")
    assert outcome(open, two / "f") == "ENOENT"
    time.sleep(EXPIRED_S)
    assert outcome(os.stat, one / "f") == "ENOENT"


def test_exclusive_creation_has_one_winner(pair: tuple[Path, Path, Path]) -> None:
    one, two, source = pair
    assert outcome(os.stat, one / "lock") == "ENOENT"
    (source / "lock").write_text("elsewhere")
    assert outcome(os.open, one / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644) == "EEXIST"
    os.unlink(source / "lock")
    os.close(os.open(two / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    assert outcome(os.open, one / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644) == "EEXIST"


@pytest.mark.parametrize(("uid", "right"), [(0, "secret"), (1000, "EACCES")])
def test_file_that_appears_during_its_creation_is_opened_only_by_who_may(
    uid: int, right: str, tmp_path: Path
) -> None:
    """Between the kernel's lookup and its create somebody else makes the file: the kernel has to look again and check."""
    source = tmp_path / "source"
    source.mkdir()
    source.chmod(0o777)
    open_up(tmp_path)
    with mounted(tmp_path, source, "--store", "tests.sidecar.directory.faults:overtaken") as volume:

        def open_or_make() -> str:
            with open(os.open("f", os.O_RDWR | os.O_CREAT, 0o666)) as file:
                return file.read()

        assert run_as(uid, uid, volume.path, lambda: outcome(open_or_make)) == right
        assert (source / "f").read_text() == "secret"
        exclusive = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        assert outcome(os.open, volume.path / "g", exclusive, 0o600) == "EEXIST"


def test_inode_number_used_again_is_another_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with mounted(tmp_path, source, options={"attributeTimeout": 3600}) as volume:
        reused = 0
        for round_ in range(40):
            (source / "f").write_text("old " * round_)
            number = (source / "f").stat().st_ino
            assert (volume.path / "f").stat().st_ino == number
            os.unlink(source / "f")
            (source / "f").write_text(f"new {round_}")
            reused += (source / "f").stat().st_ino == number
            assert (volume.path / "f").read_text() == f"new {round_}"
            os.unlink(volume.path / "f")
        assert reused, "the source's filesystem does not use inode numbers again: nothing was tested"


def test_name_that_now_is_another_file_is_never_opened_for_the_old_one(twins: Twins) -> None:
    (twins.behind / "f").write_text("mine")
    (twins.behind / "g").write_text("another's")
    path_only = os.open(twins.mount / "f", os.O_PATH)
    os.rename(twins.behind / "g", twins.behind / "f")
    # Through the old file's descriptor: its own attributes or an error, never those of the file that took its name.
    time.sleep(EXPIRED_S)
    found = outcome(os.fstat, path_only)
    assert found == "ESTALE" or found.st_size == len("mine")
    assert outcome(os.truncate, f"/proc/self/fd/{path_only}", 0) in ("ESTALE", "ENOENT")
    os.close(path_only)
    assert (twins.behind / "f").read_text() == "another's"
    assert (twins.mount / "f").read_text() == "another's"


def test_open_file_stays_the_same_file_whatever_happens_to_its_name(twins: Twins) -> None:
    (twins.behind / "f").write_text("mine")
    fd = os.open(twins.mount / "f", os.O_RDWR)
    os.unlink(twins.behind / "f")
    (twins.behind / "f").write_text("another's")
    time.sleep(EXPIRED_S)
    assert os.pread(fd, 100, 0) == b"mine"
    assert os.pwrite(fd, b"MINE", 0) == 4
    assert os.fstat(fd).st_nlink == 0
    assert os.fstat(fd).st_size == 4
    os.close(fd)
    assert (twins.mount / "f").read_text() == "another's"


def test_symbolic_link_put_in_the_place_of_a_directory_leads_nowhere(twins: Twins) -> None:
    os.makedirs(twins.mount / "d/e")
    (twins.mount / "d/e/f").write_text("inside")
    outside = twins.bare / "outside"
    os.makedirs(outside / "e")
    (outside / "e/f").write_text("secret")
    fd = os.open(twins.mount / "d", os.O_RDONLY)
    os.rename(twins.behind / "d", twins.behind / "real")
    os.symlink(outside, twins.behind / "d")
    # The daemon must not follow it for a node that it knows by this path.
    assert outcome(os.listdir, fd) in (["e"], "ESTALE")
    written = outcome(os.open, "new", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
    assert written == "ESTALE" or isinstance(written, int)
    if isinstance(written, int):
        os.close(written)
    assert sorted(os.listdir(outside)) == ["e"]
    os.close(fd)


def test_directory_moved_elsewhere_is_found_at_its_new_place(twins: Twins) -> None:
    os.makedirs(twins.mount / "a/b/c")
    (twins.mount / "a/b/c/f").write_text("content")
    os.rename(twins.behind / "a/b", twins.behind / "z")
    time.sleep(EXPIRED_S)
    assert (twins.mount / "z/c/f").read_text() == "content"
    assert outcome(os.stat, twins.mount / "a/b") == "ENOENT"
    os.rename(twins.mount / "z/c/f", twins.mount / "f")
    assert (twins.behind / "f").read_text() == "content"


def test_directories_swapped_into_each_other(twins: Twins) -> None:
    os.makedirs(twins.mount / "a/b")
    os.listdir(twins.mount / "a/b")
    os.rename(twins.behind / "a/b", twins.behind / "b")
    os.rename(twins.behind / "a", twins.behind / "b/a")
    time.sleep(EXPIRED_S)
    (twins.mount / "b/a/f").write_text("inverted")
    assert (twins.behind / "b/a/f").read_text() == "inverted"
    assert outcome(os.stat, twins.mount / "a") == "ENOENT"


def test_racing_renames_between_two_mounts(pair: tuple[Path, Path, Path]) -> None:
    """Whoever loses a race gets ENOENT or EEXIST, never EIO, and the file is in exactly one place."""
    import threading

    one, two, source = pair
    surprises: list[str] = []

    def push(root: Path, here: str, there: str) -> None:
        for _ in range(300):
            result = outcome(os.rename, root / here, root / there)
            if result not in (None, "ENOENT"):
                surprises.append(result)

    (source / "a").write_text("ball")
    threads = [
        threading.Thread(target=push, args=(one, "a", "b")),
        threading.Thread(target=push, args=(two, "b", "a")),
        threading.Thread(target=push, args=(one, "b", "c")),
        threading.Thread(target=push, args=(two, "c", "a")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert surprises == []
    assert len(os.listdir(source)) == 1
