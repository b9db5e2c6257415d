"""Names that are taken away or given to another file while what was written under them is on its way to the store, or still waits for it."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault
from tests.sidecar.directory.core import run
from tests.sidecar.objects.core import Kernel, make_kernel

_LONG_S = 20.0


class SlowStore(MemoryStore):
    """A put of the content `slow` goes on only when it is allowed to; with `is_away` no put works."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.begun, self.allowed = threading.Event(), threading.Event()

    def put(self, key: str, content: Any, **conditions: Any) -> ObjectInfo:
        whole = b"".join(bytes(part) for part in content)
        if self.is_away:
            raise StoreFault(errno.EIO, FaultKind.SERVER, "away")
        if whole == b"slow":
            self.begun.set()
            assert self.allowed.wait(_LONG_S)
        return super().put(key, [whole], **conditions)

    def content(self) -> dict[str, bytes]:
        """Return everything."""
        return {key: content for key, (_, content, *_) in self._objects.items()}


def test_commit_on_its_way_does_not_undo_a_rename_over_its_file(tmp_path: Path) -> None:
    store = SlowStore()
    kernel = make_kernel(store, tmp_path)
    kernel.put("new", b"new")
    slow = kernel.create("f")
    kernel.write(slow, 0, b"slow")
    closing = threading.Thread(target=kernel.close, args=(slow,))
    closing.start()
    assert store.begun.wait(_LONG_S)
    renaming = threading.Thread(target=kernel.rename, args=("new", "f"))
    renaming.start()
    renaming.join(0.1)  # if it does not wait, it is over by then
    store.allowed.set()
    for thread in (closing, renaming):
        thread.join(_LONG_S)
    assert store.content() == {"f": b"new"}
    assert kernel.cat("f") == b"new"


def _unlink(kernel: Kernel) -> dict[str, bytes]:
    kernel.unlink("f")
    return {"other": b"other"}


def _rename_over(kernel: Kernel) -> dict[str, bytes]:
    kernel.rename("other", "f")
    return {"f": b"other"}


def _rename_away(kernel: Kernel) -> dict[str, bytes]:
    kernel.rename("f", "g")
    return {"g": b"old", "other": b"other"}


@pytest.mark.parametrize("take_away", [_unlink, _rename_over, _rename_away])
def test_file_that_waits_for_its_store_does_not_come_back_under_a_name_that_was_taken_away(
    tmp_path: Path, take_away: Callable[[Kernel], dict[str, bytes]]
) -> None:
    store = SlowStore()
    store.put("f", [b"old"])
    store.put("other", [b"other"])
    kernel = make_kernel(store, tmp_path)
    handle = kernel.open("f", 0o1001)  # O_WRONLY | O_TRUNC
    kernel.write(handle, 0, b"late")
    store.is_away = True
    with pytest.raises(OSError, match="away"):
        run(kernel.filesystem.flush(handle))
    run(kernel.filesystem.release(handle))
    drafts = kernel.filesystem.volume.drafts
    assert drafts.statistics()["abandoned"] == 1
    wanted = take_away(kernel)
    assert drafts.statistics()["abandoned"] == 0
    store.is_away = False
    drafts.finish(float("inf"))
    assert store.content() == wanted
    assert drafts.statistics()["files_lost"] == 1
