"""Processes by descriptor: a number can be reused by another process, a descriptor cannot.

Source: pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2), unix(7) SO_PEERPIDFD (kernel 6.5).
"""

import os
import select
import signal
import socket
import struct

from sidemount.host import syscalls

_SO_PEERPIDFD = 77


def pidfd_open(pid: int) -> int:
    """Return a descriptor of the process."""
    return syscalls.call(syscalls.PIDFD_OPEN, pid, 0, target=f"process {pid}")


def pidfd_send_signal(pidfd: int, number: signal.Signals) -> None:
    """Send a signal. Raises HostFailure, EINVAL for a process of another container's pid namespace."""
    syscalls.call(syscalls.PIDFD_SEND_SIGNAL, pidfd, int(number), None, 0, target=number.name)


def pidfd_getfd(pidfd: int, descriptor: int) -> int:
    """Return a copy of another process's descriptor; close-on-exec is set by the kernel."""
    return syscalls.call(syscalls.PIDFD_GETFD, pidfd, descriptor, 0, target=f"descriptor {descriptor}")


def peer_pidfd(connection: socket.socket) -> int | None:
    """Return a descriptor of the process at the other end, None where the kernel cannot give one or it is gone."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i"))
    except OSError:
        return None
    (descriptor,) = struct.unpack("i", raw)
    if descriptor < 0:
        return None
    os.set_inheritable(descriptor, False)
    return int(descriptor)


def is_pidfd(descriptor: int) -> bool:
    """Tell whether it is a descriptor of a process, without asking anything of whatever else it may be of."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        return any(line.startswith(b"Pid:") for line in file)


def has_exited(pidfd: int) -> bool:
    """Tell whether the process has ended, all its threads with it."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))
