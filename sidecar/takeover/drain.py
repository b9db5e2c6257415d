"""What the kernel has asked a daemon that is dead, and never got an answer to.

The kernel gives such requests again, marked, once it is told to (FUSE_NOTIFY_RESEND, since 6.9). They are read here, before
libfuse sees them, because libfuse hides which request it hands to a handler; and then given back by telling the kernel once more.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.takeover import wire
from sidecar.takeover.layout import NEWCOMER_BYTES
from sidecar.takeover.newcomers import Newcomers
from sidecar.takeover.operation import Operation
from sidemount.model.errors import HostFailure

_RESEND = struct.pack("=IiQ", 16, 7, 0)  # struct fuse_out_header: length, FUSE_NOTIFY_RESEND, no unique
_READ_BYTES = 256 * mmap.PAGESIZE + (
    1 << 13
)  # FUSE_MAX_MAX_PAGES of libfuse, and what stands before the data
_LONGEST_S = 10.0
_ASIDE = frozenset({wire.FORGET, wire.BATCH_FORGET, wire.INTERRUPT})
_ANSWER = struct.Struct("=IiQ")  # struct fuse_out_header
Judge = Callable[[frozenset[int]], frozenset[int]]


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An operation that the kernel waits for. `must_not_exist`: it sets an extended attribute only if there is none."""

    operation: Operation
    must_not_exist: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What was found. `requests` counts all unanswered ones, `operations` has those that may not be done twice.

    `newcomers` are such operations, too, that no server has read yet: in no other respect are they among the others.
    `forgets` are node and lookups; nobody will get them again. `init` is the kernel's first message if not even that was answered.
    `refused` counts the requests that were answered with an error, and are not among the others.
    """

    requests: int = 0
    operations: tuple[Unanswered, ...] = ()
    newcomers: tuple[Unanswered, ...] = ()
    forgets: tuple[tuple[int, int], ...] = ()
    init: bytes = b""
    refused: int = 0


def drain(
    device: int,
    judge: Judge | None = None,
    *,
    is_judged_before: bool = False,
    newcomers: Newcomers | None = None,
) -> Drained:
    """Read all requests that a dead daemon left unanswered. `requeue` must follow before anyone serves.

    `newcomers` knows those that only earlier drains have read; it is to be cleared once nothing that was found is needed any more.
    Whoever served the device must be certainly dead. `judge` is told which requests were in its hands when it died, by the
    kernel's number, and returns those that are to be answered with EIO. `is_judged_before`: some are under suspicion already, so
    that those which the dead one never came to are told apart; otherwise they count as in its hands.

    Raises HostFailure: ENODEV if the connection is gone, EINVAL if the kernel cannot resend.
    """
    _set_blocking(device, False)
    try:
        buffer = memoryview(bytearray(b"\1") * _READ_BYTES)  # written to: see `make_buffer_resident`
        newcomers = newcomers or Newcomers()
        unread = _Reading(device, newcomers)  # what was given back before and never reached the one that died
        if is_judged_before:
            unread.read(buffer)
        _resend(device)
        reading = _Reading(device, newcomers)
        reading.read(buffer)
    finally:
        _set_blocking(device, True)
    in_hand = reading.requests.keys() - unread.requests.keys()
    refused = judge(frozenset(in_hand)) & in_hand if judge is not None else frozenset()
    for unique in refused:
        _refuse(device, unique)
    return Drained(
        requests=len(reading.requests) + bool(reading.init) - len(refused),
        operations=tuple(
            found for unique, found in reading.requests.items() if found is not None and unique not in refused
        ),
        newcomers=tuple(found for found in reading.newcomers.values() if found is not None),
        forgets=(*unread.forgets, *reading.forgets),
        init=reading.init,
        refused=len(refused),
    )


def requeue(device: int, drained: Drained) -> None:
    """Give what was drained back to the kernel, for libfuse to read it. Raises HostFailure.

    An INIT is kept: libfuse gets it by being played it, and then the answer to it counts.
    """
    if not drained.init:
        _resend(device)


class _Reading:
    """Reads from the head of the kernel's queue all that was read before by someone. Requests are by the kernel's number for them."""

    def __init__(self, device: int, noted: Newcomers) -> None:
        """`noted` are requests that no server has read, whatever the kernel's mark says."""
        self._device = device
        self._noted = noted
        self.requests: dict[int, Unanswered | None] = {}
        self.newcomers: dict[int, Unanswered | None] = {}
        self.forgets: list[tuple[int, int]] = []
        self.init = b""

    def read(self, buffer: memoryview) -> None:
        """Read until there is nothing more, or the first request that is new. Raises HostFailure."""
        deadline = time.monotonic() + _LONGEST_S
        noted = self._noted.uniques
        while (length := self._receive(buffer)) is not None:
            if time.monotonic() > deadline:
                raise HostFailure(f"/dev/fuse: the kernel resends for more than {_LONGEST_S:g} s")
            request = wire.parse_request(buffer[:length])
            self.forgets += wire.forgets_of(request)
            if request.opcode in _ASIDE:
                continue
            unique = request.unique & ~wire.RESENT
            if not request.is_resent:
                self.newcomers[unique] = _asked(request)
                break
            if request.opcode == wire.INIT:
                self.init = bytes(buffer[:length])
            elif unique in noted:
                self.newcomers[unique] = _asked(request)
            else:
                self.requests[unique] = _asked(request)

    def _receive(self, buffer: memoryview) -> int | None:
        """Read the next message, its header by way of where newcomers are noted. Return its length, None if there is none."""

        def read(header: memoryview) -> int | None:
            length = _read(self._device, header, buffer[NEWCOMER_BYTES:])
            buffer[:NEWCOMER_BYTES] = header
            return length

        return self._noted.receive(read)


def _asked(request: wire.Request) -> Unanswered | None:
    """Return the operation of a request, None if it may simply be done again. Raises BadMessage."""
    operation = wire.operation_of(request)
    return None if operation is None else Unanswered(operation, wire.must_not_exist(request))


def _refuse(device: int, unique: int) -> None:
    """Answer a request with an error. That its caller has given up meanwhile is none."""
    with contextlib.suppress(OSError):
        os.write(device, _ANSWER.pack(_ANSWER.size, -errno.EIO, unique | wire.RESENT))


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


def _read(device: int, *buffers: memoryview) -> int | None:
    """Return the length of the next message, None if there is none."""
    while True:
        try:
            return os.readv(device, buffers)
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
