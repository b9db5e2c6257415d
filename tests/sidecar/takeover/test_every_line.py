"""Operations that are done exactly once, wherever the daemon is killed: before each line of code that an operation runs.

A first process prepares; a second one begins an operation and is killed at some line; a third one takes over, is asked for the same
operation again by the kernel, and must answer as if nothing had happened and leave what one execution leaves.
"""

import os
import random
import signal
import stat
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sidecar.directory.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sidecar.protocol_filesystem import ROOT, Changes
from sidecar.takeover import operation
from sidecar.takeover.drain import Unanswered
from sidecar.takeover.operation import (
    CREATE,
    MKDIR,
    MKNOD,
    OPENDIR,
    REMOVEXATTR,
    RMDIR,
    SETXATTR,
    SYMLINK,
    UNLINK,
    Operation,
)
from tests.sidecar.directory.core import Someone, run
from tests.sidecar.directory.harness import outcome
from tests.sidecar.takeover.lives import Life, Lives, killed_at_line
from tests.sidecar.takeover.processes import child_that_dies

SOMEONE = Someone(uid=1234, gid=1234)
STRIDE = 17  # lines from one kill to the next in the short form

pytestmark = pytest.mark.root


@dataclass
class Known:
    """What the kernel and the applications know."""

    nodes: dict[str, int] = field(default_factory=dict)
    handles: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """An operation: what there is before, what the kernel asks, which request that is, and what must be so afterwards."""

    name: str
    prepare: Callable[[Life, Known], None]
    ask: Callable[[Life, Known], Coroutine[Any, Any, Any]]
    asked: Callable[[Known], Unanswered | None]
    check: Callable[[Life, Known, Any, Path], None]
    handles_more: int = 0


def file(life: Life, known: Known, name: str, content: bytes = b"content", *, opened: bool = False) -> None:
    """Have a file, which the kernel knows, and which is open or not."""
    made, entry = life.do(life.filesystem.create(ROOT, name.encode(), 0o640, os.O_RDWR, SOMEONE))
    life.do(life.filesystem.write(made.handle, 0, content))
    known.nodes[name] = entry.node
    if opened:
        known.handles[name] = made.handle
    else:
        life.do(life.filesystem.release(made.handle))


def pipe(life: Life, known: Known) -> None:
    """Have a named pipe, which the kernel knows, and which somebody may have open without our knowing."""
    known.nodes["a"] = life.do(life.filesystem.mknod(ROOT, b"a", stat.S_IFIFO | 0o600, 0, SOMEONE)).node


def directory(life: Life, known: Known, name: str) -> None:
    """Have a directory, which the kernel knows."""
    known.nodes[name] = life.do(life.filesystem.mkdir(ROOT, name.encode(), 0o755, SOMEONE)).node


def nothing(life: Life, known: Known) -> None:
    """Have nothing."""


def asks(kind: int, name: bytes) -> Callable[[Known], Unanswered]:
    """Return the request of an operation on a name in the root."""
    return lambda known: Unanswered(Operation(kind, ROOT, name))


def renames(name: bytes, new_name: bytes, flags: int, into: str = "") -> Callable[[Known], Unanswered]:
    def asked(known: Known) -> Unanswered:
        new_parent = known.nodes[into] if into else ROOT
        return Unanswered(Operation(*operation.rename(ROOT, name, new_parent, new_name, flags)))

    return asked


def made(kind: int, mode: int) -> Callable[[Life, Known, Any, Path], None]:
    def check(life: Life, known: Known, entry: Any, source: Path) -> None:
        there = os.lstat(source / "new")
        assert stat.S_IFMT(there.st_mode) == kind
        if kind != stat.S_IFLNK:
            assert stat.S_IMODE(there.st_mode) == mode
        assert (there.st_uid, there.st_gid) == (1234, 1234)
        assert entry.attributes.ino == there.st_ino
        assert life.do(life.filesystem.lookup(ROOT, b"new")).node == entry.node
        assert os.listdir(source) == ["new"]

    return check


def created(life: Life, known: Known, answer: Any, source: Path) -> None:
    opened, entry = answer
    made(stat.S_IFREG, 0o640)(life, known, entry, source)
    life.do(life.filesystem.write(opened.handle, 0, b"written"))
    assert (source / "new").read_bytes() == b"written"


def linked(life: Life, known: Known, entry: Any, source: Path) -> None:
    assert entry.node == known.nodes["a"]
    assert os.lstat(source / "a").st_nlink == 2
    assert life.do(life.filesystem.lookup(ROOT, b"b")).node == known.nodes["a"]


