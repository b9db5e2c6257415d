"""One draft's state, log and spool, and the lock that all who work on it share."""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sidecar.objects.draft_log import DraftLog, Record
from sidecar.objects.draft_state import DraftState
from sidecar.objects.draft_workshop import Workshop
from sidecar.objects.spool import Spool
from sidecar.objects.upload_layout import Layout
from sidemount.stores.bodies import LazyBody
from sidemount.stores.store import Buffer, ObjectInfo

_LOG_BYTES = 256 << 10  # a log is not rewritten before it is as long
_CHUNK = 8 << 20
_TICK_S = 1.0


class Piece(NamedTuple):
    """Bytes of a draft that are in the spool, or in the base object."""

    start: int
    end: int
    is_local: bool


class DraftBody:
    """Everything here but `content` and `fetch` is for whoever holds `lock`. `progress` grows with whatever comes to its end.

    `is_taken`: somebody has it alone, if only to commit it, and does not hold the lock all the time.
    """

    def __init__(self, workshop: Workshop, log: DraftLog, spool: Spool, state: DraftState) -> None:
        self.workshop = workshop
        self.log = log
        self.spool = spool
        self.state = state
        self.lock = threading.Condition(threading.Lock())
        self.is_taken = False
        self.is_closed = False
        self.progress = 0
        self.charged = 0
        self._rewritten = log.size

    def record(self, **record: object) -> None:
        """Write a record, then be as it says. Raises OSError; then nothing has changed."""
        self._note(record)
        if self.log.size > max(_LOG_BYTES, 4 * self._rewritten):
            with contextlib.suppress(OSError):  # the long one says the same
                self.log.rewrite(self.state.snapshot())
            self._rewritten = self.log.size

    def _note(self, record: Record) -> None:
        self.log.append(record)
        self.state.apply(record)

    def layout(self) -> Layout:
        """Return the layout of the upload, or the one it would have."""
        return self.state.layout(self.workshop.copy_least)

    def moved_on(self) -> None:
        """Wake whoever waits for something to come to its end."""
        self.progress += 1
        self.lock.notify_all()

    def wait_while(self, is_busy: Callable[[], object]) -> None:
        """Wait while something is true. Raises ETIMEDOUT when nothing has moved for long."""
        progress, until = self.progress, time.monotonic() + self.workshop.stall_s
        while is_busy():
            if self.progress != progress:
                progress, until = self.progress, time.monotonic() + self.workshop.stall_s
            if time.monotonic() >= until:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            self.lock.wait(_TICK_S)

    def pieces(self, start: int, end: int) -> list[Piece]:
        """Return where the bytes of a range are. Raises EOPNOTSUPP for what was uploaded and is kept nowhere else."""
        if next(self.state.gone_within(start, end), None) is not None:
            raise OSError(errno.EOPNOTSUPP, "uploaded already, and not kept here")
        found = [Piece(one, two, is_local=True) for one, two in self.state.local.within(start, end)]
        found += (Piece(one, two, is_local=False) for one, two in self.state.local.missing(start, end))
        return sorted(found)

    def charge(self, size: int, *, to_keep: bool = False) -> bool:
        """Take of the room for what is written at random, if there is."""
        if not self.workshop.staging.take(size, to_keep=to_keep):
            return False
        self.charged += size
        return True

    def discharge(self) -> None:
        """Give all of that back."""
        self.workshop.staging.give(self.charged)
        self.charged = 0

    @contextmanager
    def content(self, start: int, end: int) -> Iterator[Sequence[Buffer]]:
        """Have the bytes of a range in memory for a block, or, if they are many, only a few of them at a time.

        Nobody may cut the draft off meanwhile.
        """
        with self.lock:
            pieces, base = self.pieces(start, end), self.state.base
        mapped = self.spool.mapped(start, end) if all(piece.is_local for piece in pieces) else None
        if mapped is not None:
            yield [mapped]
            return
        if end - start > self.workshop.largest_buffer:
            yield _Stretch(self, pieces, base, start, end)
            return
        with self.workshop.buffer(end - start) as buffer:
            self.fetch(pieces, base, start, buffer)
            yield [buffer]

    def fetch(self, pieces: Sequence[Piece], base: ObjectInfo | None, start: int, buffer: memoryview) -> None:
        """Fill a buffer, which begins at `start`, with what pieces name of it."""
        for piece in pieces:
            begin, end = max(piece.start, start), min(piece.end, start + len(buffer))
            if begin >= end:
                continue
            part = buffer[begin - start : end - start]
            if piece.is_local:
                self.spool.read_into(begin, part)
                continue
            if base is None:
                raise OSError(errno.EIO, f"no content for bytes {begin} to {end}")
            got = self.workshop.store.get(base.key, begin, part, etag=base.etag).size
            if got < len(part):
                raise OSError(errno.EIO, f"only {got} of {len(part)} bytes at {begin}")


class _Stretch(LazyBody):
    """A range that is too large for the memory: read as it is asked for, 8 MiB at a time."""

    def __init__(
        self, body: DraftBody, pieces: list[Piece], base: ObjectInfo | None, start: int, end: int
    ) -> None:
        self._body = body
        self._pieces = pieces
        self._base = base
        self._start = start
        self._end = end

    @property
    def nbytes(self) -> int:
        """How long it is."""
        return self._end - self._start

    def __len__(self) -> int:
        return -(-(self._end - self._start) // _CHUNK)

    def piece(self, index: int) -> Buffer:
        """Read a few of the bytes."""
        start = self._start + index * _CHUNK
        buffer = memoryview(bytearray(min(_CHUNK, self._end - start)))
        self._body.fetch(self._pieces, self._base, start, buffer)
        return buffer
