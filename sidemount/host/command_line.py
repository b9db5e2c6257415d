"""The arguments that others see of a process that was forked and not executed: its own, in its parent's place.

Written where the kernel has put the arguments at exec; no program is asked. Source: proc_pid_cmdline(5), proc_pid_stat(5).
"""

import ctypes
import os
from collections.abc import Sequence

from sidemount.model.errors import HostFailure

PADDING = "-" * 4096  # an argument that makes room for longer ones
_ARG_START = 48 - 3  # in proc_pid_stat(5), counted from what follows the name
_ARG_END = 49 - 3


def room() -> int:
    """Return how many bytes of arguments can be shown. Raises HostFailure."""
    start, end = _place()
    return end - start


def show_arguments(arguments: Sequence[str]) -> None:
    """Have /proc/self/cmdline tell these arguments, with empty ones behind them. Raises HostFailure if they are too long."""
    start, end = _place()
    text = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    if len(text) > end - start:
        raise HostFailure(f"{len(text)} bytes of arguments; there is room for {end - start}")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _place() -> tuple[int, int]:
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if not 0 < start < end:
        raise HostFailure("the kernel does not tell where our arguments are")
    return start, end