def removed(life: Life, known: Known, answer: Any, source: Path) -> None:
    assert answer is None
    assert os.listdir(source) == []
    assert outcome(run, life.filesystem.lookup(ROOT, b"a")) == "ENOENT"
    for handle in known.handles.values():
        assert life.do(life.filesystem.read(handle, 0, 100)) == b"content"
        assert life.do(life.filesystem.write(handle, 7, b"!")) == 1
        assert life.do(life.filesystem.getattr(known.nodes["a"])).nlink == 0


def renamed(life: Life, known: Known, answer: Any, source: Path) -> None:
    assert answer is None
    assert sorted(os.listdir(source)) == ["b"]
    assert life.do(life.filesystem.lookup(ROOT, b"b")).node == known.nodes["a"]
    assert life.do(life.filesystem.getattr(known.nodes["a"])).size == 7
    if "b" in known.handles:
        assert life.do(life.filesystem.read(known.handles["b"], 0, 100)) == b"victim"


def moved_into(life: Life, known: Known, answer: Any, source: Path) -> None:
    assert answer is None
    assert (source / "d" / "x").is_dir()
    assert life.do(life.filesystem.lookup(known.nodes["d"], b"x")).node == known.nodes["a"]
    inside = life.do(life.filesystem.mkdir(known.nodes["a"], b"deep", 0o755, SOMEONE))
    assert (source / "d" / "x" / "deep").is_dir()
    life.do(life.filesystem.forget([(inside.node, 1)]))


def exchanged(life: Life, known: Known, answer: Any, source: Path) -> None:
    assert answer is None
    assert ((source / "a").read_bytes(), (source / "b").read_bytes()) == (b"second", b"content")
    assert life.do(life.filesystem.lookup(ROOT, b"a")).node == known.nodes["b"]
    assert life.do(life.filesystem.lookup(ROOT, b"b")).node == known.nodes["a"]


def attribute(wanted: bytes | None) -> Callable[[Life, Known, Any, Path], None]:
    def check(life: Life, known: Known, answer: Any, source: Path) -> None:
        assert answer is None
        there = {name: os.getxattr(source / "a", name) for name in os.listxattr(source / "a")}
        assert there == ({"user.k": wanted} if wanted is not None else {})

    return check


async def set_new(life: Life, known: Known) -> None:
    """Set an attribute with XATTR_CREATE as pyfuse3 does."""
    try:
        await life.filesystem.getxattr(known.nodes["a"], b"user.k")
    except OSError as error:
        if error.errno != 61:
            raise
    else:
        raise FileExistsError(17, "File exists")
    await life.filesystem.setxattr(known.nodes["a"], b"user.k", b"v", SOMEONE)


def with_attribute(life: Life, known: Known) -> None:
    file(life, known, "a")
    life.do(life.filesystem.setxattr(known.nodes["a"], b"user.k", b"old", SOMEONE))


def opened(size: int) -> Callable[[Life, Known, Any, Path], None]:
    def check(life: Life, known: Known, answer: Any, source: Path) -> None:
        assert len(life.do(life.filesystem.read(answer.handle, 0, 100))) == size

    return check


def open_files(life: Life, known: Known) -> None:
    file(life, known, "a", opened=True)


def with_victim(*, opened: bool) -> Callable[[Life, Known], None]:
    def prepare(life: Life, known: Known) -> None:
        file(life, known, "a")
        file(life, known, "b", b"victim", opened=opened)

    return prepare


def two_files(life: Life, known: Known) -> None:
    file(life, known, "a")
    file(life, known, "b", b"second")


def two_directories(life: Life, known: Known) -> None:
    directory(life, known, "a")
    directory(life, known, "d")


def still_there(life: Life, known: Known, answer: Any, source: Path) -> None:
    assert answer is None
    assert life.do(life.filesystem.getattr(known.nodes["a"])).nlink in (
        0,
        1,
    )  # somebody is still in it, or has it open
    assert os.listdir(source) == []


def two_names(life: Life, known: Known) -> None:
    file(life, known, "a", opened=True)
    life.do(life.filesystem.link(known.nodes["a"], ROOT, b"b"))


def one_of_two_removed(life: Life, known: Known, answer: Any, source: Path) -> None:
    assert answer is None
    assert life.do(life.filesystem.getattr(known.nodes["a"])).nlink == 1
    assert life.do(life.filesystem.read(known.handles["a"], 0, 100)) == b"content"
    assert os.listdir(source) == ["b"]
    assert life.do(life.filesystem.lookup(ROOT, b"b")).node == known.nodes["a"]


