"""What a process tells the kernel about itself: who may look into it, what dies with it.

Source: prctl(2).
"""

import contextlib
import ctypes
import gc
import resource
import signal

from sidemount.host import syscalls

_PR_SET_PDEATHSIG = 1
_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


def forbid_inspection() -> None:
    """Keep other processes of the same user out of our memory and descriptors: no ptrace, /proc/pid/mem, pidfd_getfd.

    Nor may it get into a core file, also of a program that we start: that can be inspected again, and knows what we gave it.
    """
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    # Less than a page, so no file; and where cores go to a program 0 would not hold them back, but 1 does. Source: core(5).
    limit = hard if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def may_be_inspected() -> bool:
    """Tell whether `forbid_inspection` has not been called yet."""
    return bool(syscalls.LIBC.prctl(ctypes.c_int(_PR_GET_DUMPABLE)))


def forbid_new_privileges() -> None:
    """Give up for good, children included, whatever a set-user-id program would grant."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """Have the kernel kill us when the thread that forked us ends."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, int(signal.SIGKILL))


def adopt_orphans() -> None:
    """Become the parent of our descendants' orphans, so that they can be reaped."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def give_back_memory() -> None:
    """Return to the kernel what only starting has needed: compiling alone leaves half a megabyte behind."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # not every libc has it
        syscalls.LIBC.malloc_trim(ctypes.c_size_t(0))


def _prctl(name: str, option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if syscalls.LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero) != 0:
        raise syscalls.last_failure("prctl", name)
