"""The seccomp profile RuntimeDefault: what container runtimes forbid to a process without the capability for it.

Runtimes write theirs as a list of what is allowed; this one lists what is forbidden, so a system call that
neither knows passes here. Source: https://docs.docker.com/engine/security/seccomp/
"""

_NEVER = (
    "_sysctl", "add_key", "create_module", "get_kernel_syms", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "kexec_file_load", "kexec_load", "keyctl", "nfsservctl", "pivot_root", "query_module",
    "request_key", "swapoff", "swapon", "sysfs", "uselib", "userfaultfd", "ustat", "vm86", "vm86old",
)  # fmt: skip
_BY_CAPABILITY: dict[str, tuple[str, ...]] = {
    "CAP_SYS_ADMIN": (
        "bpf", "fanotify_init", "fsconfig", "fsmount", "fsopen", "fspick", "lookup_dcookie", "mount",
        "mount_setattr", "move_mount", "open_tree", "perf_event_open", "quotactl", "quotactl_fd",
        "setdomainname", "sethostname", "setns", "umount", "umount2", "unshare",
    ),
    "CAP_SYS_BOOT": ("reboot",),
    "CAP_SYS_CHROOT": ("chroot",),
    "CAP_SYS_MODULE": ("delete_module", "finit_module", "init_module"),
    "CAP_SYS_PACCT": ("acct",),
    "CAP_SYS_PTRACE": ("kcmp", "pidfd_getfd", "process_madvise"),
    "CAP_SYS_RAWIO": ("ioperm", "iopl"),
    "CAP_SYS_TIME": ("clock_settime", "clock_settime64", "settimeofday", "stime"),
    "CAP_SYS_TTY_CONFIG": ("vhangup",),
    "CAP_SYS_NICE": ("get_mempolicy", "mbind", "migrate_pages", "move_pages", "set_mempolicy"),
    "CAP_SYSLOG": ("syslog",),
    "CAP_DAC_READ_SEARCH": ("open_by_handle_at",),
}  # fmt: skip
# CLONE_NEW{CGROUP,UTS,IPC,USER,PID,NET,NS}
_NAMESPACE_FLAGS = (0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000)
_EPERM = 1
_ENOSYS = 38


def runtime_default(capabilities: frozenset[str]) -> dict[str, object]:
    """Return linux.seccomp for a container with these capabilities in its bounding set."""
    denied = list(_NEVER)
    for capability, calls in _BY_CAPABILITY.items():
        if capability not in capabilities:
            denied += calls
    rules: list[dict[str, object]] = [{"names": denied, "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM}]
    if "CAP_SYS_ADMIN" not in capabilities:
        # Arguments of clone3 lie in memory that a filter cannot read; libc falls back to clone on ENOSYS.
        rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS})
        rules += [_clone_rule(flag) for flag in _NAMESPACE_FLAGS]
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}


def _clone_rule(flag: int) -> dict[str, object]:
    argument = {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
    return {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM, "args": [argument]}
