"""A store in memory that is as slow and as faulty as a test wants, and tells what it was asked."""

import errno
import threading
import time
from collections.abc import Callable

from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.store import FaultKind, Got, ObjectInfo, Page, StoreFault

KIB = 1 << 10
BLOCK = 64 * KIB

Asked = tuple[str, str, int, int]
"""(call, key, offset, size)."""


class ScriptedStore(MemoryStore):
    """Reads go through `gate`, which may wait or raise; `asked` has all of them, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.gate: Callable[[Asked], None] = lambda asked: None
        self._asking = threading.Lock()
        self.at_once = 0
        self.most_at_once = 0

    def get(self, key: str, offset: int, buffer: memoryview, *, etag: str = "", unless: str = "") -> Got:
        """Read."""
        with self._asking:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self._ask(("get", key, offset, len(buffer)))
            return super().get(key, offset, buffer, etag=etag, unless=unless)
        finally:
            with self._asking:
                self.at_once -= 1

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key."""
        self._ask(("head", key, 0, 0))
        return super().head(key)

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        """Return a page."""
        self._ask(("list", prefix, 0, 0))
        return super().list_page(prefix, delimiter=delimiter, token=token, most=min(most, 3))

    def gets(self) -> list[tuple[int, int]]:
        """Return offset and size of all reads."""
        return [(offset, size) for call, _, offset, size in self.asked if call == "get"]

    def calls(self) -> list[str]:
        """Return the calls."""
        return [call for call, _, _, _ in self.asked]

    def _ask(self, asked: Asked) -> None:
        with self._asking:
            self.asked.append(asked)
        self.gate(asked)


def settings(**values: object) -> ObjectsSettings:
    """Return settings with small blocks."""
    given: dict[str, object] = {
        "source": "memory://test",
        "block_bytes": BLOCK,
        "memory_cache_bytes": 32 * BLOCK,
        "read_ahead_blocks": 4,
        "request_timeout_s": 5,
        "retry_timeout_s": 5,
    }
    return ObjectsSettings(**(given | values))  # type: ignore[arg-type]  # a test knows what it gives


def content_of(size: int, seed: int = 0) -> bytes:
    """Return bytes that tell where they are from."""
    unit = bytes((seed + at * 7) % 251 for at in range(251))
    return (unit * (size // 251 + 1))[:size]


def fault(kind: FaultKind = FaultKind.SERVER, number: int = errno.EIO) -> StoreFault:
    """Return a fault."""
    return StoreFault(number, kind, "scripted")


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)
