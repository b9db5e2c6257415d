"""Processes that tests start, and kill."""

import ctypes
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 1 << 18


def in_child(work: Callable[[], Any]) -> Any:
    """Return what a function returns in a child. Fails if the child did not end well."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writer, pickle.dumps(work()))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = answer.read()
    assert ended(child) == 0, "the child failed"
    return pickle.loads(said)


def child_that_dies(work: Callable[[], Any]) -> int:
    """Run a function in a child and return its exit code: minus the signal that killed it, 0 if it lived, 1 if it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return ended(child)


def ended(child: int) -> int:
    """Wait for a child's end and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    """Be killed, here."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_small_tmpfs(place: Path, size: str, work: Callable[[], Any]) -> Any:
    """Return what a function returns in a child that has a small tmpfs of its own at `place`."""

    def mounted() -> Any:
        flags = _MS_REC_PRIVATE
        assert _libc.unshare(_CLONE_NEWNS) == 0
        assert _libc.mount(b"none", b"/", None, flags, None) == 0
        assert _libc.mount(b"none", os.fsencode(place), b"tmpfs", 0, f"size={size}".encode()) == 0
        return work()

    return in_child(mounted)
