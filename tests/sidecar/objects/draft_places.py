"""Drafts over a store in memory, for tests."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidecar.objects.settings import ObjectsSettings
from sidecar.objects.writing import Drafts
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.store import ObjectStore

PART = 1024


class MuchStore(MemoryStore):
    """A store in memory of which tests see what it holds, and which they make fail: `faults` are raised by calls of a name, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, list[Exception]] = {}
        self.late: dict[str, list[Exception]] = {}  # raised once it has been done
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.faults.get(name):
                raise self.faults[name].pop(0)
            answer = found(*args, **kwargs)
            if self.late.get(name):
                raise self.late[name].pop(0)
            return answer

        return call

    def content(self, key: str) -> bytes:
        """Return an object's content."""
        return self._objects[key][1]

    def stored(self) -> list[str]:
        """Return the keys there are."""
        return sorted(self._objects)

    def unfinished(self) -> int:
        """Return how many uploads there are that nobody has completed or given up."""
        return len(self._uploads)


def make_drafts(store: ObjectStore, place: Path, **settings: Any) -> Drafts:
    """Return drafts with small parts."""
    known = {"source": "memory://x", "part_bytes": PART, "request_timeout_s": 2, "retry_timeout_s": 3}
    return Drafts(store, ObjectsSettings(**{**known, **settings}), str(place))


def wait_until(what: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait until something is true."""
    until = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < until, "it does not come true"
        time.sleep(0.005)


def pattern(size: int, seed: int = 1) -> bytes:
    """Return bytes of which no two places look the same."""
    return b"".join(b"%07d\n" % (number * 7 + seed) for number in range(size // 8 + 1))[:size]
