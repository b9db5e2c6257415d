"""The daemon's own processes as its first one sees them: forked, waiting or serving, told things, killed, reaped."""

import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable

from sidemount.host import handover, wire
from sidemount.host.handover import FromKeeper, Message
from sidemount.host.pidfd import pidfd_open
from sidemount.model.errors import BadMessage

_SEND_TIMEOUT_S = 2.0
ChildMain = Callable[[socket.socket], int]


class Child:
    """One process. `control` carries orders to it and its reports."""

    __slots__ = ("control", "pid", "pidfd")

    def __init__(self, pid: int, pidfd: int, control: socket.socket) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.control = control

    def send(self, message: FromKeeper, descriptor: int | None = None) -> bool:
        """Send an order; False if the process is gone or stuck. Waits a little: it has nothing to do but to read."""
        self.control.settimeout(_SEND_TIMEOUT_S)
        try:
            wire.send(self.control, *handover.encode(message), descriptor)
        except OSError:
            return False
        finally:
            self.control.setblocking(False)
        return True

    def kill(self) -> None:
        """Kill it. It has not been reaped, so the number is its own."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def is_stopped(self) -> bool:
        """Tell whether a signal or a debugger has stopped it. It does not do that to itself."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] in "tT"
        except OSError:
            return False

    def close(self) -> None:
        """Close our ends; a process that still waits for orders ends then."""
        self.control.close()
        os.close(self.pidfd)


def fork_child(main: ChildMain) -> Child:
    """Fork a process that runs `main(control)` and ends with what it returns. Raises OSError, HostFailure.

    To be called by a process of one thread. What the parent has loaded is shared with the child until one of them writes
    to it; the garbage collector would, so the parent's objects are kept from it.
    """
    gc.collect()
    gc.freeze()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            raise
        if pid == 0:
            code = 1
            try:
                code = main(theirs)
            finally:
                os._exit(code)
    ours.setblocking(False)
    try:
        return Child(pid, pidfd_open(pid), ours)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ours.close()
        raise


def receive(connection: socket.socket) -> tuple[Message, int | None] | None:
    """Return a child's next message and its descriptor, None at the end. Raises BlockingIOError if there is none yet, BadMessage."""
    try:
        frame = wire.receive(connection)
    except BlockingIOError:
        raise
    except OSError:
        return None
    if frame is None:
        return None
    with contextlib.closing(frame):
        message = handover.decode(frame.kind, frame.body)
        if handover.carries_descriptor(message) != (frame.descriptor is not None):
            raise BadMessage(f"{frame.kind.name}: descriptor missing, or one too many")
        return message, None if frame.descriptor is None else frame.take_descriptor()


def how_ended(status: int) -> str:
    """Return in words what waitpid(2) told."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
