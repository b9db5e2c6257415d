"""What an application sees of a budget, through a real mount."""

import contextlib
import errno
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidemount.host import budget
from tests.sidecar.directory.harness import Mounted
from tests.sidecar.volume.volumes import KI, MI, df, held, make_volume, mount, used

pytestmark = [pytest.mark.fuse, pytest.mark.root]


@pytest.fixture
def volume(tmp_path: Path, source: Path) -> Iterator[Mounted]:
    """The volume, mounted."""
    with mount(tmp_path / "one", source) as volume:
        yield volume


def refused(operation: object, *arguments: object) -> bool:
    """Tell whether an operation is refused with EDQUOT; any other error is raised."""
    assert callable(operation)
    try:
        operation(*arguments)
    except OSError as error:
        if error.errno != errno.EDQUOT:
            raise
        return True
    return False


def test_a_volume_is_as_large_as_its_limit_until_it_is_expanded(volume: Mounted) -> None:
    """S4-14, S4-15, S4-17, S4-43, S4-44."""
    assert df(volume.path) == (MI, MI)
    fill = ["dd", "if=/dev/zero", "bs=64K", "conv=fsync"]
    subprocess.run([*fill, "count=12", f"of={volume.path}/a"], check=True, capture_output=True)
    assert df(volume.path) == (MI, 256 * KI)
    at_once = ["dd", "if=/dev/zero", "bs=512K", "count=1", f"of={volume.path}/b"]
    whole = subprocess.run(at_once, capture_output=True, text=True)
    assert whole.returncode
    assert "Disk quota exceeded" in whole.stderr
    assert used(volume.source) == held(volume.source) == 768 * KI
    more = subprocess.run([*fill, "count=8", f"of={volume.path}/b"], capture_output=True, text=True)
    assert more.returncode
    assert "Disk quota exceeded" in more.stderr
    assert (volume.path / "a").stat().st_size == 768 * KI
    assert used(volume.source) == held(volume.source) <= MI
    (volume.path / "b").unlink()
    assert used(volume.source) == 768 * KI
    budget.raise_limit(str(volume.source), 4 * MI)
    assert df(volume.path) == (4 * MI, 4 * MI - 768 * KI)
    subprocess.run([*fill, "count=8", f"of={volume.path}/b"], check=True, capture_output=True)
    assert used(volume.source) == held(volume.source) == 1280 * KI


def test_a_write_that_does_not_fit_is_not_there_in_part(volume: Mounted) -> None:
    """What begins within a page the kernel sends in two."""
    with open(volume.path / "f", "wb+", buffering=0) as file:
        assert os.pwrite(file.fileno(), b"x" * (MI - 4 * KI), 0) == MI - 4 * KI
        assert refused(os.pwrite, file.fileno(), b"y" * 12 * KI, MI - 8 * KI)
        assert os.pread(file.fileno(), 8 * KI, MI - 8 * KI) == b"x" * 4 * KI
        assert os.pwrite(file.fileno(), b"z" * 4 * KI, MI - 4 * KI) == 4 * KI
        assert refused(os.pwrite, file.fileno(), b"z", MI)
        assert os.pwrite(file.fileno(), b"z", MI - 1) == 1
    assert used(volume.source) == held(volume.source) == MI


@pytest.mark.parametrize("offset", [MI, MI + 1, 1 << 40, 1 << 62, (1 << 63) - 4096 - 1])
def test_a_hole_counts(volume: Mounted, offset: int) -> None:
    with open(volume.path / "f", "wb", buffering=0) as file:
        assert refused(os.pwrite, file.fileno(), b"x", offset)
        assert refused(os.ftruncate, file.fileno(), offset + 1)
        assert used(volume.source) == held(volume.source) == 0
        assert os.pwrite(file.fileno(), b"x" * 100, MI - 50) == 50
    assert used(volume.source) == held(volume.source) == MI


def test_what_is_given_back_can_be_used_again(volume: Mounted) -> None:
    one, other = volume.path / "one", volume.path / "other"
    for give_back in (
        one.unlink,
        lambda: os.truncate(one, 0),
        lambda: one.write_bytes(b""),
        lambda: other.rename(one),
    ):
        one.write_bytes(b"x" * MI)
        assert refused(other.write_bytes, b"y")
        give_back()
        assert used(volume.source) == held(volume.source) == 0
    assert df(volume.path) == (MI, MI)


def test_appending_and_extending(volume: Mounted) -> None:
    with open(volume.path / "f", "ab", buffering=0) as file:
        for _ in range(4):
            file.write(b"x" * 100_000)
        assert used(volume.source) == 400_000
        os.ftruncate(file.fileno(), MI)
        assert used(volume.source) == MI
        assert refused(file.write, b"x")
        assert refused(os.ftruncate, file.fileno(), MI + 1)
        os.ftruncate(file.fileno(), 5)
        assert file.write(b"x" * 10) == 10
    assert used(volume.source) == held(volume.source) == 15


