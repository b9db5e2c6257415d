"""Renames that a successor is asked for again, while the store still comes to what the dead process had asked it last."""

import errno
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.protocol_filesystem import ROOT
from sidecar.takeover import operation
from sidecar.takeover.drain import Unanswered
from sidecar.takeover.operation import Operation
from sidemount.stores.local_store import LocalStore
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault
from tests.sidecar.directory.core import run
from tests.sidecar.objects.test_takeover import Known, Lives, file, tree
from tests.sidecar.takeover.processes import child_that_dies, die

pytestmark = pytest.mark.root


class LateStore(LocalStore):
    """With `is_dying`, the process dies when it removes something; `late` is what the store removes when it is next asked to copy."""

    is_dying = False
    late: tuple[str, ...] = ()

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Copy."""
        late, self.late = self.late, ()
        for one in late:
            super().delete(one)
        if source in late:
            raise StoreFault(errno.ENOENT, FaultKind.MISSING, source)
        return super().copy(source, key, etag=etag, if_absent=if_absent)

    def delete(self, key: str) -> None:
        """Remove."""
        if self.is_dying:
            die()
        super().delete(key)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    lives.store = LateStore(str(tmp_path / "objects"))
    lives.begin()
    yield lives
    assert lives.park is not None
    lives.park.close()


def _killed_while_it_removes(lives: Lives, old: bytes, new: bytes) -> Unanswered:
    """Have a process killed that has copied everything, and return what the kernel asks again."""
    assert isinstance(lives.store, LateStore)

    def second() -> None:
        with lives.life() as life:
            lives.store.__dict__["is_dying"] = True
            run(life.filesystem.rename(ROOT, old, ROOT, new, 0))

    assert child_that_dies(second) == -signal.SIGKILL
    return Unanswered(Operation(*operation.rename(ROOT, old, ROOT, new, 0)))


def test_file_that_vanishes_while_it_is_copied_again_was_renamed(lives: Lives) -> None:
    """S4-10."""
    assert isinstance(lives.store, LateStore)
    with lives.life(resume=False) as life:
        file(life, Known(), "a")
    unanswered = _killed_while_it_removes(lives, b"a", b"b")
    lives.store.late = ("a",)
    with lives.life(unanswered) as life:
        life.do(life.filesystem.rename(ROOT, b"a", ROOT, b"b", 0))
        assert life.cat("b") == b"content"
    assert lives.keys() == {"b": b"content"}


def test_directory_that_vanishes_while_it_is_copied_again_keeps_its_copies(lives: Lives) -> None:
    """S4-10."""
    assert isinstance(lives.store, LateStore)
    with lives.life(resume=False) as life:
        tree(life, Known())
    before = lives.keys()
    unanswered = _killed_while_it_removes(lives, b"d", b"n")
    lives.store.late = tuple(reversed([key for key in before if key != "d/"]))
    with lives.life(unanswered) as life:
        life.do(life.filesystem.rename(ROOT, b"d", ROOT, b"n", 0))
    assert lives.keys() == {f"n{key[1:]}": content for key, content in before.items()}
