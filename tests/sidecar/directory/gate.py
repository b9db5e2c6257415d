"""A store whose syncs wait at a gate, and a count of how many do."""

import os
import time
from pathlib import Path

from sidecar.directory.store import Store

GATE = "SIDEMOUNT_TEST_GATE"
_POLL_S = 0.01


class Gate:
    """Shut from the beginning. `wait` is for the daemon, the rest for the test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = path.with_suffix(".count")

    def shut(self) -> None:
        """Let nobody through."""
        self._count.write_bytes(b"")
        self._path.touch()

    def open(self) -> None:
        """Let everybody through."""
        self._path.unlink()

    def waiting(self) -> int:
        """Return how many have come since it was shut."""
        return self._count.stat().st_size

    def wait(self) -> None:
        """Wait until it is open."""
        fd = os.open(self._count, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b".")
        os.close(fd)
        while self._path.exists():
            time.sleep(_POLL_S)


def gated(store: Store) -> Store:
    """Return the store with the gate that the environment names."""
    gate = Gate(Path(os.environ[GATE]))

    class GatedStore(Store):
        def sync(self, fd: int, datasync: bool) -> None:
            gate.wait()

    store.__class__ = GatedStore
    return store
