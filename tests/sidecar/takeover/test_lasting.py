"""Open files that others rename, replace or remove, and a daemon that dies then: whoever has them open goes on."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.protocol_filesystem import ROOT, Changes
from tests.sidecar.directory.core import Someone
from tests.sidecar.takeover.lives import Life, Lives
from tests.sidecar.takeover.stage import stage

SOMEONE = Someone(uid=1234, gid=1234)

pytestmark = pytest.mark.root


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    lives.begin()
    yield lives
    lives.close()


def rename(source: Path) -> None:
    (source / "f").rename(source / "f.1")


def move(source: Path) -> None:
    (source / "d").mkdir()
    (source / "f").rename(source / "d" / "f")


def remove(source: Path) -> None:
    (source / "f").unlink()


def replace(source: Path) -> None:
    (source / "new").write_text("another")
    (source / "new").rename(source / "f")


OTHERS = pytest.mark.parametrize(
    "others", [rename, move, remove, replace], ids=lambda others: others.__name__
)


def parked(life: Life) -> set[int]:
    """Return what a successor would find in the park."""
    holder = life.state.holder
    assert holder is not None
    return set(holder._held)  # type: ignore[attr-defined]


@OTHERS
def test_open_file_that_others_have_taken_elsewhere_is_still_that_file(
    lives: Lives, others: Callable[[Path], None]
) -> None:
    with lives.life(resume=False) as life:
        made, entry = life.do(life.filesystem.create(ROOT, b"f", 0o600, os.O_WRONLY, SOMEONE))
        reader = life.do(life.filesystem.open(entry.node, os.O_RDONLY, SOMEONE))
        life.do(life.filesystem.write(made.handle, 0, b"content"))
        os.chmod(lives.source / "f", 0)
    others(lives.source)
    for number in range(3):
        with lives.life() as life:
            assert life.do(life.filesystem.write(made.handle, 7 + number, b"%d" % number)) == 1
            assert life.do(life.filesystem.read(reader.handle, 0, 100)) == b"content012"[: 8 + number]
            assert life.do(life.filesystem.getattr(entry.node)).size == 8 + number
            changed = life.filesystem.setattr(entry.node, Changes(size=8 + number), made.handle, SOMEONE)
            assert life.do(changed).size == 8 + number
    with lives.life() as life:
        for handle in (made.handle, reader.handle):
            life.do(life.filesystem.release(handle))
        life.read_on(idle=True)
        assert len(life.filesystem.files) == 0
        assert parked(life) == set()


def test_what_is_closed_is_let_go(lives: Lives) -> None:
    """Also if the daemon dies between closing a file and sweeping."""
    with lives.life(resume=False) as life:
        made, entry = life.do(life.filesystem.create(ROOT, b"f", 0o600, os.O_RDWR, SOMEONE))
        for _ in range(1000):
            opened = life.do(life.filesystem.open(entry.node, os.O_RDONLY, SOMEONE))
            life.do(life.filesystem.release(opened.handle))
        assert len(parked(life)) == 1
        life.do(life.filesystem.release(made.handle), answered=False)
    with lives.life() as life:
        assert len(life.filesystem.files) == 0
        life.read_on(idle=True)
        assert parked(life) == set()
        assert len(life.filesystem.memory.holder.recover()) == 0  # type: ignore[union-attr]
    assert str(lives.source / "f") not in {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    }


def test_more_files_than_the_holder_takes_are_opened_again_by_name(lives: Lives) -> None:
    count = 150  # the lives' limit is lower
    with lives.life(resume=False) as life:
        handles = []
        for number in range(count):
            made, _ = life.do(life.filesystem.create(ROOT, b"%d" % number, 0o600, os.O_RDWR, SOMEONE))
            life.do(life.filesystem.write(made.handle, 0, b"%d" % number))
            handles.append(made.handle)
        assert 50 < len(parked(life)) < count
    with lives.life() as life:
        for number, handle in enumerate(handles):
            assert life.do(life.filesystem.read(handle, 0, 10)) == b"%d" % number


@pytest.mark.fuse
def test_nobody_notices_on_a_mount(tmp_path: Path) -> None:
    with stage(tmp_path) as here:
        source = tmp_path / "source"
        files = {}
        for others in (rename, move, remove, replace):
            directory = here.path / others.__name__
            directory.mkdir()
            files[others] = os.open(directory / "f", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o400)
            os.write(files[others], b"before ")
            others(source / others.__name__)
        for _ in range(3):
            assert here.order("kill")["faults"] == []
            for others, file in files.items():
                assert os.write(file, b"x") == 1, others
        for others, file in files.items():
            assert os.pread(file, 100, 0) == b"before xxx", others
            assert os.fstat(file).st_size == 10, others
            os.close(file)
        assert (source / "rename" / "f.1").read_text() == "before xxx"
        assert (source / "replace" / "f").read_text() == "another"
