"""Names of any bytes, deep and wide trees, listings under change, on the mount against the bare directory."""

import contextlib
import os
import random
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sidecar.directory.conftest import Twins
from tests.sidecar.directory.harness import Mounted, outcome

pytestmark = [pytest.mark.fuse, pytest.mark.root]


def _listed(directory: Path) -> list[bytes]:
    return sorted(os.listdir(os.fsencode(directory)))


def test_names_of_any_bytes(twins: Twins) -> None:
    odd = [bytes([number]) for number in range(1, 256) if number not in (0x2E, 0x2F)]
    odd += [
        b"...",
        b". ",
        b"-rf",
        b"new\nline",
        "ünïcode-名前".encode(),
        b"\xff\xfe" * 100,
        b"a" * 255,
        b"%s$(x)`",
    ]
    for name in odd:
        path = os.path.join(os.fsencode(twins.mount), name)
        with open(path, "wb") as file:
            file.write(name)
    assert _listed(twins.mount) == _listed(twins.behind) == sorted(odd)
    for name in odd:
        with open(os.path.join(os.fsencode(twins.behind), name), "rb") as file:
            assert file.read() == name
        os.rename(
            os.path.join(os.fsencode(twins.mount), name), os.path.join(os.fsencode(twins.mount), name[::-1])
        )
    for name in {name[::-1] for name in odd}:
        os.unlink(os.path.join(os.fsencode(twins.mount), name))
    assert _listed(twins.behind) == []


def test_link_targets_of_any_bytes(twins: Twins) -> None:
    targets = [b"\xff\x01" * 50, b"/absolute", b"../..", b"t" * 4095, "ä/ö".encode()]
    for number, target in enumerate(targets):
        os.symlink(target, os.fsencode(twins.mount / str(number)))
        assert os.readlink(os.fsencode(twins.mount / str(number))) == target
        assert os.readlink(os.fsencode(twins.behind / str(number))) == target


def test_absolute_link_leads_where_the_caller_is_not_into_the_daemon(twins: Twins) -> None:
    os.symlink("/etc/hostname", twins.mount / "l")
    assert stat.S_ISLNK(os.lstat(twins.mount / "l").st_mode)
    os.symlink(twins.bare, twins.mount / "out")
    (twins.bare / "f").write_text("bare")
    assert (
        twins.mount / "out/f"
    ).read_text() == "bare"  # the kernel follows it for the caller, in the caller's tree


