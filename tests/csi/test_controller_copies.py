"""Copies of a volume's files: everything is kept, a second round copies only what changed, and a crash loses little."""

import errno
import os
import socket
import stat
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from csi.faults import NotFound, WrongState
from csi.provision_plan import VolumePlan
from csi.provision_request import CapacityRange, SnapshotRequest
from csi.volume_copy import Copied, Round, TreeCopy, filesystem_clock
from csi.volume_pool import DirectoryPool
from csi.volume_state import Content, Kind
from csi.volume_tree import Stop, opened_root, remove_tree
from sidemount.model.errors import HostFailure, NotReady, OperationPending
from tests.host.mount_node import scratch_directory

pytestmark = pytest.mark.root
# Version 2; user rwx, user 1234 rwx, group r, mask rwx, others nothing. Source: linux/posix_acl_xattr.h
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in (
        (1, 7, 0xFFFFFFFF),
        (2, 7, 1234),
        (4, 4, 0xFFFFFFFF),
        (16, 7, 0xFFFFFFFF),
        (32, 0, 0xFFFFFFFF),
    )
)
OLD_NS = 1_500_000_000_123_456_789


@pytest.fixture
def work() -> Iterator[Path]:
    with scratch_directory() as work:
        yield work


@dataclass
class Copying:
    """A copy of one directory into another. Its clock says that everything is long settled."""

    work: Path
    now_ns: Callable[[], int] = lambda: 1 << 62
    stop: Stop = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        for path in (self.source, self.target):
            path.mkdir(exist_ok=True)

    @property
    def source(self) -> Path:
        return self.work / "source"

    @property
    def target(self) -> Path:
        return self.work / "target"

    def run(self, *, is_still: bool = True) -> Round:
        """Copy, as a process does that has just started."""
        copied = Copied(str(self.work / "copied"))
        try:
            copy = TreeCopy(str(self.source), str(self.target), copied, self.stop, self.now_ns)
            done = copy.run(is_still=is_still)
            copied.write()
            return done
        finally:
            copied.close()

    def same(self) -> None:
        """See that both are the same to anybody who looks."""
        assert _described(self.source) == _described(self.target)


def _described(top: Path) -> dict[str, object]:
    """Return everything that can be told of every entry."""
    found: dict[str, object] = {}
    links: dict[int, str] = {}
    for directory, names, files in os.walk(top):
        for name in sorted([*names, *files, "."]):
            path = os.path.normpath(os.path.join(directory, name))
            status = os.lstat(path)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = Path(path).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            attributes = {
                each: os.getxattr(path, each, follow_symlinks=False)
                for each in os.listxattr(path, follow_symlinks=False)
            }
            relative = os.path.relpath(path, top)
            first = links.setdefault(status.st_ino, relative)
            times = (status.st_mtime_ns, None if stat.S_ISDIR(status.st_mode) else status.st_nlink)
            found[relative] = (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                times,
                content,
                attributes,
                first,
            )
    return found


