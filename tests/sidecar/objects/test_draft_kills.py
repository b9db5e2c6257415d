"""Drafts that one process after another goes on with, each killed somewhere: before any line of the writing side's code, in any thread.

The kernel sends again what was not answered. In the end the store has what a process that nobody killed would have left: byte by
byte, and nothing more.
"""

import os
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sidecar.objects import upload_leftovers
from sidecar.objects.writing import Drafts
from sidemount.stores.local_store import LocalStore
from sidemount.stores.store import ObjectStore
from tests.sidecar.objects.draft_places import PART, make_drafts, pattern, wait_until
from tests.sidecar.takeover.processes import child_that_dies, die
from tests.stores.kinds import kind_of

NODE, KEY = 7, "place/file"
MIB = 1 << 20
LARGE = 5 * MIB  # the least that real stores take as a part
OURS = ("draft", "upload_", "spool", "staging", "writing")
Operation = tuple[Any, ...]


def stream(size: int, step: int, start: int = 0) -> list[Operation]:
    """Return writes in order."""
    content = pattern(start + size)
    return [
        ("write", at, content[at : min(at + step, start + size)]) for at in range(start, start + size, step)
    ]


SCENARIOS: dict[str, list[Operation]] = {
    "stream": [("create", False), *stream(6 * PART + 77, 700), ("commit",), ("forget",)],
    "exclusive": [("create", True), *stream(3 * PART, 1500), ("commit",), ("forget",)],
    "small": [("create", True), ("write", 0, b"little"), ("commit",), ("forget",)],
    "in steps": [
        ("create", False),
        *stream(3 * PART, 2000),
        ("commit",),
        *stream(3 * PART, 900, start=3 * PART),
        ("commit",),
        *stream(10, 5, start=6 * PART),
        ("commit",),
        ("forget",),
    ],
    "edit": [
        ("edit",),
        ("write", 5, b"within"),
        ("write", 4 * PART - 3, b"at the end and beyond"),
        ("size", 3 * PART + 5),
        ("size", 5 * PART),
        ("write", 3 * PART, pattern(3 * PART)),
        ("commit",),
        ("write", 2 * PART, b"again"),
        ("commit",),
        ("forget",),
    ],
    "overwrite": [
        ("create", False),
        *stream(4 * PART, 1000),
        ("size", 0),
        *stream(3 * PART, 1000),
        ("create", False),
        ("write", 0, pattern(2 * PART + 1, seed=3)),
        ("commit",),
        ("forget",),
    ],
    "header": [
        ("create", False),
        *stream(4 * PART, 1000),
        ("write", 0, b"header"),
        ("write", 4 * PART, b"end"),
        ("commit",),
        ("forget",),
    ],
    "large": [
        ("create", False),
        *stream(2 * LARGE + 77, MIB),
        ("commit",),
        ("write", 2 * LARGE + 77, b"more"),
        ("commit",),
        ("forget",),
    ],
    "unlinked": [
        ("create", False),
        *stream(4 * PART, 1000),
        ("discard",),
        *stream(99, 99, 4 * PART),
        ("forget",),
    ],
}
BEFORE = pattern(4 * PART, seed=9)


def settings_of(name: str) -> dict[str, Any]:
    """Return what a scenario needs."""
    staging_bytes = MIB if name in ("edit", "header") else 0
    if name == "large":
        return {"part_bytes": LARGE, "request_timeout_s": 15, "retry_timeout_s": 15}
    return {"staging_bytes": staging_bytes}


def expected(name: str) -> bytes:
    """Return what the store has in the end: what the operations make of a file."""
    content, committed = bytearray(), b"" if name in ("exclusive", "small") else BEFORE
    for kind, *what in SCENARIOS[name]:
        if kind == "edit":
            content[:] = BEFORE
        elif kind == "create":
            content.clear()
        elif kind == "write":
            offset, more = what
            content += bytes(max(offset - len(content), 0))
            content[offset : offset + len(more)] = more
        elif kind == "size":
            content[:] = content[: what[0]] + bytes(max(what[0] - len(content), 0))
        elif kind == "commit":
            committed = bytes(content)
    return committed


