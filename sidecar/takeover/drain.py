"""What the kernel has asked a daemon that is dead, and never got an answer to.

The kernel gives such requests again, marked, once it is told to (FUSE_NOTIFY_RESEND, since 6.9). They are read here, before
libfuse sees them, because libfuse hides which request it hands to a handler; and then given back by telling the kernel once more.
"""

import errno
import fcntl
import mmap
import os
import struct
import time
from dataclasses import dataclass

from sidecar.takeover import wire
from sidecar.takeover.operation import Operation
from sidemount.model.errors import HostFailure

_RESEND = struct.pack("=IiQ", 16, 7, 0)  # struct fuse_out_header: length, FUSE_NOTIFY_RESEND, no unique
_READ_BYTES = 256 * mmap.PAGESIZE + (
    1 << 13
)  # FUSE_MAX_MAX_PAGES of libfuse, and what stands before the data
_LONGEST_S = 10.0
_ASIDE = frozenset({wire.FORGET, wire.BATCH_FORGET, wire.INTERRUPT})


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An operation that the kernel waits for. `must_not_exist`: it sets an extended attribute only if there is none."""

    operation: Operation
    must_not_exist: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What was found. `requests` counts all unanswered ones, `operations` has those that may not be done twice.

    `forgets` are node and lookups; nobody will get them again. `init` is the kernel's first message if not even that was answered.
    """

    requests: int = 0
    operations: tuple[Unanswered, ...] = ()
    forgets: tuple[tuple[int, int], ...] = ()
    init: bytes = b""


def drain(device: int) -> Drained:
    """Read all requests that a dead daemon left unanswered. `requeue` must follow before anyone serves.

    Whoever served the device must be certainly dead. Raises HostFailure: ENODEV if the connection is gone, EINVAL if the
    kernel cannot resend.
    """
    _resend(device)
    _set_blocking(device, False)
    try:
        return _read_resent(device)
    finally:
        _set_blocking(device, True)


def requeue(device: int, drained: Drained) -> None:
    """Give what was drained back to the kernel, for libfuse to read it. Raises HostFailure.

    An INIT is kept: libfuse gets it by being played it, and then the answer to it counts.
    """
    if not drained.init:
        _resend(device)


def _read_resent(device: int) -> Drained:
    buffer = memoryview(bytearray(b"\1") * _READ_BYTES)  # written to: see `prefault_read_buffers`
    requests = 0
    init = b""
    operations: list[Unanswered] = []
    forgets: list[tuple[int, int]] = []
    deadline = time.monotonic() + _LONGEST_S
    while (length := _read(device, buffer)) is not None:
        if time.monotonic() > deadline:
            raise HostFailure(f"/dev/fuse: the kernel resends for more than {_LONGEST_S:g} s")
        request = wire.parse_request(buffer[:length])
        forgets += wire.forgets_of(request)
        if request.opcode in _ASIDE:
            continue
        if not request.is_resent:
            break
        requests += 1
        if request.opcode == wire.INIT:
            init = bytes(buffer[:length])
        operation = wire.operation_of(request)
        if operation is not None:
            operations.append(Unanswered(operation, wire.must_not_exist(request)))
    return Drained(requests=requests, operations=tuple(operations), forgets=tuple(forgets), init=init)


def _resend(device: int) -> None:
    try:
        os.write(device, _RESEND)
    except OSError as error:
        hint = (
            "it cannot resend requests: Linux 6.9 or later is needed" if error.errno == errno.EINVAL else ""
        )
        raise HostFailure(
            f"/dev/fuse: resend: {error.strerror}", errno=error.errno or 0, hint=hint
        ) from error


def _read(device: int, buffer: memoryview) -> int | None:
    """Return the length of the next message, None if there is none."""
    while True:
        try:
            return os.readv(device, [buffer])
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.ENOENT:  # its caller gave up while it was being read
                continue
            raise HostFailure(f"/dev/fuse: read: {error.strerror}", errno=error.errno or 0) from error


def _set_blocking(device: int, blocking: bool) -> None:
    """Set the flag of the open file description, which all holders of the descriptor share."""
    flags = fcntl.fcntl(device, fcntl.F_GETFL)
    flags = flags & ~os.O_NONBLOCK if blocking else flags | os.O_NONBLOCK
    fcntl.fcntl(device, fcntl.F_SETFL, flags)
