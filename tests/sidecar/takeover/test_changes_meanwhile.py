"""Operations that a dead daemon has carried out, and others who have gone on from there before its successor is asked again."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.directory.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sidecar.protocol_filesystem import ROOT
from sidecar.takeover import operation
from sidecar.takeover.drain import Unanswered
from sidecar.takeover.operation import Operation
from tests.sidecar.directory.core import Shelf, Someone, run
from tests.sidecar.directory.harness import outcome
from tests.sidecar.takeover.lives import Life, Lives, killed_at_line
from tests.sidecar.takeover.processes import child_that_dies

SOMEONE = Someone(uid=1234, gid=1234)
STRIDE = 17  # lines from one kill to the next

pytestmark = pytest.mark.root


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    yield lives
    lives.close()


def taken(source: Path) -> None:
    (source / "b").rename(source / "c")


def taken_and_made_anew(source: Path) -> None:
    taken(source)
    (source / "a").write_text("another")


def made_anew(source: Path) -> None:
    (source / "a").write_text("another")


def removed(source: Path) -> None:
    (source / "b").unlink()


@pytest.mark.parametrize(
    ("others", "flags"),
    [(taken, RENAME_NOREPLACE), (taken_and_made_anew, 0), (made_anew, 0), (removed, 0)],
    ids=["taken", "taken-and-made-anew", "made-anew", "removed"],
)
def test_rename_is_not_done_again_with_another_file(
    others: Callable[[Path], None], flags: int, lives: Lives
) -> None:
    """S4-10. Consumers take what was renamed, producers make the old name anew."""
    request = Unanswered(Operation(*operation.rename(ROOT, b"a", ROOT, b"b", flags)))
    done = 0
    for line in range(random.randrange(STRIDE), 1000, STRIDE):
        lives.begin()
        source = lives.source
        with lives.life(resume=False) as life:
            made, entry = life.do(life.filesystem.create(ROOT, b"a", 0o640, os.O_RDWR, SOMEONE))
            life.do(life.filesystem.release(made.handle))

        def work(line: int = line) -> None:
            with lives.life() as life:
                rename = life.filesystem.rename(ROOT, b"a", ROOT, b"b", flags)
                killed_at_line(line, lambda: run(rename))

        code = child_that_dies(work)
        assert code in (-signal.SIGKILL, 0)
        was_done = not (source / "a").exists()
        if was_done:
            done += 1
            others(source)
        before = {name.name: name.read_text() for name in source.iterdir()}
        with lives.life(request) as life:
            assert run(life.filesystem.rename(ROOT, b"a", ROOT, b"b", flags)) is None
            life.read_on()
            after = {name.name: name.read_text() for name in source.iterdir()}
            assert after == (before if was_done else {"b": ""})
            if "c" in after:
                assert life.do(life.filesystem.lookup(ROOT, b"c")).node == entry.node
            if "a" in after:
                assert life.do(life.filesystem.lookup(ROOT, b"a")).node != entry.node
            else:
                assert outcome(run, life.filesystem.lookup(ROOT, b"a")) == "ENOENT"
        if code == 0:
            break
    assert done


def test_exchange_is_not_done_again_when_others_have_taken_one(lives: Lives) -> None:
    flags = RENAME_EXCHANGE
    request = Unanswered(Operation(*operation.rename(ROOT, b"a", ROOT, b"b", flags)))
    done = 0
    for line in range(random.randrange(STRIDE), 1000, STRIDE):
        lives.begin()
        source = lives.source
        with lives.life(resume=False) as life:
            for name in (b"a", b"b"):
                made, _ = life.do(life.filesystem.create(ROOT, name, 0o640, os.O_RDWR, SOMEONE))
                life.do(life.filesystem.write(made.handle, 0, name))
                life.do(life.filesystem.release(made.handle))

        def work(line: int = line) -> None:
            with lives.life() as life:
                rename = life.filesystem.rename(ROOT, b"a", ROOT, b"b", flags)
                killed_at_line(line, lambda: run(rename))

        code = child_that_dies(work)
        if (source / "a").read_text() == "b":
            done += 1
            taken(source)
        with lives.life(request) as life:
            assert run(life.filesystem.rename(ROOT, b"a", ROOT, b"b", flags)) is None
        assert (source / "a").read_text() == "b"
        if code == 0:
            break
    assert done


def test_listing_that_a_successor_takes_up_at_its_end_can_begin_again(lives: Lives) -> None:
    """What one descriptor reads first decides, on ext4, whether anything is found from its beginning later."""
    lives.begin()
    names = {b"%d" % number for number in range(20)}
    for name in names:
        (lives.source / os.fsdecode(name)).touch()
    with lives.life(resume=False) as life:
        handle = life.do(life.filesystem.opendir(ROOT))
        shelf = Shelf()
        life.do(life.filesystem.readdir(handle, 0, shelf))
        end = shelf.entries[-1][3]
    with lives.life() as life:
        for position, expected in ((end, set()), (0, names), (end, set()), (0, names), (0, names)):
            shelf = Shelf()
            life.do(life.filesystem.readdir(handle, position, shelf))
            assert {entry[0] for entry in shelf.entries} - {b".", b".."} == expected, position


def _make_directory(life: Life) -> Any:
    return life.filesystem.mkdir(ROOT, b"lock", 0o700, SOMEONE)


def _make_file(life: Life) -> Any:
    return life.filesystem.create(ROOT, b"lock", 0o600, os.O_RDWR | os.O_EXCL, SOMEONE)


def _make_link(life: Life) -> Any:
    return life.filesystem.symlink(ROOT, b"lock", b"me", SOMEONE)


@pytest.mark.parametrize(
    ("kind", "ask", "by_others"),
    [
        pytest.param(operation.MKDIR, _make_directory, os.mkdir, id="directory"),
        pytest.param(operation.CREATE, _make_file, lambda path: path.touch(exist_ok=False), id="file"),
        pytest.param(operation.SYMLINK, _make_link, lambda path: path.symlink_to("me"), id="link"),
    ],
)
def test_lock_that_others_take_meanwhile_is_theirs(
    kind: int, ask: Callable[[Life], Any], by_others: Callable[[Path], Any], lives: Lives
) -> None:
    """S4-10. Another pod on the same source, with the same user: one of both gets it, whatever line the daemon is killed at."""
    request = Unanswered(Operation(kind, ROOT, b"lock"))
    for line in range(random.randrange(STRIDE), 1000, STRIDE):
        lives.begin()
        with lives.life(resume=False):
            pass

        def work(line: int = line) -> None:
            with lives.life() as life:
                killed_at_line(line, lambda: run(ask(life)))

        code = child_that_dies(work)
        path = lives.source / "lock"
        is_taken = not os.path.lexists(path)
        if is_taken:
            by_others(path)
            os.chown(path, SOMEONE.uid, SOMEONE.gid, follow_symlinks=False)
        for is_last in (False, True):
            with lives.life(request) as life:
                assert (outcome(run, ask(life)) == "EEXIST") == is_taken
                if is_last:
                    life.read_on()
        assert os.lstat(path).st_uid == SOMEONE.uid
        if code == 0:
            return


def test_file_that_was_created_and_removed_by_others_is_created_again_as_another(lives: Lives) -> None:
    lives.begin()
    with lives.life(resume=False) as life:
        _, first = life.do(life.filesystem.create(ROOT, b"f", 0o600, os.O_RDWR, SOMEONE), answered=False)
    (lives.source / "f").unlink()
    (lives.source / "another").touch()
    with lives.life(Unanswered(Operation(operation.CREATE, ROOT, b"f"))) as life:
        opened, entry = life.do(life.filesystem.create(ROOT, b"f", 0o600, os.O_RDWR, SOMEONE))
        assert entry.node != first.node
        life.do(life.filesystem.release(opened.handle))
        assert life.do(life.filesystem.getattr(entry.node)).ino == os.stat(lives.source / "f").st_ino
