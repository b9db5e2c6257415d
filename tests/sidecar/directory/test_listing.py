"""Which entries come with their attributes and which as names alone, and that all of them come, once each."""

import ctypes
import os
import stat
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.directory.filesystem import DirectoryFilesystem
from sidecar.directory.interest import Interest
from sidecar.directory.store import Listed, Store
from sidecar.protocol_filesystem import ROOT
from tests.sidecar.directory.conftest import Twins
from tests.sidecar.directory.core import Shelf, make_filesystem, run

ROOM = 100
MANY = 450


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[DirectoryFilesystem]:
    for number in range(MANY):
        (tmp_path / f"file{number}").touch()
    filesystem = make_filesystem(tmp_path)
    yield filesystem
    filesystem.descriptors.discard(ROOT)


class Reader:
    """Somebody who reads a directory, an answer at a time."""

    def __init__(
        self, filesystem: DirectoryFilesystem, *, takes_names: bool = True, room: int = ROOM
    ) -> None:
        self._filesystem = filesystem
        self._takes_names = takes_names
        self._room = room
        self._at = 0
        self.handle = run(filesystem.opendir(ROOT))
        self.names: list[bytes] = []

    def read(self) -> tuple[int, int]:
        """Read an answer, and return how many entries had attributes and how many had none, dots apart."""
        shelf = Shelf(self._room, takes_names=self._takes_names)
        run(self._filesystem.readdir(self.handle, self._at, shelf))
        files = [entry for entry in shelf.entries if entry[0] not in (b".", b"..")]
        self.names += [name for name, _, _, _ in files]
        self._at = shelf.entries[-1][3] if shelf.entries else self._at
        alone = sum(node == 0 for _, node, _, _ in files)
        return len(files) - alone, alone

    def read_all(self) -> None:
        """Read to the end."""
        while self.read() != (0, 0):
            pass


def test_who_only_wants_names_gets_attributes_with_the_first_answer_alone(
    filesystem: DirectoryFilesystem,
) -> None:
    reader = Reader(filesystem)
    assert reader.read() == (ROOM - 3, 1)
    before = len(filesystem.nodes)
    assert reader.read() == (0, ROOM)
    assert reader.read() == (0, ROOM)
    reader.read_all()
    assert sorted(reader.names) == sorted(os.fsencode(f"file{number}") for number in range(MANY))
    assert len(filesystem.nodes) == before, "names alone are not counted as looked up"


def test_who_asks_for_the_files_gets_attributes_all_along(filesystem: DirectoryFilesystem) -> None:
    """As `ls -l`: what comes without attributes is looked up, one of each answer."""
    reader = Reader(filesystem)
    assert reader.read() == (ROOM - 3, 1)
    for _ in range(3):
        run(filesystem.lookup(ROOT, reader.names[-1]))
        assert reader.read() == (ROOM - 1, 1)
    assert reader.read() == (0, MANY + 2 - 4 * ROOM)


def test_asking_for_attributes_of_known_files_counts_too(filesystem: DirectoryFilesystem) -> None:
    reader = Reader(filesystem)
    reader.read()
    known = run(filesystem.lookup(ROOT, b"file7")).node
    assert reader.read() == (ROOM - 1, 1)
    assert reader.read() == (0, ROOM)
    run(filesystem.getattr(known))
    assert reader.read() == (ROOM - 1, 1)


def test_a_small_directory_comes_with_all_attributes(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"file{number}").touch()
    filesystem = make_filesystem(tmp_path)
    assert Reader(filesystem).read() == (50, 0)
    filesystem.descriptors.discard(ROOT)


def test_interest_in_one_directory_says_nothing_of_another(tmp_path: Path) -> None:
    interest = Interest()
    interest.note(5)
    assert (interest.take(6), interest.take(5), interest.take(5)) == (False, True, False)
    for directory in range(100_000):
        interest.note(directory)
    assert interest.take(99_999)
    assert sum(interest.take(directory) for directory in range(100_000)) < 10_000, "it is bounded"


def test_whoever_cannot_list_names_alone_gets_attributes(filesystem: DirectoryFilesystem) -> None:
    reader = Reader(filesystem, takes_names=False)
    assert reader.read() == (ROOM - 2, 0)
    assert reader.read() == (ROOM, 0)
    reader.read_all()
    assert len(set(reader.names)) == MANY


def test_names_alone_have_the_type_and_inode_number_of_the_file(tmp_path: Path) -> None:
    for number in range(200):
        path = tmp_path / f"entry{number}"
        match number % 4:
            case 0:
                path.touch()
            case 1:
                path.symlink_to("nowhere")
            case 2:
                os.mkfifo(path)
            case 3:
                path.mkdir()
    filesystem = make_filesystem(tmp_path)
    handle = run(filesystem.opendir(ROOT))
    first, rest = Shelf(10), Shelf()
    run(filesystem.readdir(handle, 0, first))
    run(filesystem.readdir(handle, first.entries[-1][3], rest))
    files = [entry for entry in rest.entries if entry[0] not in (b".", b"..")]
    assert len(files) > 180
    for name, node, attributes, _ in files:
        bare = (tmp_path / os.fsdecode(name)).lstat()
        assert (attributes.ino, stat.S_IFMT(attributes.mode)) == (bare.st_ino, stat.S_IFMT(bare.st_mode))
        assert bool(node) == stat.S_ISDIR(bare.st_mode), "whoever goes through a tree enters directories"
    filesystem.descriptors.discard(ROOT)


