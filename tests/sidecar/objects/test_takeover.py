"""Changes of a bucket's names that are made exactly once, wherever the daemon is killed: before each line of code that one runs.

A first process prepares; a second one begins an operation and is killed at some line; a third one takes over, is asked for the same
operation again by the kernel, and must answer as if nothing had happened and leave what one execution leaves.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sidecar.directory.syscalls import RENAME_NOREPLACE
from sidecar.protocol_filesystem import ROOT
from sidecar.takeover import operation
from sidecar.takeover.drain import Drained, Unanswered
from sidecar.takeover.operation import CREATE, MKDIR, MKNOD, OPENDIR, RMDIR, UNLINK, Operation
from sidecar.takeover.park import Park
from sidecar.takeover.state import State, begin_state, resume_state
from sidemount.stores.local_store import LocalStore
from tests.sidecar.directory.core import Shelf, run
from tests.sidecar.directory.harness import outcome
from tests.sidecar.objects.core import SOMEONE, Kernel, make_filesystem
from tests.sidecar.takeover.lives import killed_at_line
from tests.sidecar.takeover.processes import child_that_dies

STRIDE = 67  # lines from one kill to the next in the short form

pytestmark = pytest.mark.root


class Life(Kernel):
    """One process's filesystem."""

    def __init__(self, state: State, store: LocalStore, place: Path) -> None:
        self.state = state
        super().__init__(make_filesystem(store, place, memory=state, state=str(place / "state")))

    def do(self, asked: Coroutine[Any, Any, Any]) -> Any:
        """Return what an operation returns; the kernel has its answer then."""
        result = run(asked)
        self.read_on()
        return result

    def read_on(self) -> None:
        """Do what is done before the next request is read."""
        errands = self.filesystem.memory.errands
        for _ in range(len(errands)):
            errand = errands.popleft()
            if errand(False):
                errands.append(errand)


