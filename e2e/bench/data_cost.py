"""What an operation costs the process that serves it: processor time and system calls."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12  # fields of proc_pid_stat(5), counted after the command
_RETURNED = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>).*\) += (\S+)", re.MULTILINE)
_ATTACH_S = 10.0
_POLL_S = 0.005


class UntraceableError(Exception):
    """System calls cannot be counted here."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time in seconds."""

    user_s: float
    system_s: float

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.user_s - other.user_s, self.system_s - other.system_s)


def spent(pid: int) -> Spent:
    """Return what all threads of a process have used so far."""
    return parse_stat(Path(f"/proc/{pid}/stat").read_text(), _TICKS)


def parse_stat(text: str, ticks: int) -> Spent:
    """Return what /proc/PID/stat says. The command in it may contain anything."""
    fields = text.rpartition(")")[2].split()
    return Spent(int(fields[_USER]) / ticks, int(fields[_SYSTEM]) / ticks)


def count_calls(pid: int, work: Callable[[], None], scratch: Path) -> int:
    """Return how many system calls a process makes while something is done. Raises UntraceableError."""
    if shutil.which("strace") is None:
        raise UntraceableError("strace is not installed")
    log = scratch / "strace"
    with _tracing(pid, log):
        work()
    return parse_calls(log.read_text(errors="replace"))


def parse_calls(log: str) -> int:
    """Return the number of calls in what `strace -f` writes, each when it returns. Raises UntraceableError.

    A poll that found nothing is waiting and no part of an operation: under strace there are as many as it is slow.
    """
    returned = _RETURNED.findall(log)
    if not returned:
        raise UntraceableError("strace has counted nothing")
    return sum(call != "poll" or result != "0" for call, result in returned)


@contextlib.contextmanager
def _tracing(pid: int, log: Path) -> Iterator[None]:
    argv = ["strace", "-f", "-s", "0", "-o", str(log), "-p", str(pid)]
    tracer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        until = time.monotonic() + _ATTACH_S
        while not _is_traced(pid):
            if tracer.poll() is not None or time.monotonic() > until:
                raise UntraceableError("strace cannot attach")
            time.sleep(_POLL_S)
        yield
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGINT)
            try:
                tracer.wait(_ATTACH_S)
            except subprocess.TimeoutExpired:
                tracer.kill()
                tracer.wait()


def _is_traced(pid: int) -> bool:
    """Tell whether every thread of a process is being traced."""
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # that thread has ended
            if "\nTracerPid:\t0\n" in status.read_text():
                return False
    return True
