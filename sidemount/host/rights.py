"""Rights given up for good: a process that was root becomes a user with certain capabilities and can gain no others.

Source: capabilities(7), prctl(2).
"""

import ctypes
import os
from collections.abc import Collection

from sidemount.host import process_attributes, syscalls

_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_VERSION_3 = 0x20080522
_LAST_MAX = 63

# In the kernel's order: the place is the number. Source: include/uapi/linux/capability.h
_ORDER = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ
PERFMON BPF CHECKPOINT_RESTORE
"""
_NAMES = _ORDER.split()


def become(uid: int, capabilities: Collection[str]) -> None:
    """Become a user, of the group of that number alone, with these capabilities (names without CAP_) and no way to others.

    Raises HostFailure, ValueError for a name that is none. Of no use afterwards: what is given up stays so.
    """
    kept = [_NAMES.index(name.upper()) for name in capabilities]
    for number in range(_LAST_MAX + 1):
        if number not in kept and _prctl(_PR_CAPBSET_READ, number) == 1:
            _must("PR_CAPBSET_DROP", _prctl(_PR_CAPBSET_DROP, number))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    _must("PR_SET_KEEPCAPS", _prctl(_PR_SET_KEEPCAPS, 1))
    os.setresuid(uid, uid, uid)
    _must("PR_SET_KEEPCAPS", _prctl(_PR_SET_KEEPCAPS, 0))
    _set_capabilities(sum(1 << number for number in kept))
    _must("PR_CAP_AMBIENT", _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL))
    for number in kept:
        _must("PR_CAP_AMBIENT", _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number))
    process_attributes.forbid_new_privileges()


def _set_capabilities(mask: int) -> None:
    """Have exactly these, permitted, effective and inheritable."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    values = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    _must("capset", int(syscalls.LIBC.capset(header, values)))


def _prctl(option: int, first: int, second: int = 0) -> int:
    zero = ctypes.c_ulong(0)
    return int(
        syscalls.LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(first), ctypes.c_ulong(second), zero, zero)
    )


def _must(what: str, result: int) -> None:
    if result < 0:
        raise syscalls.last_failure("prctl", what)