class Lives:
    """The store, the state and the cache that the lives share."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = LocalStore(str(place / "objects"))
        self.park: Park | None = None

    def begin(self) -> None:
        """Have everything empty."""
        if self.park is not None:
            self.park.close()
        for name in ("objects", "state", "cache"):
            shutil.rmtree(self.place / name, ignore_errors=True)
            (self.place / name).mkdir()
        self.park = Park.make()

    @contextmanager
    def life(self, *unanswered: Unanswered, resume: bool = True) -> Iterator[Life]:
        """Be alive for a block."""
        assert self.park is not None
        park = Park.adopt(*(os.dup(end) for end in self.park.descriptors))
        directory = str(self.place / "state")
        state = resume_state(directory, park, park.recover()) if resume else begin_state(directory, park)
        life = Life(state, self.store, self.place)
        if resume:
            life.filesystem.resume(Drained(operations=unanswered))
        try:
            yield life
        finally:
            life.filesystem.stop()
            state.close()
            park.close()

    def keys(self) -> dict[str, bytes]:
        """Return what is in the store."""
        found = {}
        for info in self.store.list_page("", delimiter=False).objects:
            buffer = memoryview(bytearray(info.size))
            self.store.get(info.key, 0, buffer)
            found[info.key] = bytes(buffer)
        return found


@dataclass
class Known:
    """What the kernel knows."""

    nodes: dict[str, int] = field(default_factory=dict)
    handles: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """An operation: what there is before, what the kernel asks, which request that is, and what must be so afterwards."""

    name: str
    prepare: Callable[[Life, Known], None]
    ask: Callable[[Life, Known], Coroutine[Any, Any, Any]]
    asked: Callable[[Known], Unanswered | None]
    check: Callable[[Lives, Life, Known, Any], None]


def nothing(life: Life, known: Known) -> None:
    """Have nothing."""


def file(life: Life, known: Known, name: str, content: bytes = b"content") -> None:
    """Have a file that the kernel knows and somebody has open for reading."""
    life.put(name, content)
    known.nodes[name] = life.node(name)
    known.handles[name] = life.open(name)
    life.read_on()


def directory(life: Life, known: Known, name: str) -> None:
    """Have a directory that the kernel knows."""
    known.nodes[name] = life.do(life.filesystem.mkdir(*life.split(name), 0o755, SOMEONE)).node


def tree(life: Life, known: Known) -> None:
    """Have a directory with things in it."""
    directory(life, known, "d")
    directory(life, known, "d/e")
    for name in ("d/x", "d/e/y", "d/z"):
        file(life, known, name, name.encode())


def two_files(life: Life, known: Known) -> None:
    """Have two files."""
    file(life, known, "a")
    file(life, known, "b", b"victim")


def written(life: Life, known: Known) -> None:
    """Have a file that somebody is writing."""
    known.handles["a"] = life.create("a")
    life.write(known.handles["a"], 0, b"content")
    known.nodes["a"] = life.node("a")
    life.read_on()


def asks(kind: int, name: bytes, node: int = ROOT) -> Callable[[Known], Unanswered]:
    """Return the request of an operation on a name in the root."""
    return lambda known: Unanswered(Operation(kind, node, name))


def renames(name: bytes, new_name: bytes, flags: int = 0) -> Callable[[Known], Unanswered]:
    """Return the request of a rename in the root."""
    return lambda known: Unanswered(Operation(*operation.rename(ROOT, name, ROOT, new_name, flags)))


def made_directory(lives: Lives, life: Life, known: Known, entry: Any) -> None:
    assert lives.keys() == {"new/": b""}
    assert life.node("new") == entry.node
    assert outcome(life.mkdir, "new") == "EEXIST"


def made_file(lives: Lives, life: Life, known: Known, entry: Any) -> None:
    assert lives.keys() == {"new": b""}
    assert life.node("new") == entry.node


def created(lives: Lives, life: Life, known: Known, answer: Any) -> None:
    opened, entry = answer
    assert life.node("new") == entry.node
    life.write(opened.handle, 0, b"written")
    life.close(opened.handle)
    assert lives.keys() == {"new": b"written"}
    assert not life.filesystem.volume.drafting()


def removed(lives: Lives, life: Life, known: Known, answer: Any) -> None:
    assert answer is None
    assert lives.keys() == {}
    assert outcome(life.node, "a") == "ENOENT"


def renamed(lives: Lives, life: Life, known: Known, answer: Any) -> None:
    assert answer is None
    assert lives.keys() == {"b": b"content"}
    assert life.node("b") == known.nodes["a"]
    assert life.read(known.handles["a"]) == b"content"
    assert outcome(life.node, "a") == "ENOENT"


def moved(lives: Lives, life: Life, known: Known, answer: Any) -> None:
    assert answer is None
    assert lives.keys() == {"n/": b"", "n/e/": b"", "n/x": b"d/x", "n/e/y": b"d/e/y", "n/z": b"d/z"}
    assert life.node("n") == known.nodes["d"]
    assert life.node("n/e/y") == known.nodes["d/e/y"]
    assert life.read(known.handles["d/e/y"]) == b"d/e/y"
    assert outcome(life.node, "d") == "ENOENT"


def committed(lives: Lives, life: Life, known: Known, answer: Any) -> None:
    assert answer is None
    assert lives.keys() == {"a": b"content"}
    life.write(known.handles["a"], 7, b" and more")
    life.close(known.handles["a"])
    assert lives.keys() == {"a": b"content and more"}


def released(lives: Lives, life: Life, known: Known, answer: Any) -> None:
    assert answer is None
    assert lives.keys() == {"a": b"content"}
    assert outcome(life.write, known.handles["a"], 0, b"x") == "EBADF"
    assert not life.filesystem.volume.drafting()


def half_renamed(lives: Lives, life: Life, known: Known, answer: Any) -> None:
    assert answer is None
    assert lives.keys() == {"b": b"content"}
    life.write(known.handles["a"], 7, b"!")
    life.close(known.handles["a"])
    assert lives.keys() == {"b": b"content!"}


def listed(lives: Lives, life: Life, known: Known, handle: Any) -> None:
    shelf = Shelf()
    run(life.filesystem.readdir(handle, 0, shelf))
    assert [name for name, *_ in shelf.entries] == [b".", b".."]


CASES = (
    Case(
        "mkdir",
        nothing,
        lambda life, _: life.filesystem.mkdir(ROOT, b"new", 0o755, SOMEONE),
        asks(MKDIR, b"new"),
        made_directory,
    ),
    Case(
        "mknod",
        nothing,
        lambda life, _: life.filesystem.mknod(ROOT, b"new", 0o100644, 0, SOMEONE),
        asks(MKNOD, b"new"),
        made_file,
    ),
    Case(
        "create",
        nothing,
        lambda life, _: life.filesystem.create(ROOT, b"new", 0o644, os.O_WRONLY | os.O_EXCL, SOMEONE),
        asks(CREATE, b"new"),
        created,
    ),
    Case(
        "unlink",
        lambda life, known: file(life, known, "a"),
        lambda life, _: life.filesystem.unlink(ROOT, b"a"),
        asks(UNLINK, b"a"),
        removed,
    ),
    Case(
        "rmdir",
        lambda life, known: directory(life, known, "a"),
        lambda life, _: life.filesystem.rmdir(ROOT, b"a"),
        asks(RMDIR, b"a"),
        removed,
    ),
    Case(
        "rename",
        lambda life, known: file(life, known, "a"),
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"b", RENAME_NOREPLACE),
        renames(b"a", b"b", RENAME_NOREPLACE),
        renamed,
    ),
    Case(
        "rename-over",
        two_files,
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"b", 0),
        renames(b"a", b"b"),
        renamed,
    ),
    Case(
        "rename-while-written",
        written,
        lambda life, _: life.filesystem.rename(ROOT, b"a", ROOT, b"b", 0),
        renames(b"a", b"b"),
        half_renamed,
    ),
    Case(
        "rename-directory",
        tree,
        lambda life, _: life.filesystem.rename(ROOT, b"d", ROOT, b"n", 0),
        renames(b"d", b"n"),
        moved,
    ),
    Case(
        "flush",
        written,
        lambda life, known: life.filesystem.flush(known.handles["a"]),
        lambda _: None,
        committed,
    ),
    Case(
        "release",
        written,
        lambda life, known: life.filesystem.release(known.handles["a"]),
        lambda _: None,
        released,
    ),
    Case("opendir", nothing, lambda life, _: life.filesystem.opendir(ROOT), asks(OPENDIR, b""), listed),
)


def test_directory_is_made_once_where_a_store_keeps_no_tags(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "tag_of", lambda self, key: (self.head(key), ""))
    case = next(case for case in CASES if case.name == "mkdir")
    line = 0
    while _killed_at(lives, case, line):
        line += STRIDE


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    yield lives
    if lives.park is not None:
        lives.park.close()


def _prepared(lives: Lives, case: Case) -> Known:
    lives.begin()
    known = Known()
    with lives.life(resume=False) as life:
        case.prepare(life, known)
        life.read_on()
    return known


def _killed_at(lives: Lives, case: Case, line: int) -> bool:
    """Have an operation's process killed at a line, and its successor asked again. Return whether it came to that line."""
    known = _prepared(lives, case)

    def second() -> None:
        with lives.life() as life:
            killed_at_line(line, lambda: run(case.ask(life, known)))

    code = child_that_dies(second)
    assert code in (0, -signal.SIGKILL), f"line {line}: the operation failed"
    again = case.asked(known)
    with lives.life(*([again] if again is not None else [])) as life:
        answer = life.do(case.ask(life, known))
        case.check(lives, life, known, answer)
    return code != 0


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_operation_is_done_once_whichever_line_it_is_killed_at(lives: Lives, case: Case) -> None:
    """S4-10: a stride of lines; the slow form has more."""
    line = 0
    while _killed_at(lives, case, line):
        line += STRIDE
    assert line > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_operation_is_done_once_at_many_more_lines(lives: Lives, case: Case) -> None:
    """S4-10: every third line."""
    line = 0
    while _killed_at(lives, case, line):
        line += 3