def one_of_two_renamed(life: Life, known: Known, answer: Any, source: Path) -> None:
    assert answer is None
    assert life.do(life.filesystem.getattr(known.nodes["a"])).nlink == 2
    assert life.do(life.filesystem.read(known.handles["a"], 0, 100)) == b"content"
    assert sorted(os.listdir(source)) == ["b", "c"]
    for name in (b"b", b"c"):
        assert life.do(life.filesystem.lookup(ROOT, name)).node == known.nodes["a"]


def found_again(life: Life, known: Known, entry: Any, source: Path) -> None:
    assert life.do(life.filesystem.lookup(ROOT, b"a")).node == entry.node
    assert entry.attributes.size == 7
    assert len(life.filesystem.nodes) == 2


def forgotten(life: Life, known: Known) -> None:
    """Have a file that the kernel does not know."""
    file(life, known, "a")
    life.do(life.filesystem.forget([(known.nodes["a"], 1)]))


def released(life: Life, known: Known, answer: Any, source: Path) -> None:
    assert answer is None
    assert outcome(run, life.filesystem.read(known.handles["a"], 0, 10)) == "EBADF"


def truncated(life: Life, known: Known, attributes: Any, source: Path) -> None:
    assert attributes.size == 3
    assert (source / "a").read_bytes() == b"con"


CASES = (
    Case(
        "unlink-one-of-two",
        two_names,
        lambda life, _: life.filesystem.unlink(ROOT, b"a"),
        asks(UNLINK, b"a"),
        one_of_two_removed,
    ),
    Case(
        "rename-one-of-two",
        two_names,
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"c", 0),
        renames(b"a", b"c", 0),
        one_of_two_renamed,
    ),
    Case(
        "lookup", forgotten, lambda life, _: life.filesystem.lookup(ROOT, b"a"), lambda _: None, found_again
    ),
    Case(
        "release",
        open_files,
        lambda life, known: life.filesystem.release(known.handles["a"]),
        lambda _: None,
        released,
        handles_more=-1,
    ),
    Case(
        "setattr",
        open_files,
        lambda life, known: life.filesystem.setattr(
            known.nodes["a"], Changes(size=3), known.handles["a"], SOMEONE
        ),
        lambda _: None,
        truncated,
    ),
    Case(
        "mkdir",
        nothing,
        lambda life, _: life.filesystem.mkdir(ROOT, b"new", 0o755, SOMEONE),
        asks(MKDIR, b"new"),
        made(stat.S_IFDIR, 0o755),
    ),
    Case(
        "mknod",
        nothing,
        lambda life, _: life.filesystem.mknod(ROOT, b"new", stat.S_IFIFO | 0o6711, 0, SOMEONE),
        asks(MKNOD, b"new"),
        made(stat.S_IFIFO, 0o6711),
    ),
    Case(
        "symlink",
        nothing,
        lambda life, _: life.filesystem.symlink(ROOT, b"new", b"target", SOMEONE),
        asks(SYMLINK, b"new"),
        made(stat.S_IFLNK, 0),
    ),
    Case(
        "create",
        nothing,
        lambda life, _: life.filesystem.create(ROOT, b"new", 0o640, os.O_RDWR | os.O_EXCL, SOMEONE),
        asks(CREATE, b"new"),
        created,
        handles_more=1,
    ),
    Case(
        "link",
        lambda life, known: file(life, known, "a"),
        lambda life, known: life.filesystem.link(known.nodes["a"], ROOT, b"b"),
        lambda known: Unanswered(Operation(*operation.link(known.nodes["a"], ROOT, b"b"))),
        linked,
    ),
    Case(
        "unlink",
        lambda life, known: file(life, known, "a"),
        lambda life, _: life.filesystem.unlink(ROOT, b"a"),
        asks(UNLINK, b"a"),
        removed,
    ),
    Case(
        "unlink-open",
        open_files,
        lambda life, _: life.filesystem.unlink(ROOT, b"a"),
        asks(UNLINK, b"a"),
        removed,
    ),
    Case(
        "unlink-pipe",
        pipe,
        lambda life, _: life.filesystem.unlink(ROOT, b"a"),
        asks(UNLINK, b"a"),
        still_there,
    ),
    Case(
        "rmdir",
        lambda life, known: directory(life, known, "a"),
        lambda life, _: life.filesystem.rmdir(ROOT, b"a"),
        asks(RMDIR, b"a"),
        still_there,
    ),
    Case(
        "rename",
        lambda life, known: file(life, known, "a"),
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"b", 0),
        renames(b"a", b"b", 0),
        renamed,
    ),
    Case(
        "rename-over",
        with_victim(opened=False),
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"b", 0),
        renames(b"a", b"b", 0),
        renamed,
    ),
    Case(
        "rename-over-open",
        with_victim(opened=True),
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"b", 0),
        renames(b"a", b"b", 0),
        renamed,
    ),
    Case(
        "rename-noreplace",
        lambda life, known: file(life, known, "a"),
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"b", RENAME_NOREPLACE),
        renames(b"a", b"b", RENAME_NOREPLACE),
        renamed,
    ),
    Case(
        "rename-directory",
        two_directories,
        lambda life, known: life.filesystem.rename(ROOT, b"a", known.nodes["d"], b"x", 0),
        renames(b"a", b"x", 0, into="d"),
        moved_into,
    ),
    Case(
        "exchange",
        two_files,
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"b", RENAME_EXCHANGE),
        renames(b"a", b"b", RENAME_EXCHANGE),
        exchanged,
    ),
    Case(
        "setxattr-create",
        lambda life, known: file(life, known, "a"),
        set_new,
        lambda known: Unanswered(Operation(SETXATTR, known.nodes["a"], b"user.k"), must_not_exist=True),
        attribute(b"v"),
    ),
    Case(
        "setxattr",
        with_attribute,
        lambda life, known: life.filesystem.setxattr(known.nodes["a"], b"user.k", b"v", SOMEONE),
        lambda known: Unanswered(Operation(SETXATTR, known.nodes["a"], b"user.k")),
        attribute(b"v"),
    ),
    Case(
        "removexattr",
        with_attribute,
        lambda life, known: life.filesystem.removexattr(known.nodes["a"], b"user.k"),
        lambda known: Unanswered(Operation(REMOVEXATTR, known.nodes["a"], b"user.k")),
        attribute(None),
    ),
    Case(
        "open",
        lambda life, known: file(life, known, "a"),
        lambda life, known: life.filesystem.open(known.nodes["a"], os.O_RDWR, SOMEONE),
        lambda known: Unanswered(Operation(*operation.open_file(known.nodes["a"], os.O_RDWR))),
        opened(7),
        handles_more=1,
    ),
    Case(
        "open-truncating",
        lambda life, known: file(life, known, "a"),
        lambda life, known: life.filesystem.open(known.nodes["a"], os.O_RDWR | os.O_TRUNC, SOMEONE),
        lambda known: Unanswered(Operation(*operation.open_file(known.nodes["a"], os.O_RDWR | os.O_TRUNC))),
        opened(0),
        handles_more=1,
    ),
    Case(
        "opendir",
        lambda life, known: directory(life, known, "a"),
        lambda life, known: life.filesystem.opendir(known.nodes["a"]),
        lambda known: Unanswered(Operation(OPENDIR, known.nodes["a"], b"")),
        lambda life, known, handle, source: None,
        handles_more=1,
    ),
)