def _fill(top: Path) -> None:
    """Make one of everything."""
    (top / "dir" / "deep").mkdir(parents=True)
    (top / "dir" / "file").write_bytes(b"content")
    (top / "dir" / "deep" / "empty").touch()
    (top / "script").write_text("#!/bin/sh")
    (top / "script").chmod(0o4755)
    os.chown(top / "script", 1000, 2000)
    (top / "script").chmod(0o4755)
    os.link(top / "dir" / "file", top / "linked")
    os.link(top / "dir" / "file", top / "dir" / "deep" / "linked-too")
    (top / "symlink").symlink_to("/nowhere/at all")
    os.lchown(top / "symlink", 5, 6)
    os.mkfifo(top / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "socket"))
    os.setxattr(top / "dir" / "file", "user.color", b"blue")
    os.setxattr(top / "dir", "user.of", b"a directory")
    os.setxattr(top / "linked", "system.posix_acl_access", ACL)
    os.setxattr(top / "dir", "system.posix_acl_default", ACL)
    with (top / "sparse").open("wb") as sparse:
        sparse.seek(64 << 20)
        sparse.write(b"end")
        sparse.truncate(96 << 20)
    (top / os.fsdecode(b"no\xff unicode\n")).write_text("name")
    (top / "locked").mkdir(mode=0o000)
    (top / "sticky").mkdir()
    (top / "sticky").chmod(0o1777)
    for directory, names, files in os.walk(top, topdown=False):
        for name in (*names, *files):
            os.utime(os.path.join(directory, name), ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    os.utime(top, ns=(OLD_NS, OLD_NS))


def test_everything_is_kept(work: Path) -> None:
    copying = Copying(work)
    _fill(copying.source)
    done = copying.run()
    copying.same()
    regular = {
        status.st_ino: status.st_size
        for path in copying.source.rglob("*")
        if stat.S_ISREG((status := path.lstat()).st_mode)
    }
    assert done.size_bytes == sum(regular.values())
    holes = (copying.target / "sparse").stat().st_blocks * 512
    assert holes < 1 << 20


def test_a_second_round_copies_what_changed_alone(work: Path) -> None:
    copying = Copying(work)
    _fill(copying.source)
    copying.run()
    assert copying.run().copied_files == 0
    source = copying.source
    (source / "dir" / "file").write_bytes(b"CONTENT")
    os.utime(source / "dir" / "file", ns=(OLD_NS, OLD_NS))  # as sync tools do: same size, same time
    (source / "script").chmod(0o600)
    (source / "fifo").unlink()
    (source / "symlink").unlink()
    (source / "symlink").mkdir()
    (source / "dir" / "deep" / "empty").unlink()
    (source / "dir" / "deep" / "linked-too").unlink()
    (source / "dir" / "deep").rmdir()
    (source / "dir" / "deep").write_text("a file now")
    os.removexattr(source / "dir", "user.of")
    done = copying.run()
    copying.same()
    assert done.copied_files <= 4


def test_directories_that_change_places_are_noticed(work: Path) -> None:
    """Two trees of files with the same names, sizes and times: only the inodes tell which is which."""
    copying = Copying(work)
    for name in ("one", "two"):
        (copying.source / name).mkdir()
        (copying.source / name / "file").write_text(name)
        os.utime(copying.source / name / "file", ns=(OLD_NS, OLD_NS))
    copying.run()
    (copying.source / "one").rename(copying.source / "three")
    (copying.source / "two").rename(copying.source / "one")
    (copying.source / "three").rename(copying.source / "two")
    copying.run()
    assert (copying.target / "one" / "file").read_text() == "two"
    assert (copying.target / "two" / "file").read_text() == "one"


def test_a_file_that_has_just_changed_is_not_trusted(work: Path) -> None:
    """Within a clock's tick it may change again and look the same."""
    with (work / "clock").open("wb") as clock:
        copying = Copying(work, now_ns=filesystem_clock(clock.fileno()))
        (copying.source / "young").write_text("a")
        (copying.source / "old").write_text("a")
        assert copying.run().copied_files == 2
        assert copying.run().copied_files == 2
        copying.now_ns = lambda: os.stat(copying.source / "old").st_ctime_ns + 2_500_000_000
        assert copying.run().copied_files == 2
        assert copying.run().copied_files == 0
        copying.same()


def test_what_vanishes_meanwhile_fails_nothing_until_the_volume_stands_still(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying = Copying(work)
    (copying.source / "file").write_text("x")
    (copying.source / "gone").write_text("x")
    listed = os.scandir

    def scandir(place: int) -> object:
        found = listed(place)
        with_gone = list(found)
        found.close()
        (copying.source / "gone").unlink(missing_ok=True)
        return _Entries(with_gone)

    monkeypatch.setattr(os, "scandir", scandir)
    copying.run(is_still=False)
    assert sorted(os.listdir(copying.target)) == ["file"]
    (copying.source / "gone").write_text("x")
    with pytest.raises(OSError, match="No such file"):
        copying.run(is_still=True)


class _Entries(list[object]):
    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_deep_tree_is_copied_and_removed(work: Path) -> None:
    """Deeper than any path that the kernel takes at once."""
    copying = Copying(work)
    here = os.open(copying.source, os.O_RDONLY | os.O_DIRECTORY)
    name = "d" * 200
    for _ in range(30):
        os.mkdir(name, dir_fd=here)
        further = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = further
    with open(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=here), "w") as leaf:
        leaf.write("deep down")
    os.close(here)
    assert copying.run().copied_files == 1
    assert copying.run().copied_files == 0
    with opened_root(str(work)) as place:
        removed: list[int] = []
        remove_tree(place, "target", threading.Event(), removed.append)
        remove_tree(place, "source", threading.Event())
    assert removed[-1] == 32
    assert sorted(os.listdir(work)) == ["copied"]


def test_a_copy_stops_when_it_shall(work: Path) -> None:
    copying = Copying(work)
    _fill(copying.source)
    copying.stop.set()
    with pytest.raises(NotReady, match="goes on where it was"):
        copying.run()
    copying.stop.clear()
    copying.run()
    copying.same()


def test_a_fingerprint_that_was_cut_short_is_forgotten(work: Path) -> None:
    copying = Copying(work)
    (copying.source / "a").write_text("a")
    copying.run()
    (work / "copied").write_bytes((work / "copied").read_bytes() + b"\1\2\3")
    assert copying.run().copied_files == 0
    (copying.source / "b").write_text("b")
    assert copying.run().copied_files == 1
    assert copying.run().copied_files == 0
    assert (work / "copied").stat().st_size == 16


# In a pool -------------------------------------------------------------------------------------------


def _plan(pool: Path, name: str, content: Content | None = None, size: int = 1 << 30) -> VolumePlan:
    return VolumePlan(
        id=name,
        name=name,
        pool=str(pool),
        capacity_bytes=size,
        limit_bytes=size,
        parameters={},
        context={"class": "pooled", "source": f"dir://{pool}", "volume": name},
        sub_path="",
        mode=0o777,
        content=content,
        source_pool="" if content is None else str(pool),
    )


class Killed(BaseException):
    """What stands for a SIGKILL in a thread: nothing is undone."""


@dataclass
class Dying:
    """Ends everything at one of the points that a pool tells of."""

    at: int = 0
    points: list[str] = field(default_factory=list)

    def observe(self, point: str) -> None:
        """Count."""
        self.points.append(point)
        if len(self.points) == self.at:
            raise Killed(point)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_copy_goes_on_after_a_crash_at_any_point(stride: int) -> None:
    """S4-01: whatever half of a clone or snapshot is there, nobody sees it, it is gone on with, and nothing is left of it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        pool = Path(memory)
        DirectoryPool(str(pool)).make_volume(_plan(pool, "v"))
        _fill(pool / "volumes" / "v" / "data")
        number = 1
        while _dies(pool, number):
            after = DirectoryPool(str(pool))
            _see_whole(pool)
            if number % 2:
                _settle(after)
                _see_whole(pool)
            _story(after)
            assert after.unfinished() == []
            assert after.ids(Kind.VOLUME) == ["v"]
            assert after.ids(Kind.SNAPSHOT) == []
            number += stride
        assert number > 80


def _dies(pool: Path, number: int) -> bool:
    """Tell whether there is such a point in the story, and leave the pool as it is there."""
    try:
        _story(DirectoryPool(str(pool), Dying(at=number).observe))
    except Killed:
        return True
    return False


def _story(store: DirectoryPool) -> None:
    pool = Path(store.name)
    store.make_snapshot(SnapshotRequest(id="s", name="s", source_volume_id="v"))
    store.make_volume(_plan(pool, "restored", Content(kind=Kind.SNAPSHOT, id="s")))
    store.make_volume(_plan(pool, "clone", Content(kind=Kind.VOLUME, id="v")))
    store.expand("clone", CapacityRange(2 << 30))
    for kind, id_ in ((Kind.SNAPSHOT, "s"), (Kind.VOLUME, "restored"), (Kind.VOLUME, "clone")):
        store.remove(kind, id_)
    _settle(store)


def _settle(store: DirectoryPool) -> None:
    for name in store.unfinished():
        store.settle(name)


def _see_whole(pool: Path) -> None:
    """See that what is to be seen is whole."""
    wanted = _described(pool / "volumes" / "v" / "data")
    for place, record in (("volumes", "volume.json"), ("snapshots", "snapshot.json")):
        for found in (pool / place).iterdir():
            assert (found / record).exists()
            assert _described(found / "data") == wanted


def test_what_was_copied_is_not_copied_again_after_a_crash(work: Path) -> None:
    pool = work / "pool"
    pool.mkdir()
    sound = DirectoryPool(str(pool))
    sound.make_volume(_plan(pool, "v"))
    (pool / "volumes" / "v" / "data" / "file").write_text("content")
    sound.make_snapshot(SnapshotRequest(id="s", name="s", source_volume_id="v"))
    content = Content(kind=Kind.SNAPSHOT, id="s")
    with pytest.raises(Killed):
        DirectoryPool(str(pool), Dying(at=_point(pool, content, "after copy")).observe).make_volume(
            _plan(pool, "w", content)
        )
    half = pool / ".unfinished" / "volume-w" / "data" / "file"
    inode = half.stat().st_ino
    DirectoryPool(str(pool)).settle("volume-w")
    assert (pool / "volumes" / "w" / "data" / "file").stat().st_ino == inode


def _point(pool: Path, content: Content, name: str) -> int:
    counted = Dying()
    DirectoryPool(str(pool), counted.observe).make_volume(_plan(pool, "counted", content))
    return counted.points.index(name) + 1


def test_a_crash_leaves_no_empty_volume_that_nobody_asked_for(work: Path) -> None:
    pool = work / "pool"
    pool.mkdir()
    counted = Dying()
    DirectoryPool(str(pool), counted.observe).make_volume(_plan(pool, "v"))
    for number in range(1, len(counted.points) + 1):
        with pytest.raises(Killed):
            DirectoryPool(str(pool), Dying(at=number).observe).make_volume(_plan(pool, f"w{number}"))
        after = DirectoryPool(str(pool))
        _settle(after)
        assert after.unfinished() == []
        for id_ in after.ids(Kind.VOLUME):
            assert after.volume(id_) is not None
            assert (pool / "volumes" / id_ / "budget").exists()


def test_two_controllers_never_work_on_one_thing(work: Path) -> None:
    """While a leader goes and another comes: the second finds out, and leaves what the first makes alone."""
    pool = work / "pool"
    pool.mkdir()
    first_is_at, second_has_tried = threading.Event(), threading.Event()

    def wait(point: str) -> None:
        if point == "before budget":
            first_is_at.set()
            assert second_has_tried.wait(30)

    first = threading.Thread(target=lambda: DirectoryPool(str(pool), wait).make_volume(_plan(pool, "v")))
    first.start()
    assert first_is_at.wait(30)
    try:
        second = DirectoryPool(str(pool))
        assert second.unfinished() == ["volume-v"]
        second.settle("volume-v")
        assert second.unfinished() == ["volume-v"]
        with pytest.raises(OperationPending):
            second.make_volume(_plan(pool, "v"))
        with pytest.raises(OperationPending):
            second.remove(Kind.VOLUME, "v")
    finally:
        second_has_tried.set()
        first.join(30)
    assert second.make_volume(_plan(pool, "v")) == second.volume("v")
    assert second.unfinished() == []


def test_a_source_stays_while_it_is_copied(work: Path) -> None:
    """S4-25."""
    pool = work / "pool"
    pool.mkdir()
    sound = DirectoryPool(str(pool))
    sound.make_volume(_plan(pool, "v"))
    refused: list[str] = []

    def remove(point: str) -> None:
        if point == "before hold":
            with pytest.raises(OperationPending) as busy:
                DirectoryPool(str(pool)).remove(Kind.VOLUME, "v")
            refused.append(str(busy.value))

    DirectoryPool(str(pool), remove).make_snapshot(SnapshotRequest(id="s", name="s", source_volume_id="v"))
    assert len(refused) == 1
    sound.remove(Kind.VOLUME, "v")
    with pytest.raises(NotFound):
        sound.make_snapshot(SnapshotRequest(id="t", name="t", source_volume_id="v"))
    assert [name.split("-")[0] for name in sound.unfinished()] == ["gone"]


def test_nothing_of_another_filesystem_is_removed(work: Path) -> None:
    """Even when it was mounted after the volume was gone."""
    place = work / "place"
    (place / "gone" / "inner").mkdir(parents=True)
    (place / "gone" / "file").touch()
    subprocess.run(["mount", "-t", "tmpfs", "theirs", place / "gone" / "inner"], check=True)
    try:
        (place / "gone" / "inner" / "precious").write_text("kept")
        with opened_root(str(place)) as opened, pytest.raises(HostFailure) as refused:
            remove_tree(opened, "gone", threading.Event())
        assert refused.value.errno in (errno.EXDEV, errno.EBUSY)
        assert (place / "gone" / "inner" / "precious").read_text() == "kept"
        copying = Copying(work)
        copying.source.rmdir()
        (place / "gone").rename(copying.source)
        with pytest.raises((WrongState, HostFailure)):
            copying.run()
    finally:
        subprocess.run(["umount", work / "source" / "inner"], check=True)
