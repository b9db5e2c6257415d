"""Locks that tell whether a node lives: its first process holds one from the start, and the kernel lets go of it at its end."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_locked(lock: Path) -> bool:
    """Tell whether somebody holds the lock."""
    try:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def locked(lock: Path) -> Iterator[int]:
    """Give the lock's descriptor, for a node to inherit. Raises BlockingIOError when another holds it."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file.fileno()
