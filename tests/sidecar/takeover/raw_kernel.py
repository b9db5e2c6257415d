"""A FUSE connection whose requests a test reads and answers itself."""

import ctypes
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidecar.takeover import wire
from sidemount.host.fuse_mount import MountPlan, open_connection
from tests.sidecar.takeover.processes import in_child

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 1 << 18
_READ_BYTES = 1 << 21
_LONGEST_S = 20
LOOKUP, GETATTR, MKDIR, STATFS, ACCESS = 1, 3, 9, 17, 34


class RawConnection:
    """A mount that nobody serves but the test."""

    def __init__(self, target: Path) -> None:
        assert _libc.unshare(_CLONE_NEWNS) == 0
        assert _libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) == 0
        connection = open_connection(MountPlan(source="raw"), read_init=True, staging=str(target))
        connection.attach(str(target))
        connection.release_mount()
        self.device, self.init, self.target = connection.device, connection.init, target
        self.callers: list[int] = []
        self.found = b""  # what a lookup is answered with; nothing: there is no such name

    def answer_init(self) -> None:
        """Agree to what the kernel offers, in its least form."""
        body = struct.pack("=IIIIHHII", 7, 31, 1 << 17, 0, 16, 12, 1 << 20, 1) + bytes(36)
        self.answer(wire.parse_request(self.init).unique, body)

    def call(self, work: Callable[[], Any]) -> int:
        """Have a process make a system call on the mount; return its pid."""
        caller = os.fork()
        if caller == 0:
            try:
                os.close(self.device)  # or the connection would live as long as whoever waits for it
                work()
                os._exit(0)
            except OSError as error:
                os._exit(error.errno or 255)
        self.callers.append(caller)
        return caller

    def read(self) -> wire.Request:
        """Return the next request, as a daemon gets it."""
        return wire.parse_request(os.read(self.device, _READ_BYTES))

    def answer(self, unique: int, body: bytes = b"", error: int = 0) -> None:
        """Answer a request."""
        os.write(self.device, struct.pack("=IiQ", 16 + len(body), -error, unique) + body)

    def answer_lookup(self, request: wire.Request) -> None:
        """Answer a lookup."""
        if self.found:
            self.answer(request.unique, self.found)
        else:
            self.answer(request.unique, error=2)

    def serve_until(self, opcode: int) -> wire.Request:
        """Answer what leads there, and return the first request of a kind, unanswered."""
        while True:
            request = self.read()
            if request.opcode == opcode:
                return request
            if request.opcode == GETATTR:
                self.answer(request.unique, attributes_of_root())
            elif request.opcode == LOOKUP:
                self.answer_lookup(request)
            elif request.opcode not in (wire.FORGET, wire.BATCH_FORGET, wire.INTERRUPT):
                self.answer(request.unique, error=38)


def attributes_of_root() -> bytes:
    """Return what stat tells of an empty directory, for an hour."""
    return struct.pack("=QII", 3600, 0, 0) + _attributes(1, 0o40777)


def entry_of_file(node: int) -> bytes:
    """Return what a lookup tells of an empty file. Its name holds for no longer than that, its attributes for an hour."""
    return struct.pack("=4Q2I", node, 0, 0, 3600, 0, 0) + _attributes(node, 0o100666)


def _attributes(node: int, mode: int) -> bytes:
    times = (0,) * 3
    return struct.pack("=6Q3I7I", node, 0, 0, *times, *times, mode, 1, 0, 0, 0, 4096, 0)


def with_raw_connection(target: Path, work: Callable[[RawConnection], Any]) -> Any:
    """Return what a function returns in a child with such a mount of its own; all is gone when it ends."""

    def run() -> Any:
        connection = RawConnection(target)
        signal.alarm(_LONGEST_S)  # its end ends the connection, and with that all who wait
        try:
            return work(connection)
        finally:
            os.close(connection.device)
            for caller in connection.callers:
                os.waitpid(caller, 0)

    return in_child(run)