def handles_of(life: Life) -> int:
    return len(life.filesystem.files) + len(life.filesystem.directories)


def try_case(lives: Lives, case: Case, lines: tuple[int, ...]) -> bool:
    """Kill a process after so many lines of the operation, then its successor after so many, and so on. Return whether any was."""
    lives.begin()
    known = Known()
    with lives.life(resume=False) as life:
        case.prepare(life, known)
        before = handles_of(life)
    request = case.asked(known)
    again = [] if request is None else [request]
    asked: list[Unanswered] = []
    for line in lines:

        def work(line: int = line, asked: list[Unanswered] = asked) -> None:
            with lives.life(*asked) as life:
                killed_at_line(line, lambda: run(case.ask(life, known)))

        code = child_that_dies(work)
        assert code in (-signal.SIGKILL, 0)
        asked = again
        if code == 0:
            break  # it has done everything, and had no time to answer
    with lives.life(*again) as life:
        answer = run(case.ask(life, known))
        case.check(life, known, answer, lives.source)
        assert life.lost == []
        assert handles_of(life) == before + case.handles_more, "a handle is left over"
    return code != 0


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    yield lives
    lives.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operation_is_done_once_wherever_the_daemon_is_killed(case: Case, lives: Lives) -> None:
    """S4-10. Every so many lines, others each time."""
    line = random.randrange(STRIDE)
    killed = 0
    while try_case(lives, case, (line,)):
        killed += 1
        line += STRIDE
    assert killed > 1, "the operation has more lines than that"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operation_is_done_once_at_every_single_line(case: Case, lives: Lives) -> None:
    """S4-10. The same without gaps."""
    line = 0
    while try_case(lives, case, (line,)):
        line += 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operation_is_done_once_when_successors_are_killed_as_well(case: Case, lives: Lives) -> None:
    """S4-10. Three processes in a row die over it."""
    dice = random.Random()
    for _ in range(3):
        try_case(lives, case, tuple(dice.randrange(160) for _ in range(3)))
