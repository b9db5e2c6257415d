"""Raw Linux system calls through ctypes: one way in, one way to fail.

glibc has no wrappers for the newer calls. Every number here is the same on x86-64 and arm64.
"""

import ctypes
import errno as errnos
import os

from sidemount.model.errors import HostFailure, Unsupported

PIDFD_SEND_SIGNAL = 424
OPEN_TREE = 428
MOVE_MOUNT = 429
FSOPEN = 430
FSCONFIG = 431
FSMOUNT = 432
PIDFD_OPEN = 434
OPENAT2 = 437
PIDFD_GETFD = 438
MOUNT_SETATTR = 442

NAMES = {
    PIDFD_SEND_SIGNAL: "pidfd_send_signal",
    OPEN_TREE: "open_tree",
    MOVE_MOUNT: "move_mount",
    FSOPEN: "fsopen",
    FSCONFIG: "fsconfig",
    FSMOUNT: "fsmount",
    PIDFD_OPEN: "pidfd_open",
    OPENAT2: "openat2",
    PIDFD_GETFD: "pidfd_getfd",
    MOUNT_SETATTR: "mount_setattr",
}
MACHINES = ("x86_64", "aarch64")

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

Argument = int | bytes | ctypes.Array[ctypes.c_char] | ctypes.Structure | None


def call(number: int, *arguments: Argument, target: str) -> int:
    """Make the system call and return its result.

    Raises HostFailure naming the call, `target` and the errno; Unsupported on a machine whose numbers we do not know.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        raise Unsupported(
            f"{NAMES[number]}: no system call numbers for machine type {machine!r}",
            hint=f"run on one of {', '.join(MACHINES)}",
        )
    result = int(LIBC.syscall(ctypes.c_long(number), *(_converted(argument) for argument in arguments)))
    if result < 0:
        raise failure(NAMES[number], target, ctypes.get_errno())
    return result


def failure(what: str, target: str, errno: int, detail: str = "") -> HostFailure:
    """Return the error of a call that the kernel refused: what, on which target, why."""
    code = errnos.errorcode.get(errno, str(errno))
    message = f"{what} {target}: {os.strerror(errno)} ({code})"
    return HostFailure(f"{message}: {detail}" if detail else message, errno=errno)


def last_failure(what: str, target: str) -> HostFailure:
    """Return the error of the libc function that has just failed."""
    return failure(what, target, ctypes.get_errno())


def _converted(argument: Argument) -> object:
    # An int is passed as a C int by default: 64-bit flags would be cut.
    match argument:
        case int():
            return ctypes.c_long(argument)
        case ctypes.Structure():
            return ctypes.byref(argument)
        case _:
            return argument