def test_a_state_that_nobody_came_to_serve_from_is_begun_with(lives: Lives) -> None:
    lives.begin()
    assert lives.park is not None
    begin_state(str(lives.place / "state"), lives.park).close()  # and the process dies
    for content in (b"one", b"two"):
        with lives.life() as life:
            opened, _ = run(life.filesystem.create(ROOT, content, 0o644, os.O_WRONLY, SOMEONE))
            life.write(opened.handle, 0, content)
            life.close(opened.handle)
    assert lives.keys() == {"one": b"one", "two": b"two"}


def test_file_whose_maker_was_killed_too_is_stored_in_the_end(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.objects.filesystem._ORPHANED_S", 0.05)
    lives.begin()
    with lives.life(resume=False) as life:
        opened, _ = run(life.filesystem.create(ROOT, b"f", 0o644, os.O_WRONLY, SOMEONE))
        life.write(opened.handle, 0, b"content")
        life.filesystem.memory.handles.closed(opened.handle)  # the kernel was never told of it
    with lives.life() as life:
        assert life.stat("f").size == 7
        life.filesystem.begin(lambda node: True)
        deadline = time.monotonic() + 20
        while life.filesystem.volume.drafting():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert lives.keys() == {"f": b"content"}
        assert life.cat("f") == b"content"