def test_a_store_that_tells_no_types_is_asked_for_them(tmp_path: Path) -> None:
    """As NFS servers and old XFS: DT_UNKNOWN."""

    class Untold(Store):
        def list(self, fd: int) -> list[Listed]:
            return [listed._replace(kind=0) for listed in super().list(fd)]

    for number in range(MANY):
        (tmp_path / f"file{number}").touch()
    filesystem = make_filesystem(tmp_path, store=Untold)
    reader = Reader(filesystem)
    assert reader.read() == (ROOM - 2, 0)
    assert reader.read() == (ROOM, 0)
    filesystem.descriptors.discard(ROOT)


def test_what_was_removed_after_it_was_read_ahead_is_not_listed(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    reader = Reader(filesystem)
    reader.read()
    gone = sorted(set(os.listdir(os.fsencode(tmp_path))) - set(reader.names))[::2]
    for name in gone:
        (tmp_path / os.fsdecode(name)).unlink()
    (tmp_path / "new").touch()
    reader.read_all()
    assert not set(reader.names) & set(gone)
    kept = {os.fsencode(f"file{number}") for number in range(MANY)} - set(gone)
    assert set(reader.names) >= kept
    assert len(reader.names) == len(set(reader.names))


@pytest.mark.parametrize("takes_names", [True, False])
def test_any_position_leads_back_to_where_it_was(filesystem: DirectoryFilesystem, takes_names: bool) -> None:
    """telldir and seekdir."""
    handle = run(filesystem.opendir(ROOT))
    whole = Shelf(takes_names=takes_names)
    run(filesystem.readdir(handle, 0, whole))
    names = [name for name, _, _, _ in whole.entries]
    for at in (0, 1, 77, 300, MANY, 5, MANY + 1):
        rest = Shelf(20, takes_names=takes_names)
        run(filesystem.readdir(handle, whole.entries[at][3], rest))
        assert [name for name, _, _, _ in rest.entries] == names[at + 1 : at + 21]


def test_a_huge_directory_takes_a_block_of_memory_and_no_nodes(tmp_path: Path) -> None:
    huge = 200_000

    class Huge(Store):
        at = 0

        def list(self, fd: int) -> list[Listed]:
            begin, self.at = self.at, min(huge, self.at + 1000)
            return [
                Listed(b"name-%07d" % number, number + 10, 8, number + 1) for number in range(begin, self.at)
            ]

        def seek_listing(self, fd: int, position: int) -> None:
            self.at = position

    filesystem = make_filesystem(tmp_path, store=Huge)
    handle = run(filesystem.opendir(ROOT))
    at = count = 0
    (tmp_path / "name-0000000").touch()
    tracemalloc.start()
    try:
        while True:
            shelf = Shelf(200)
            run(filesystem.readdir(handle, at, shelf))
            if not shelf.entries:
                break
            count += len(shelf.entries)
            at = shelf.entries[-1][3]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count > huge - 400, "files that are not there are left out where attributes were sought"
    assert peak_bytes < 2 << 20
    assert len(filesystem.nodes) < 400
    filesystem.descriptors.discard(ROOT)


class _Dirent(ctypes.Structure):
    _fields_ = (
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_uint16),
        ("d_type", ctypes.c_uint8),
        ("d_name", ctypes.c_char * 256),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = ctypes.c_void_p
_libc.opendir.argtypes = (ctypes.c_char_p,)
_libc.readdir64.restype = ctypes.POINTER(_Dirent)
_libc.readdir64.argtypes = _libc.telldir.argtypes = _libc.closedir.argtypes = (ctypes.c_void_p,)
_libc.telldir.restype = ctypes.c_long
_libc.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)


@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.parametrize("volume", ["poll-local", "trio-local", "poll-remote"], indirect=True)
def test_a_long_listing_is_the_bare_directorys_whoever_reads_it(twins: Twins) -> None:
    for number in range(1500):
        path = twins.behind / f"entry{number:05d}"
        match number % 5:
            case 0:
                path.symlink_to("nowhere")
            case 1:
                path.mkdir()
            case _:
                path.write_bytes(bytes(number % 7))
    looks = [["find", "-printf", "%P %y %i\n"], ["ls", "-fi"], ["ls", "-lniA", "--time-style=full-iso"]]
    looks.append(["find", "-type", "f", "-size", "+0", "-printf", "%P %s\n"])
    for command in looks * 2:
        bare, mount = (
            subprocess.run(command, cwd=place, capture_output=True, check=True).stdout.splitlines()
            for place in (twins.behind, twins.mount)
        )
        if command[:2] == ["ls", "-fi"]:
            bare, mount = ([line for line in lines if not line.endswith(b".")] for lines in (bare, mount))
        assert sorted(mount) == sorted(bare), command


@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.parametrize("volume", ["poll-local"], indirect=True)
def test_seekdir_leads_to_where_telldir_was_on_a_mount(twins: Twins) -> None:
    for number in range(1200):
        (twins.behind / f"entry{number:05d}").touch()
    directory = _libc.opendir(os.fsencode(twins.mount))
    assert directory
    try:
        places, names = [], []
        while True:
            place = _libc.telldir(directory)
            entry = _libc.readdir64(directory)
            if not entry:
                break
            places.append(place)
            names.append(entry.contents.d_name)
        assert len(set(names)) == len(names) == 1202
        for at in (700, 3, 1201, 0, 250, 900):
            _libc.seekdir(directory, places[at])
            assert _libc.readdir64(directory).contents.d_name == names[at]
    finally:
        _libc.closedir(directory)
