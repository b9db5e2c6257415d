"""A budget is exact wherever a daemon is killed: before each line of code that an operation runs.

One process begins an operation and is killed at some line; then whoever locks next settles it. Then a successor takes over and is asked
for the same operation again, as the kernel would.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sidecar.directory.root import open_root
from sidecar.directory.settings import DirectorySettings
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import ROOT, Changes
from sidecar.takeover.memory import Memory
from sidecar.volume import places
from sidecar.volume.filesystem import VolumeFilesystem
from sidecar.volume.opening import open_volume
from sidemount.host import budget
from tests.sidecar.directory.core import Someone, at_once, run
from tests.sidecar.takeover.processes import child_that_dies, die
from tests.sidecar.volume.volumes import held, make_volume, used

pytestmark = pytest.mark.root

LIMIT = 10_000
SOMEONE = Someone(uid=1234, gid=1234)
_OURS = (f"{os.sep}sidecar{os.sep}volume{os.sep}", f"{os.sep}host{os.sep}budget")

_HARMLESS = ("<dictcomp>", "<genexpr>", "<listcomp>", "_parse_share")  # they only look, line by line


def open_filesystem(source: Path) -> VolumeFilesystem:
    """Return a filesystem over a volume, without FUSE."""
    settings = DirectorySettings(source=str(source / "data"))
    memory = Memory()
    volume = open_volume(str(source), str(source), read_only=False, memory=memory)
    store = Store(open_root(settings.source, ""))
    return VolumeFilesystem(store, settings, at_once, 50, memory, volume)


class Application:
    """A filesystem, and what an application has open in it."""

    def __init__(self, source: Path) -> None:
        self.filesystem = open_filesystem(source)
        self.nodes: dict[str, int] = {}
        self.handles: dict[str, int] = {}
        for name in os.listdir(source / "data"):
            node = run(self.filesystem.lookup(ROOT, name.encode())).node
            self.nodes[name] = node
            self.handles[name] = run(self.filesystem.open(node, os.O_RDWR, SOMEONE)).handle


def extend(it: Application) -> None:
    run(it.filesystem.write(it.handles["a"], 1000, b"x" * 2000))


def fill(it: Application) -> None:
    with pytest.raises(OSError, match="quota"):
        run(it.filesystem.write(it.handles["a"], 1000, b"x" * 20_000))


def truncate(it: Application) -> None:
    run(it.filesystem.setattr(it.nodes["a"], Changes(size=7), None, SOMEONE))


def grow(it: Application) -> None:
    run(it.filesystem.setattr(it.nodes["a"], Changes(size=5000), it.handles["a"], SOMEONE))


def empty(it: Application) -> None:
    run(it.filesystem.open(it.nodes["a"], os.O_RDWR | os.O_TRUNC, SOMEONE))


def unlink_open(it: Application) -> None:
    run(it.filesystem.unlink(ROOT, b"a"))


def unlink(it: Application) -> None:
    run(it.filesystem.release(it.handles["a"]))
    run(it.filesystem.unlink(ROOT, b"a"))


def rename(it: Application) -> None:
    run(it.filesystem.release(it.handles["b"]))
    run(it.filesystem.rename(ROOT, b"a", ROOT, b"b", 0))


def link(it: Application) -> None:
    run(it.filesystem.link(it.nodes["a"], ROOT, b"c"))
    run(it.filesystem.unlink(ROOT, b"a"))


def nameless(it: Application) -> None:
    run(it.filesystem.unlink(ROOT, b"a"))
    run(it.filesystem.write(it.handles["a"], 0, b"y" * 3000))
    run(it.filesystem.setattr(it.nodes["a"], Changes(size=100), it.handles["a"], SOMEONE))
    run(it.filesystem.release(it.handles["a"]))


OPERATIONS = [extend, fill, truncate, grow, empty, unlink_open, unlink, rename, link, nameless]


def killed_at_line(number: int, work: Callable[[], Any]) -> None:
    """Run a function and be killed before its n-th line of the account's code; live if it has fewer."""
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if not any(part in code.co_filename for part in _OURS) or code.co_name in _HARMLESS:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                die()
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)


@pytest.fixture
def volumes(tmp_path: Path) -> Callable[[], Path]:
    """Make volumes with two files each."""
    made: list[Path] = []

    def make() -> Path:
        source = make_volume(tmp_path / str(len(made)), LIMIT)
        for name in "ab":
            (source / "data" / name).write_bytes(b"o" * 1500)
        budget.set_used(str(source), 3000)
        made.append(source)
        return source

    return make


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize(
    "stride", [11, pytest.param(1, marks=pytest.mark.slow)], ids=["some lines", "every line"]
)
def test_whoever_locks_next_settles_what_a_killed_daemon_left(
    volumes: Callable[[], Path], operation: Callable[[Application], None], stride: int
) -> None:
    for number in range(0, 100_000, stride):
        source = volumes()

        def live(source: Path = source, number: int = number) -> None:
            it = Application(source)
            killed_at_line(number, lambda: operation(it))

        ended = child_that_dies(live)
        assert ended in (0, -signal.SIGKILL)
        with budget.hold_still(str(source), 20) as still:
            assert still.used == held(source), f"killed at line {number}"
            assert still.used <= LIMIT
        assert used(source) == still.used
        assert sorted(os.listdir(source)) == ["budget", "data"], f"killed at line {number}"
        if ended == 0:
            assert number > 5 * stride
            return
    raise AssertionError("it never came to its end")


def test_a_kill_between_two_mounts_costs_the_living_nothing(volumes: Callable[[], Path]) -> None:
    source = volumes()
    living = Application(source)
    for number in range(0, 400, 23):

        def live(number: int = number) -> None:
            it = Application(source)
            killed_at_line(number, lambda: extend(it))

        child_that_dies(live)
        size = 100 + number
        run(living.filesystem.setattr(living.nodes["b"], Changes(size=size), None, SOMEONE))
        assert used(source) == held(source) == size + (source / "data" / "a").stat().st_size
        run(living.filesystem.setattr(living.nodes["a"], Changes(size=0), None, SOMEONE))


def test_too_long_a_path_is_settled_as_well(
    volumes: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "LONGEST_PATH", 0)
    for operation in (extend, unlink_open, unlink, truncate):
        for number in range(0, 100_000, 5):
            source = volumes()

            def live(source: Path = source, number: int = number, work: Any = operation) -> None:
                it = Application(source)
                killed_at_line(number, lambda: work(it))

            ended = child_that_dies(live)
            with budget.hold_still(str(source), 20) as still:
                assert still.used == held(source), f"{operation.__name__} killed at line {number}"
            assert sorted(os.listdir(source)) == ["budget", "data"]
            if ended == 0:
                break
