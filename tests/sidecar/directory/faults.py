"""A store that fails on command. Commands come from a file beside the source, so that a test can change them at any time."""

import errno
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidecar.directory.store import Store

COMMANDS = "SIDEMOUNT_TEST_FAULTS"
EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("a defect"),
    "KeyError": lambda: KeyError("a defect"),
    "RecursionError": lambda: RecursionError("a defect"),
    "MemoryError": MemoryError,
    "OSError without a number": lambda: OSError("no number"),
    "OSError with a huge number": lambda: OSError(5000, "huge"),
    "ENOSYS": lambda: OSError(errno.ENOSYS, "not there"),
    "UnicodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a defect"),
}


class Faults:
    """What a test wants the store to do. `set` in the test, `apply` in the daemon."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self, **what: str | float) -> None:
        """Make operations fail: the name of an exception or an errno, or seconds to hang. `every` is all of them."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(what))
        os.rename(new, self._path)

    def clear(self) -> None:
        """Let everything work again."""
        self.set()

    def apply(self, operation: str) -> None:
        """Do what the test wants of an operation."""
        commands = json.loads(self._path.read_text())
        what = commands.get(operation, commands.get("every"))
        if isinstance(what, int | float):
            time.sleep(what)
        elif what in EXCEPTIONS:
            raise EXCEPTIONS[what]()
        elif isinstance(what, str):
            raise OSError(getattr(errno, what), os.strerror(getattr(errno, what)))


OPERATIONS = [name for name, member in vars(Store).items() if not name.startswith("_") and callable(member)]


def faulty(store: Store) -> Store:
    """Return the store with faults, as the environment says where commands come from."""
    faults = Faults(Path(os.environ[COMMANDS]))

    def failing(name: str) -> Callable[..., Any]:
        original = getattr(Store, name)

        def operation(self: Store, *args: Any, **kwargs: Any) -> Any:
            faults.apply(name)
            return original(self, *args, **kwargs)

        return operation

    store.__class__ = type("FaultyStore", (Store,), {name: failing(name) for name in OPERATIONS})
    return store


def lying(store: Store) -> Store:
    """Return the store with a wrong byte in every hundredth read: what the exerciser has to find."""
    counter = itertools.count(1)

    class LyingStore(Store):
        def read_cached(self, fd: int, offset: int, buffer: memoryview) -> int:
            count = super().read_cached(fd, offset, buffer)
            if count and next(counter) % 100 == 0:
                buffer[0] ^= 1
            return count

    store.__class__ = LyingStore
    return store


def forgetful(store: Store) -> Store:
    """Return the store with every hundredth write not done."""
    counter = itertools.count(1)

    class ForgetfulStore(Store):
        def write(self, fd: int, offset: int, content: bytes | memoryview) -> int:
            if next(counter) % 100 == 0:
                return len(content)
            return super().write(fd, offset, content)

    store.__class__ = ForgetfulStore
    return store


def overtaken(store: Store) -> Store:
    """Return the store in which somebody else makes every file first, for himself."""

    class OvertakenStore(Store):
        def create(self, directory: int, name: bytes, flags: int, mode: int) -> int:
            fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=directory)
            os.write(fd, b"secret")
            os.close(fd)
            return super().create(directory, name, flags, mode)

    store.__class__ = OvertakenStore
    return store
