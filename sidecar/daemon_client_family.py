"""The end of whatever a client's program has started and left behind. This process has adopted it, so nothing escapes."""

import contextlib
import os
import signal
import time
from pathlib import Path

_PAUSE_S = 0.005


def end_family(within_s: float) -> bool:
    """Kill and reap every child of this process, with the children that they leave; False if some are there even after that time.

    Only for a process all of whose children are the client's.
    """
    until = time.monotonic() + within_s
    while children := _children():
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        _reap()
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_S)
    return True


def _children() -> list[int]:
    """Return the ids of this process's children; of all kernels, since not all list them by parent."""
    ours = str(os.getpid())
    pids = (entry for entry in os.listdir("/proc") if entry.isdecimal())
    return [int(pid) for pid in pids if _parent(pid) == ours]


def _parent(pid: str) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[1]  # a program's name may hold anything, parentheses too


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
