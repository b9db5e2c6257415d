"""What is known of names, and what is asked all the same."""

import os
import stat
from pathlib import Path

import pytest

from sidecar.objects.known import Fact, Known
from sidecar.objects.metrics import Metrics
from sidecar.objects.tree import Tree
from sidecar.protocol_filesystem import ROOT
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.store import ObjectInfo
from tests.sidecar.directory.core import run
from tests.sidecar.directory.harness import outcome
from tests.sidecar.objects.core import SOMEONE, Kernel, make_kernel

INFO = ObjectInfo("a", 1, "e", 1)


class Clock:
    """Time that tests make pass."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def kernel(store: MemoryStore, tmp_path: Path) -> Kernel:
    return make_kernel(store, tmp_path)


def test_what_is_made_in_a_busy_directory_is_asked_for_itself(store: MemoryStore, kernel: Kernel) -> None:
    for number in range(20):
        assert outcome(kernel.stat, f"f{number}") == "ENOENT"
    made = run(kernel.filesystem.mknod(ROOT, b"f3", stat.S_IFREG | 0o644, 0, SOMEONE))
    assert stat.S_ISREG(made.attributes.mode)
    store.put("f4", [b"somebody else's"])
    assert outcome(kernel.create, "f4", os.O_EXCL) == "EEXIST"


def test_facts_are_believed_for_their_time() -> None:
    clock = Clock()
    known = Known(known_s=10, missing_s=2, clock=clock)
    known.learn("a", Fact(INFO, False, 100))
    known.learn("b", Fact(None, False, 100))
    clock.now = 101
    assert known.get("a") == Fact(INFO, False, 100)
    assert known.get("b") == Fact(None, False, 100)
    clock.now = 105
    assert known.get("a") is not None
    assert known.get("b") is None
    clock.now = 110
    assert known.get("a") is None


def test_older_answer_does_not_undo_a_younger_fact() -> None:
    known = Known(known_s=10, missing_s=10, clock=Clock())
    known.learn("a", Fact(None, False, 100))  # we have removed it
    known.learn("a", Fact(INFO, False, 99))  # what a listing told that was on its way
    fact = known.get("a")
    assert fact is not None
    assert not fact.is_there


def test_whole_listing_tells_what_is_not_there_until_a_fact_of_it_is_lost() -> None:
    known = Known(known_s=10, missing_s=10, most=8, clock=Clock())
    known.learn_all((f"d/{number}", Fact(INFO, False, 100)) for number in range(3))
    known.listed("d", 100, 3)
    absent = known.get("d/absent")
    assert absent is not None
    assert not absent.is_there
    known.learn_all((f"e/{number}", Fact(INFO, False, 100)) for number in range(6))
    assert len(known) == 8
    assert known.get("d/absent") is None


def test_what_lies_beneath_a_moved_directory_is_forgotten() -> None:
    known = Known(known_s=10, missing_s=10, clock=Clock())
    for path in ("d", "d/x", "d/e/y", "dd", "dd/x"):
        known.learn(path, Fact(INFO, False, 100))
    known.listed("d/e", 100, 1)
    known.forget_beneath("d")
    assert [path for path in ("d", "d/x", "d/e/y", "d/e/z", "dd", "dd/x") if known.get(path)] == [
        "dd",
        "dd/x",
    ]


def test_kept_directories_keep_those_above_them_and_move_along(store: MemoryStore) -> None:
    tree = Tree(store, Known(known_s=0, missing_s=0), Metrics())
    tree.keep("a/b/c")
    assert [tree.ask(path).is_directory for path in ("a", "a/b", "a/b/c", "a/b/d")] == [
        True,
        True,
        True,
        False,
    ]
    assert tree.kept_in("a") == ("a/b",)
    tree.moved_directory("a/b", "n")
    assert [tree.ask(path).is_directory for path in ("a", "a/b", "n", "n/c")] == [True, False, True, True]
    store.put("n/c", [b"a file that somebody has put there"])
    assert not tree.ask("n/c").is_directory
    assert tree.kept_in("n") == ()
    tree.close()
