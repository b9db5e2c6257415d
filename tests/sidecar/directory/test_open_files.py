"""Open files on the mount against the same on the bare directory: content, sizes, positions, lost names, mappings, locks."""

import fcntl
import mmap
import multiprocessing
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.directory.conftest import Twins
from tests.sidecar.directory.harness import outcome, run_as

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.root,
    pytest.mark.parametrize("volume", ["trio-local", "poll-remote"], indirect=True, scope="module"),
]

MIB = 1 << 20


def _same(twins: Twins, scenario: Callable[[Path], Any]) -> Any:
    bare = scenario(twins.bare)
    assert scenario(twins.mount) == bare
    return bare


def test_two_appenders_never_overwrite_each_other(twins: Twins) -> None:
    def scenario(root: Path) -> int:
        workers = [
            multiprocessing.get_context("fork").Process(target=_append_lines, args=(root / "log", letter))
            for letter in "ab"
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        lines = (root / "log").read_text().splitlines()
        assert all(len(set(line)) == 1 and len(line) == 100 for line in lines)
        return len(lines)

    assert _same(twins, scenario) == 400


def _append_lines(path: Path, letter: str) -> None:
    for _ in range(200):
        with open(path, "ab", buffering=0) as file:
            file.write(letter.encode() * 100 + b"\n")


def test_append_after_seek_and_through_two_descriptors(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        first = os.open(root / "f", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        second = os.open(root / "f", os.O_WRONLY | os.O_APPEND)
        results: list[Any] = []
        for fd, text in ((first, b"one"), (second, b"two"), (first, b"three")):
            os.lseek(fd, 0, os.SEEK_SET)
            results.append(os.write(fd, text))
            results.append(os.lseek(fd, 0, os.SEEK_CUR))
        results.append(os.pread(first, 100, 0).decode())
        os.close(first)
        os.close(second)
        return results

    assert _same(twins, scenario)[-1] == "onetwothree"


def test_sparse_file_beyond_four_gibibytes(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        fd = os.open(root / "f", os.O_RDWR | os.O_CREAT, 0o644)
        far = 5 * (1 << 30) + 12345
        results = [os.pwrite(fd, b"far away", far), os.pread(fd, 20, far - 5).hex(), os.fstat(fd).st_size]
        os.fsync(fd)
        results += [os.fstat(fd).st_blocks < 100, os.pread(fd, 8, 1 << 32).hex()]
        results += [outcome(os.pwrite, fd, b"x", (1 << 63) - 1)]
        os.close(fd)
        return results

    assert _same(twins, scenario)[2] == 5 * (1 << 30) + 12353


def test_content_of_eight_mebibytes_is_the_same_for_another_user(twins: Twins) -> None:
    """S4-38: 8 MiB random file, the same bytes for another user."""
    content = random.Random(8).randbytes(8 * MIB)
    (twins.mount / "f").write_bytes(content)
    (twins.mount / "f").chmod(0o644)
    assert (twins.behind / "f").read_bytes() == content
    twins.mount.chmod(0o755)

    def checksum() -> int:
        import zlib

        return zlib.crc32(Path("f").read_bytes())

    import zlib

    assert run_as(1234, 1234, twins.mount, checksum) == zlib.crc32(content)


def test_shared_mapping_reads_and_writes(twins: Twins) -> None:
    def scenario(root: Path) -> str:
        fd = os.open(root / "f", os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(fd, 3 * 4096 + 17)
        with mmap.mmap(fd, 0) as mapping:
            mapping[5000:5005] = b"hello"
            os.pwrite(fd, b"world", 9000)
            seen = bytes(mapping[9000:9005])
            mapping.flush()
        read = os.pread(fd, 5, 5000)
        os.close(fd)
        return (seen + read).decode() + str((root / "f").stat().st_size)

    assert _same(twins, scenario) == "worldhello12305"
    assert (twins.behind / "f").read_bytes()[5000:5005] == b"hello"


def test_mapping_outlives_descriptor_and_name(twins: Twins) -> None:
    def scenario(root: Path) -> str:
        fd = os.open(root / "f", os.O_RDWR | os.O_CREAT, 0o644)
        os.write(fd, b"x" * 8192)
        mapping = mmap.mmap(fd, 8192)
        os.close(fd)
        os.unlink(root / "f")
        (root / "f").write_bytes(b"new")
        mapping[0:3] = b"old"
        mapping.flush()
        answer = bytes(mapping[0:4]).decode() + (root / "f").read_text()
        mapping.close()
        return answer

    assert _same(twins, scenario) == "oldxnew"


def test_unbuffered_file_descriptor(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        fd = os.open(root / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
        buffer = mmap.mmap(-1, 8192)
        buffer[:] = bytes(range(256)) * 32
        results: list[Any] = [os.writev(fd, [buffer]), os.lseek(fd, 0, os.SEEK_SET)]
        again = mmap.mmap(-1, 8192)
        results += [os.preadv(fd, [again], 0), again[:] == buffer[:], os.preadv(fd, [again], 8192)]
        os.close(fd)
        return results

    assert _same(twins, scenario) == [8192, 0, 8192, True, 0]


def test_truncate_while_open(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        fd = os.open(root / "f", os.O_RDWR | os.O_CREAT, 0o644)
        reader = os.open(root / "f", os.O_RDONLY)
        os.write(fd, b"a" * 10000)
        results: list[Any] = [len(os.pread(reader, 20000, 0))]
        os.truncate(root / "f", 100)
        results += [len(os.pread(reader, 20000, 0)), os.fstat(fd).st_size]
        os.ftruncate(fd, 5000)
        results += [os.pread(reader, 20000, 0).count(b"\0"), os.write(fd, b"b"), os.fstat(reader).st_size]
        open(root / "f", "wb").close()
        results += [os.fstat(fd).st_size, outcome(os.ftruncate, reader, 0)]
        os.close(fd)
        os.close(reader)
        return results

    assert _same(twins, scenario) == [10000, 100, 100, 4900, 1, 10001, 0, "EINVAL"]


def test_file_without_a_name_keeps_everything_but_its_name(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        fd = os.open(root / "f", os.O_RDWR | os.O_CREAT, 0o644)
        path_only = os.open(root / "f", os.O_PATH)
        os.write(fd, b"content")
        os.unlink(root / "f")
        os.fchmod(fd, 0o600)
        os.fchown(fd, 12, 34)
        os.utime(fd, ns=(5, 6))
        os.ftruncate(fd, 4)
        found = os.fstat(fd)
        results: list[Any] = [found.st_nlink, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid]
        results += [found.st_mtime_ns > 6, found.st_size, os.pread(fd, 10, 0).decode()]
        os.setxattr(fd, "user.a", b"1")
        results += [os.getxattr(fd, "user.a").decode(), os.listxattr(fd)]
        os.close(fd)
        found = os.fstat(path_only)
        results += [found.st_nlink, found.st_size, os.listdir(root)]
        os.close(path_only)
        return results

    assert _same(twins, scenario)[-3:] == [0, 4, []]


def test_rename_over_an_open_file_leaves_both_contents_reachable(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        (root / "old").write_bytes(b"old content")
        (root / "new").write_bytes(b"new")
        old = os.open(root / "old", os.O_RDWR)
        new = os.open(root / "new", os.O_RDWR)
        os.rename(root / "new", root / "old")
        os.pwrite(old, b"OLD", 0)
        os.pwrite(new, b"NEW", 0)
        results: list[Any] = [os.pread(old, 20, 0).decode(), os.pread(new, 20, 0).decode()]
        results += [(root / "old").read_text(), os.fstat(old).st_nlink, os.fstat(new).st_nlink]
        results += [os.path.samestat(os.fstat(new), os.stat(root / "old"))]
        os.close(old)
        os.close(new)
        return results

    assert _same(twins, scenario) == ["OLD content", "NEW", "NEW", 0, 1, True]


def test_exchange_of_open_files(twins: Twins) -> None:
    from sidecar.directory.syscalls import AT_FDCWD, RENAME_EXCHANGE, renameat2

    def scenario(root: Path) -> list[Any]:
        (root / "a").write_bytes(b"aaa")
        (root / "b").write_bytes(b"bbb")
        fd = os.open(root / "a", os.O_RDWR)
        renameat2(AT_FDCWD, os.fsencode(root / "a"), AT_FDCWD, os.fsencode(root / "b"), RENAME_EXCHANGE)
        os.write(fd, b"AAA")
        results: list[Any] = [(root / "a").read_text(), (root / "b").read_text()]
        os.unlink(root / "b")
        results += [os.fstat(fd).st_nlink, os.listdir(root)]
        os.close(fd)
        return results

    assert _same(twins, scenario) == ["bbb", "AAA", 0, ["a"]]


def test_removed_directory_that_is_still_somebodys_working_directory(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        os.mkdir(root / "d")
        fd = os.open(root / "d", os.O_RDONLY)
        os.rmdir(root / "d")
        results: list[Any] = [os.fstat(fd).st_nlink, outcome(os.listdir, fd)]
        results += [outcome(os.open, "x", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)]
        results += [outcome(os.mkdir, "x", dir_fd=fd), outcome(os.stat, "x", dir_fd=fd)]
        os.close(fd)
        return results

    assert _same(twins, scenario) == [0, [], "ENOENT", "ENOENT", "ENOENT"]


def test_directory_renamed_under_open_descriptors(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        os.makedirs(root / "a/b/c")
        fd = os.open(root / "a/b/c", os.O_RDONLY)
        file = os.open(root / "a/b/c/f", os.O_RDWR | os.O_CREAT, 0o644)
        os.rename(root / "a/b", root / "z")
        os.write(file, b"moved")
        os.close(os.open("g", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
        results: list[Any] = [sorted(os.listdir(fd)), (root / "z/c/f").read_text(), os.listdir(root / "a")]
        results += [os.stat("..", dir_fd=fd).st_ino == os.stat(root / "z").st_ino]
        os.close(fd)
        os.close(file)
        return results

    assert _same(twins, scenario) == [["f", "g"], "moved", [], True]


def test_locks_between_processes(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        fd = os.open(root / "f", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)

        def contend() -> list[Any]:
            other = os.open("f", os.O_RDWR)
            return [
                outcome(fcntl.lockf, other, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5),
                outcome(fcntl.lockf, other, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 10),
                outcome(fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB),
            ]

        results = [run_as(0, 0, root, contend)]
        fcntl.flock(fd, fcntl.LOCK_EX)
        results.append(run_as(0, 0, root, contend))
        os.close(fd)
        return results

    assert _same(twins, scenario) == [["EAGAIN", None, None], ["EAGAIN", None, "EAGAIN"]]


def test_sendfile_and_copies_within_the_mount(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        content = random.Random(1).randbytes(300_000)
        (root / "from").write_bytes(content)
        source = os.open(root / "from", os.O_RDONLY)
        results: list[Any] = []
        for name in ("sendfile", "copy"):
            target = os.open(root / name, os.O_RDWR | os.O_CREAT, 0o644)
            done = 0
            while done < len(content):
                if name == "sendfile":
                    done += os.sendfile(target, source, done, len(content) - done)
                else:
                    done += os.copy_file_range(source, target, len(content) - done, done)
            os.close(target)
            results.append((root / name).read_bytes() == content)
        os.close(source)
        return results

    assert _same(twins, scenario) == [True, True]


def test_named_pipe_and_socket_work_through_the_mount(twins: Twins) -> None:
    import socket

    os.mkfifo(twins.mount / "p")
    reader = os.open(twins.mount / "p", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(twins.mount / "p", os.O_WRONLY)
    os.write(writer, b"through")
    assert os.read(reader, 20) == b"through"
    os.close(reader)
    os.close(writer)
    here = os.getcwd()
    os.chdir(twins.mount)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind("s")
            server.listen()
            client.connect("s")
            connection, _ = server.accept()
            client.send(b"hello")
            assert connection.recv(10) == b"hello"
            connection.close()
    finally:
        os.chdir(here)
    assert stat.S_ISSOCK((twins.behind / "s").stat().st_mode)


def test_devices_cannot_be_made_without_the_capability(twins: Twins) -> None:
    device = os.makedev(1, 3)
    assert outcome(os.mknod, twins.mount / "null", stat.S_IFCHR | 0o666, device) == "EPERM"
    assert os.listdir(twins.behind) == []


def test_device_of_the_source_cannot_be_opened_through_the_mount(twins: Twins) -> None:
    os.mknod(twins.behind / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert os.stat(twins.mount / "null").st_rdev == os.makedev(1, 3)
    assert outcome(os.open, twins.mount / "null", os.O_RDWR) == "EACCES"


def test_operations_that_the_protocol_library_does_not_offer(twins: Twins) -> None:
    """What pyfuse3 has no handler for: the kernel's answers, which applications know how to live with."""
    fd = os.open(twins.mount / "f", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b"x" * 10000)
    os.ftruncate(fd, 1_000_000)
    # Without FUSE_LSEEK all of a file is data and its end is the only hole.
    assert os.lseek(fd, 500_000, os.SEEK_DATA) == 500_000
    assert os.lseek(fd, 500_000, os.SEEK_HOLE) == 1_000_000
    assert outcome(os.lseek, fd, 1_000_000, os.SEEK_DATA) == "ENXIO"
    assert outcome(os.open, twins.mount, os.O_TMPFILE | os.O_RDWR, 0o600) == "ENOTSUP"
    get_flags = 0x80086601  # FS_IOC_GETFLAGS, which lsattr uses
    assert outcome(fcntl.ioctl, fd, get_flags, b"\0" * 8) == "ENOTTY"
    os.posix_fallocate(fd, 0, 2_000_000)  # the C library writes zeros where fallocate is not supported
    assert os.fstat(fd).st_size == 2_000_000
    assert os.pread(fd, 5, 9998) == b"xx\0\0\0"
    os.close(fd)


def test_synchronous_writes_and_syncs(twins: Twins) -> None:
    def scenario(root: Path) -> list[Any]:
        fd = os.open(root / "f", os.O_RDWR | os.O_CREAT | os.O_SYNC, 0o644)
        results: list[Any] = [os.write(fd, b"abc"), outcome(os.fsync, fd), outcome(os.fdatasync, fd)]
        directory = os.open(root, os.O_RDONLY)
        results.append(outcome(os.fsync, directory))
        os.close(directory)
        os.close(fd)
        return results

    assert _same(twins, scenario) == [3, None, None, None]


def test_statvfs_is_the_sources(twins: Twins) -> None:
    """S4-14, S4-19: `df` in the pod shows the source."""
    bare, mount = os.statvfs(twins.behind), os.statvfs(twins.mount)
    for field in ("f_bsize", "f_frsize", "f_blocks", "f_files", "f_namemax"):
        assert getattr(mount, field) == getattr(bare, field)
    assert abs(mount.f_bavail - bare.f_bavail) < bare.f_blocks / 100


def test_inode_numbers_are_the_sources_and_stay(twins: Twins) -> None:
    (twins.mount / "f").write_text("x")
    os.link(twins.mount / "f", twins.mount / "g")
    os.mkdir(twins.mount / "d")
    for name in ("f", "g", "d"):
        assert (twins.mount / name).stat().st_ino == (twins.behind / name).stat().st_ino
    entries = {entry.name: entry.inode() for entry in os.scandir(twins.mount)}
    assert entries == {entry.name: entry.inode() for entry in os.scandir(twins.behind)}
    Path("/proc/sys/vm/drop_caches").write_text("2")
    assert (twins.mount / "f").stat().st_ino == (twins.behind / "f").stat().st_ino
    fd = os.open(twins.mount / "f", os.O_RDONLY)
    assert os.fstat(fd).st_ino == (twins.behind / "f").stat().st_ino
    os.close(fd)