def test_overwriting_is_free(volume: Mounted) -> None:
    (volume.path / "f").write_bytes(b"x" * MI)
    with open(volume.path / "f", "r+b", buffering=0) as file:
        assert file.write(b"y" * MI) == MI
        with mmap.mmap(file.fileno(), MI) as memory:
            memory[:100] = b"z" * 100
            memory.flush()
    assert (volume.source / "data" / "f").read_bytes()[:101] == b"z" * 100 + b"y"
    assert used(volume.source) == MI


def test_hard_links_count_once(volume: Mounted) -> None:
    names = [volume.path / name for name in "abc"]
    names[0].write_bytes(b"x" * MI)
    for name in names[1:]:
        os.link(names[0], name)
    assert used(volume.source) == MI
    names[0].unlink()
    os.rename(names[1], names[2])  # two names of one file: nothing happens
    names[1].unlink()
    assert used(volume.source) == MI
    names[2].unlink()
    assert used(volume.source) == 0


def test_a_removed_file_counts_until_it_is_closed(volume: Mounted) -> None:
    path = volume.path / "f"
    with open(path, "w+b", buffering=0) as file, open(path, "r+b", buffering=0) as again:
        file.write(b"x" * 1000)
        path.unlink()
        assert used(volume.source) == 1000
        again.seek(1000)
        again.write(b"x" * 500)
        assert used(volume.source) == 1500
        os.ftruncate(file.fileno(), MI)
        assert refused((volume.path / "g").write_bytes, b"y")
        os.ftruncate(file.fileno(), 700)
        assert used(volume.source) == 700
        file.close()
        os.stat(path.parent)
        assert used(volume.source) == 700
    wait_until_used(volume, 0)


def test_a_replaced_file_counts_until_it_is_closed(volume: Mounted) -> None:
    old, new = volume.path / "old", volume.path / "new"
    new.write_bytes(b"x" * 10)
    with open(old, "wb", buffering=0) as file:
        file.write(b"x" * 1000)
        new.rename(old)
        assert used(volume.source) == 1010
    wait_until_used(volume, 10)


def test_a_file_that_is_mapped_only_counts(volume: Mounted) -> None:
    path = volume.path / "f"
    path.write_bytes(b"x" * 4096)
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 4096)
    path.unlink()
    assert used(volume.source) == 4096
    memory.close()
    wait_until_used(volume, 0)


def test_a_file_that_is_opened_again_without_a_name_counts_again(volume: Mounted) -> None:
    path = volume.path / "f"
    path.write_bytes(b"x" * 4096)
    held_open = os.open(path, os.O_PATH)
    path.unlink()
    assert used(volume.source) == 0
    with open(f"/proc/self/fd/{held_open}", "r+b", buffering=0) as file:
        assert used(volume.source) == 4096
        os.ftruncate(file.fileno(), 5000)
        assert used(volume.source) == 5000
    os.close(held_open)
    wait_until_used(volume, 0)


def test_sparse_copies_count_by_their_size(volume: Mounted) -> None:
    with open(volume.path / "f", "wb") as file:
        file.truncate(600 * KI)
    copy = subprocess.run(
        ["cp", "--sparse=always", volume.path / "f", volume.path / "g"], capture_output=True, text=True
    )
    assert "Disk quota exceeded" in copy.stderr
    assert used(volume.source) == held(volume.source)