def test_tree_deeper_than_any_path(twins: Twins, volume: Mounted) -> None:
    """More levels than Python's recursion limit or PATH_MAX would allow, and than the daemon keeps open."""
    levels = 1500
    fd = os.open(twins.mount, os.O_RDONLY)
    for level in range(levels):
        os.mkdir(f"d{level}", dir_fd=fd)
        below = os.open(f"d{level}", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    assert os.stat("f", dir_fd=fd).st_size == 0
    os.rename(twins.mount / "d0", twins.mount / "moved")
    os.close(os.open("g", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    assert sorted(os.listdir(fd)) == ["f", "g"]
    for name in ("f", "g"):
        os.unlink(name, dir_fd=fd)
    for level in reversed(range(1, levels)):
        above = os.open("..", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        os.rmdir(f"d{level}", dir_fd=above)
        fd = above
    os.close(fd)
    os.rmdir(twins.mount / "moved")
    assert os.listdir(twins.behind) == []


def test_directory_of_very_many_entries(twins: Twins) -> None:
    count = 20_000
    for number in range(count):
        os.close(os.open(twins.behind / f"file{number:05d}", os.O_CREAT | os.O_WRONLY, 0o644))
    names = os.listdir(twins.mount)
    assert len(names) == count
    assert len(set(names)) == count


def test_hard_links_at_every_buffer_boundary(twins: Twins) -> None:
    (twins.behind / "f").write_text("")
    for number in range(500):
        os.link(twins.behind / "f", twins.behind / f"link{number}-{'x' * (number % 60)}")
    with os.scandir(twins.mount) as entries:
        listed = [(entry.name, entry.inode()) for entry in entries]
    assert len(listed) == len(set(listed)) == 501
    assert {inode for _, inode in listed} == {(twins.behind / "f").stat().st_ino}
    assert (twins.mount / "f").stat().st_nlink == 501


def test_listing_survives_removal_of_what_it_returned(twins: Twins) -> None:
    names = {f"f{number}" for number in range(3000)}
    for name in names:
        (twins.behind / name).touch()
    seen = []
    with os.scandir(twins.mount) as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(twins.mount / entry.name)
    assert len(seen) == len(set(seen))
    assert set(seen) == names
    assert os.listdir(twins.mount) == []


def test_listing_under_concurrent_change_returns_every_lasting_entry_once(twins: Twins) -> None:
    lasting = {f"lasting{number}" for number in range(1500)}
    for name in lasting:
        (twins.behind / name).touch()
    stop = threading.Event()

    def churn(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            name = f"churn{seed}-{chance.randrange(50)}"
            with contextlib.suppress(FileNotFoundError):
                match chance.randrange(4):
                    case 0:
                        (twins.mount / name).touch()
                    case 1:
                        os.unlink(twins.mount / name)
                    case 2:
                        os.rename(twins.mount / name, twins.mount / f"churn{seed}-{chance.randrange(50)}")
                    case 3:
                        os.link(twins.mount / name, twins.mount / f"extra{seed}-{chance.randrange(10**9)}")

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            listed = [name for name in os.listdir(twins.mount) if name.startswith("lasting")]
            assert len(listed) == len(lasting)
            assert set(listed) == lasting
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_rewinding_and_seeking_a_listing(twins: Twins) -> None:
    for number in range(200):
        (twins.behind / f"f{number}").touch()
    fd = os.open(twins.mount, os.O_RDONLY)
    first = list(_dirents(fd))
    os.lseek(fd, 0, os.SEEK_SET)
    assert list(_dirents(fd)) == first
    (twins.mount / "new").touch()
    os.lseek(fd, 0, os.SEEK_SET)
    assert b"new" in [name for name, _ in _dirents(fd)]
    for index in (0, 50, 150):
        os.lseek(fd, first[index][1], os.SEEK_SET)
        rest = [name for name, _ in _dirents(fd) if name != b"new"]
        assert rest == [name for name, _ in first[index + 1 :]]
    os.close(fd)
    assert {b".", b".."} <= {name for name, _ in first}


def _dirents(fd: int) -> Iterator[tuple[bytes, int]]:
    from sidecar.directory.store import parse_dirents
    from sidecar.directory.syscalls import getdents64

    while content := getdents64(fd, 2048):
        for listed in parse_dirents(content):
            yield listed.name, listed.position


def test_dot_and_dot_dot_have_the_sources_inode_numbers(twins: Twins, volume: Mounted) -> None:
    os.mkdir(twins.mount / "d")
    fd = os.open(twins.mount / "d", os.O_RDONLY)
    from sidecar.directory.store import parse_dirents
    from sidecar.directory.syscalls import getdents64

    inodes = {listed.name: listed.ino for listed in parse_dirents(getdents64(fd, 4096))}
    os.close(fd)
    assert inodes == {
        b".": (twins.behind / "d").stat().st_ino,
        b"..": twins.behind.stat().st_ino,
    }
    fd = os.open(volume.path, os.O_RDONLY)
    root = {listed.name: listed.ino for listed in parse_dirents(getdents64(fd, 4096))}
    os.close(fd)
    assert root[b".."] == root[b"."] == volume.source.stat().st_ino  # nothing above the root shows


def test_mount_can_be_walked_by_file_handle(twins: Twins) -> None:
    """open_by_handle_at asks for "." and ".." of nodes: what an NFS export of the mount would do."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs(twins.mount / "a/b")
    (twins.mount / "a/b/f").write_text("by handle")

    class Handle(ctypes.Structure):
        _fields_ = (("length", ctypes.c_uint), ("kind", ctypes.c_int), ("content", ctypes.c_ubyte * 128))

    handle = Handle(length=128)
    mount_id = ctypes.c_int()
    path = os.fsencode(twins.mount / "a/b/f")
    assert libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount_id), 0) == 0
    root = os.open(twins.mount, os.O_RDONLY)
    fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    assert os.read(fd, 20) == b"by handle"
    os.unlink(path)
    os.close(fd)
    os.close(root)


def test_many_threads_make_rename_and_list_at_once(twins: Twins) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            chance = random.Random(number)
            own = twins.mount / f"own{number}"
            os.mkdir(own)
            for step in range(150):
                path = own / f"f{step}"
                path.write_bytes(bytes([number]) * step)
                os.rename(path, twins.mount / f"shared{number}-{step}")
                assert (twins.mount / f"shared{number}-{step}").read_bytes() == bytes([number]) * step
                os.listdir(twins.mount)
                if chance.random() < 0.7:
                    os.unlink(twins.mount / f"shared{number}-{step}")
            os.rmdir(own)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert _listed(twins.mount) == _listed(twins.behind)


def test_name_that_is_a_path_or_empty_never_reaches_the_store(twins: Twins) -> None:
    assert outcome(os.mkdir, os.path.join(twins.mount, "missing/x")) == "ENOENT"
    assert outcome(os.stat, os.path.join(twins.mount, "")) is not None
    assert outcome(os.mkdir, os.path.join(twins.mount, ".")) == "EEXIST"
    assert outcome(os.mkdir, os.path.join(twins.mount, "..")) == "EEXIST"