class Place:
    """Where a scenario happens: the store, the drafts' directory, and how far the kernel was answered."""

    def __init__(self, path: Path, name: str, opens: Callable[[], ObjectStore] | None = None) -> None:
        self.name = name
        self.path = path
        self.open = opens or (lambda: LocalStore(str(path / "store")))
        self.answered = path / "answered"

    def begin(self) -> None:
        """Have everything as it is at first."""
        shutil.rmtree(self.path, ignore_errors=True)
        (self.path / "store").mkdir(parents=True)
        self.answered.touch()
        if self.name not in ("exclusive", "small"):
            store = self.open()
            store.put(KEY, [BEFORE])
            store.close()

    def live(self) -> None:
        """Be one process: go on from the first operation that was not answered."""
        store = self.open()
        drafts = make_drafts(store, self.path / "drafts", **settings_of(self.name))
        drafts.resume()
        for operation in SCENARIOS[self.name][self.answered.stat().st_size :]:
            run(store, drafts, operation)
            with self.answered.open("ab", buffering=0) as file:
                file.write(b".")
        upload_leftovers.__dict__["_DOUBT_S"] = 0.0
        drafts._errands.wake()
        wait_until(lambda: not store.uploads(KEY) and os.listdir(self.path / "drafts") == ["uploads"])
        drafts.close()

    def check(self) -> None:
        """Fail if the store has anything but what it should."""
        store = self.open()
        found = {one.key: one for one in store.list_page("", delimiter=False).objects}
        assert list(found) == [KEY]
        buffer = memoryview(bytearray(found[KEY].size))
        store.get(KEY, 0, buffer)
        store.close()
        assert buffer == expected(self.name)


def run(store: ObjectStore, drafts: Drafts, operation: Operation) -> None:
    """Do what the kernel asks."""
    kind, *what = operation
    draft = drafts.of(NODE)
    if kind == "create":
        drafts.create(NODE, KEY, exclusive=what[0])
    elif kind == "edit":
        drafts.edit(NODE, KEY, store.head(KEY))
    elif kind == "forget":
        drafts.forget(NODE)
    elif draft is None:
        raise AssertionError("the draft is gone")
    elif kind == "write":
        assert draft.write(*what) == len(what[1])
    elif kind == "size":
        draft.set_size(*what)
    elif kind == "commit":
        draft.commit()
    else:
        draft.discard()


def killed_at(number: int, work: Callable[[], None]) -> None:
    """Run a function and be killed before the n-th line of our code that any thread comes to."""
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        path, name = os.path.split(frame.f_code.co_filename)
        if not (path.endswith("sidecar/objects") and name.startswith(OURS) and "tests" not in path):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                die()
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)


def killed_everywhere(place: Place, stride: int) -> int:
    """Have a scenario's processes killed at one line after another, and return how often."""
    kills, line = 0, stride // 2
    while True:
        place.begin()
        end = child_that_dies(partial(killed_at, line, place.live))
        assert end in (-9, 0), f"it fails when it is to be killed at {line}"
        if end == 0:
            place.check()
            return kills
        kills += 1
        again = child_that_dies(partial(killed_at, (line * 37) % 4000, place.live))
        assert again in (-9, 0), f"killed at {line}, it fails"
        kills += again == -9
        assert child_that_dies(place.live) == 0, f"killed at {line}, it fails"
        place.check()
        line += stride


@pytest.mark.parametrize(
    "stride",
    [
        pytest.param(151, id="here and there"),
        pytest.param(7, id="all over", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "large"])
def test_nothing_is_lost_or_done_twice_wherever_it_is_killed(tmp_path: Path, name: str, stride: int) -> None:
    place = Place(Path("/dev/shm") / f"drafts-{os.getpid()}-{tmp_path.name}", name)
    try:
        assert killed_everywhere(place, stride) > 2
    finally:
        shutil.rmtree(place.path, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(900, func_only=True)
@pytest.mark.parametrize("kind", ["seaweedfs", "versity", "gcs", "azure"])
def test_nothing_is_lost_or_done_twice_in_a_real_store(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = Place(tmp_path / "place", "large", kind_of(kind, request, tmp_path).open)
    assert killed_everywhere(place, 301) > 2