def test_a_path_too_long_to_be_noted_counts(volume: Mounted) -> None:
    at = os.open(volume.path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    file = os.open("f", os.O_CREAT | os.O_RDWR, dir_fd=at)
    os.write(file, b"x" * 1000)
    assert used(volume.source) == 1000
    os.link("f", "g", src_dir_fd=at, dst_dir_fd=at)
    os.unlink("f", dir_fd=at)
    assert used(volume.source) == 1000
    os.close(file)
    os.unlink("g", dir_fd=at)
    os.close(at)
    wait_until_used(volume, 0)
    assert sorted(os.listdir(volume.source)) == ["budget", "data"]


def test_nobody_sees_the_budget(volume: Mounted) -> None:
    assert os.listdir(volume.path) == []
    assert not (volume.path / ".." / "budget").exists()


def test_two_mounts_share_a_budget(tmp_path: Path, volume: Mounted) -> None:
    with mount(tmp_path / "two", volume.source) as other:
        (volume.path / "a").write_bytes(b"x" * 600 * KI)
        assert df(other.path) == (MI, 424 * KI)
        assert refused((other.path / "b").write_bytes, b"y" * 600 * KI)
        (other.path / "a").unlink()
        (volume.path / "b").unlink()
        assert df(volume.path) == (MI, MI)


def test_a_mount_that_dies_gives_back_what_had_no_name(tmp_path: Path, volume: Mounted) -> None:
    with contextlib.ExitStack() as until_dead:
        other = until_dead.enter_context(mount(tmp_path / "two", volume.source))
        file = os.open(other.path / "f", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"x" * MI)
        (other.path / "f").unlink()
        assert used(volume.source) == MI
        assert refused((volume.path / "g").write_bytes, b"y")
        other.process.kill()
        other.process.wait()
        with contextlib.suppress(OSError):
            os.close(file)
        with pytest.raises(AssertionError, match="the daemon died"):
            until_dead.close()
    (volume.path / "g").write_bytes(b"y" * MI)
    assert used(volume.source) == held(volume.source) == MI


@pytest.mark.parametrize("limit", [MI, 1000, 64 * KI + 1, 3 * 512])
def test_the_size_is_the_limit_to_the_byte(tmp_path: Path, limit: int) -> None:
    source = make_volume(tmp_path / "odd", limit)
    with mount(tmp_path / "one", source) as volume:
        found = os.statvfs(volume.path)
        assert found.f_blocks * found.f_frsize == found.f_blocks * found.f_bsize == limit
        with open(volume.path / "f", "wb", buffering=0) as file:
            assert file.write(b"x" * limit) == limit
            assert refused(file.write, b"x")
        assert df(volume.path) == (limit, 0)


def test_a_thin_volume_shows_the_store(tmp_path: Path) -> None:
    """S4-18."""
    source = make_volume(tmp_path / "thin", 0)
    with mount(tmp_path / "one", source) as volume:
        assert df(volume.path)[0] == df(source)[0]
        (volume.path / "f").write_bytes(b"x" * 2 * MI)
        budget.raise_limit(str(source), MI)
        (volume.path / "f").write_bytes(b"x" * 2 * MI)
        assert df(volume.path)[0] == df(source)[0]


def test_a_volume_can_be_mounted_read_only_and_beneath_a_sub_path(tmp_path: Path, source: Path) -> None:
    (source / "data" / "d").mkdir()
    (source / "data" / "d" / "f").write_bytes(b"x" * 10)
    budget.set_used(str(source), 10)
    with mount(tmp_path / "one", source, "--read-only", "--sub-path", "d") as volume:
        assert (volume.path / "f").read_bytes() == b"x" * 10
        assert df(volume.path)[0] == MI
    with mount(tmp_path / "two", source, "--sub-path", "d") as volume:
        (volume.path / "f").write_bytes(b"x" * 30)
        assert used(source) == 30


@pytest.mark.parametrize("storage", ["local", "remote"])
def test_collected_writes_count_when_they_are_written(tmp_path: Path, source: Path, storage: str) -> None:
    with mount(tmp_path / "one", source, writeback=True, storage=storage) as volume:
        with open(volume.path / "f", "wb", buffering=0) as file:
            file.write(b"x" * 768 * KI)
            os.fsync(file.fileno())
            assert used(source) == 768 * KI
        with open(volume.path / "g", "wb", buffering=0) as file:
            file.write(b"x" * 512 * KI)
            assert refused(os.fsync, file.fileno())
        (volume.path / "g").unlink()
        assert used(source) == held(source)
        (volume.path / "f").unlink()
        wait_until_used(volume, 0)


def test_a_remote_store_counts_as_well(tmp_path: Path, source: Path) -> None:
    with mount(tmp_path / "one", source, storage="remote") as volume:
        (volume.path / "f").write_bytes(b"x" * MI)
        assert refused((volume.path / "g").write_bytes, b"y")
        with open(volume.path / "f", "r+b", buffering=0) as file:
            (volume.path / "f").unlink()
            os.ftruncate(file.fileno(), 10)
            assert used(source) == 10
        wait_until_used(volume, 0)


def test_ten_thousand_files_are_given_back(volume: Mounted) -> None:
    directory = volume.path / "d"
    directory.mkdir()
    for number in range(2500):
        (directory / str(number)).write_bytes(b"x" * 100)
    assert used(volume.source) == 250_000
    subprocess.run(["rm", "-r", directory], check=True)
    assert used(volume.source) == 0


def wait_until_used(volume: Mounted, size: int) -> None:
    """Wait until the kernel has told of closing, which it does after close(2) has returned."""
    for _ in range(5000):
        os.statvfs(volume.path)
        if used(volume.source) == size:
            return
    assert used(volume.source) == size
