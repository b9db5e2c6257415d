"""Work that may hang for ever, in a child process that can be abandoned.

Whoever looks into a FUSE mount may wait without end, unkillably, so the keeper itself never does. A child reports over a
socket, message by message, descriptors included; the parent reads them when they come and forgets a child that is late.
"""

import contextlib
import gc
import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from sidemount.host import process_attributes
from sidemount.host.descriptor_passing import receive_with_descriptors
from sidemount.host.own_descriptors import close_all_but

_MESSAGE_MAX = 1 << 16
_GO = b"go"


class Reporter:
    """The child's end."""

    __slots__ = ("_socket",)

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Tell the parent something, with a descriptor if there is one."""
        payload = json.dumps(message).encode()
        socket.send_fds(self._socket, [payload], [] if descriptor is None else [descriptor])

    def wait_for_go(self) -> None:
        """Wait until the parent has done its part. Ends the child if the parent is gone."""
        if self._socket.recv(len(_GO)) != _GO:
            os._exit(0)


class Child:
    """The parent's end. Never waits for anything."""

    __slots__ = ("_reaped", "pid", "socket")

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self.socket = end
        self._reaped = False

    def receive(self) -> tuple[dict[str, Any], int | None] | None:
        """Return the next message and its descriptor, None if the child has ended. Raises BlockingIOError if none is there."""
        payload, descriptors, _ = receive_with_descriptors(self.socket, _MESSAGE_MAX, 1)
        return (json.loads(payload), descriptors[0] if descriptors else None) if payload else None

    def go_on(self) -> None:
        """Let the child continue."""
        with contextlib.suppress(OSError):
            self.socket.send(_GO)

    def abandon(self) -> None:
        """Kill it and listen no more. It may stay for as long as its mount hangs; `reap` it when it has ended."""
        self.socket.close()
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> bool:
        """Tell whether the process has ended, and take it off the process table if so."""
        if not self._reaped:
            try:
                self._reaped = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
            except ChildProcessError:
                self._reaped = True
        return self._reaped


def start_child(work: Callable[[Reporter], None], *, keep: tuple[int, ...] = ()) -> Child:
    """Run `work` in a child that holds no descriptor but stdio and `keep`, and return the parent's end.

    The last message is {"done": true}, or {"error": text, "errno": number} for an exception.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            raise
        if pid == 0:
            _run_child(work, theirs, keep)
    ours.setblocking(False)
    return Child(pid, ours)


def _run_child(work: Callable[[Reporter], None], end: socket.socket, keep: tuple[int, ...]) -> None:
    status = 1
    try:
        gc.disable()  # a collection here would only copy pages that are shared
        process_attributes.die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # The keeper's descriptors of /dev/fuse above all: a child stuck in a mount would keep its connection alive.
        close_all_but({0, 1, 2, end.fileno(), *keep})
        reporter = Reporter(end)
        try:
            work(reporter)
            reporter.send({"done": True})
        except Exception as error:
            errno = getattr(error, "errno", None) or 0
            reporter.send({"error": str(error), "errno": errno})
        status = 0
    finally:
        os._exit(status)
