"""A file that is being written."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sidecar.objects.draft_body import DraftBody
from sidecar.objects.draft_commit import DraftCommit
from sidecar.objects.draft_parts import DraftParts, bare
from sidecar.objects.upload_layout import LARGEST_OBJECT
from sidemount.stores.store import Buffer, FaultKind, ObjectInfo, StoreFault

_FOR_GOOD = (FaultKind.EXISTS, FaultKind.CHANGED, FaultKind.TOO_LARGE, FaultKind.UNSUPPORTED)


class Draft:
    """One file of which the store does not have everything yet, shared by its handles. Everything may be called from any thread.

    What is appended streams into the store, part by part. What is written elsewhere needs room for staging, and content that is
    still here or in the object that was there: EOPNOTSUPP if not, EFBIG if there is no room. `fault` is what the last commit failed
    with, `is_changed` whether anything was written since the last; a file that is new but not changed is committed by `commit`, too.
    """

    def __init__(self, body: DraftBody) -> None:
        self.body = body
        self._parts = DraftParts(body)
        self._commit = DraftCommit(body, self._parts)
        self._shop = body.workshop
        self._modified_ns = time.time_ns()
        self._has_looked = False
        self.fault: OSError | None = None
        self.tries = 0
        self.due_s = 0.0
        if body.state.base is not None and not body.state.is_pending:
            self._modified_ns = body.state.base.modified_ns
        elif body.state.size:
            self._modified_ns = body.spool.modified_ns

    @property
    def node_id(self) -> int:
        """The node that it is the content of."""
        return self.body.state.node_id

    @property
    def key(self) -> str:
        """Where it goes."""
        return self.body.state.key

    @property
    def size(self) -> int:
        """How long it is."""
        return self.body.state.size

    @property
    def modified_ns(self) -> int:
        """When it was last changed."""
        return self._modified_ns

    @property
    def is_changed(self) -> bool:
        """Whether anything was written since the last commit."""
        return self.body.state.is_changed

    @property
    def is_pending(self) -> bool:
        """Whether the store lacks anything of it, if only that it was made or emptied."""
        return self.body.state.is_pending

    @property
    def is_lost(self) -> bool:
        """Whether no further attempt to commit it can work."""
        return self.body.state.is_lost

    def _is_for_good(self, fault: OSError) -> bool:
        if not isinstance(fault, StoreFault):
            return False
        upload = self.body.state.upload
        is_gone = fault.kind is FaultKind.MISSING and upload is not None and bool(upload.gone)
        return is_gone or fault.kind in _FOR_GOOD

    def write(self, offset: int, content: Buffer) -> int:
        """Write. Once it has returned, a successor has the bytes. Waits for uploads that are behind; EIO if they fail."""
        body, end = self.body, offset + len(content)
        if end > LARGEST_OBJECT or (
            not self._shop.store.abilities.uploads and end > self._shop.largest_whole
        ):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if not content:
            return 0
        if self._is_in_doubt:
            self._resolve()
        if end > self.size:
            self._shop.window.wait()
        with self._unlocked_by_commit():
            while self._parts.retry():  # a commit may have begun meanwhile
                body.wait_while(lambda: body.is_taken)
            size = body.state.size
            if offset < size:
                known = self._known(offset, content)
                if known == len(content):
                    return known  # the kernel asks again what a predecessor has done
                if known and offset + known == size:
                    return known + self._append(memoryview(content)[known:])
                return self._write_within(offset, content)
            if offset == size:
                return self._append(content)
            return self._write_within(offset, content)

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Read. EOPNOTSUPP for what was uploaded, is kept nowhere else and is not committed yet."""
        body = self.body
        for attempt in range(3):
            with body.lock:
                end = min(offset + size, body.state.size)
                if end <= offset:
                    return b""
                pieces, base = body.pieces(offset, end), body.state.base
                buffer = memoryview(bytearray(end - offset))
                body.fetch([one for one in pieces if one.is_local], base, offset, buffer)
            try:
                body.fetch([one for one in pieces if not one.is_local], base, offset, buffer)
                break
            except StoreFault as fault:
                if attempt < 2 and self._has_other_base(base):
                    continue
                if fault.kind is FaultKind.MISSING:
                    raise StoreFault(errno.ESTALE, FaultKind.CHANGED, f"{self.key!r} is gone") from fault
                raise
        return buffer

    def set_size(self, size: int) -> None:
        """Cut it off or have zeros at its end. To nothing is always possible, and replaces the object as a whole."""
        if size > LARGEST_OBJECT:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        body, state = self.body, self.body.state
        with self._undisturbed():
            if size == state.size:
                return
            if not size:
                self._change()  # now already: the spool is cut before that is noted
                self._empty()
                self._change()
                return
            if not self._shop.staging.is_on:
                raise OSError(errno.EOPNOTSUPP, "no room for staging")
            if size < state.size:
                if any(span.start < size for span in state.gone_within(size, state.size)):
                    raise OSError(errno.EOPNOTSUPP, "uploaded already, and not kept here")
            elif not body.charge(size - state.size):
                raise OSError(errno.EFBIG, "more than may be staged")
            self._change()
            self._parts.touch(min(size, state.size), max(size, state.size))
            body.spool.set_size(size)
            body.record(t="size", to=size)

    def truncate(self, *, exclusive: bool = False) -> None:
        """Be a new file, which replaces the object when it is committed. That alone is no change."""
        with self._undisturbed():
            if self.body.state.size or not self.body.state.is_new:
                self._empty(exclusive=exclusive)

    def commit(self) -> ObjectInfo:
        """Have all of it in the store and return that version; nothing to do if it is there. Raises what it fails with, each time."""
        with self._committing():
            state = self.body.state
            if state.is_discarded or (not state.is_pending and state.base is not None):
                return state.base or ObjectInfo(state.key, state.size, "", self._modified_ns)
            try:
                info = self._commit.run()
            except OSError as fault:
                self.fault = bare(fault)
                self._has_looked = False
                self._shop.count("commit_faults")
                if self._is_for_good(fault) and not state.is_lost:
                    with self.body.lock, contextlib.suppress(OSError):
                        self.body.record(t="lost")
                raise
            self.fault = None
            self._modified_ns = info.modified_ns
            return info

    def discard(self) -> None:
        """Never be committed: its name is gone. It can be read and written until it is forgotten."""
        with self._unlocked_by_commit():
            if not self.body.state.is_discarded:
                self.body.record(t="discarded")

    def move(self, key: str, info: ObjectInfo) -> None:
        """Be the file of another key, where the store has this content by now. Only for what is committed. Raises EBUSY."""
        with self._unlocked_by_commit():
            if self.body.state.is_pending:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            self.body.record(t="moved", key=key, base=info)

    def rebind(self, node_id: int) -> None:
        """Be the content of a node: somebody has opened it again."""
        with self.body.lock:
            self.tries = 0
            self.body.record(t="node", node=node_id)

    def abandon(self, at: float) -> None:
        """Be nobody's any more, but not committed yet."""
        with self.body.lock:
            self.body.record(t="abandoned", at=at)

    def drop(self) -> None:
        """Be over: a successor only clears up."""
        with self.body.lock:
            self.body.record(t="dropped")

    def vanish(self) -> bool:
        """Be over, and leave no trace; False if that is not done in a moment: then `drop` it, and have it dismantled.

        Of small files many end at once, and each hand-over to another thread would hold up all of them.
        """
        body = self.body
        with body.lock:
            is_busy = body.is_taken or self._parts.are_running
            if is_busy or body.state.upload is not None or body.state.size > self._shop.part_bytes:
                return False
            with contextlib.suppress(OSError):
                self._remove()
                return True
            return False

    def dismantle(self) -> None:
        """Remove every trace; an upload that was begun is given up. Only after `drop`."""
        with self.body.lock:
            self._parts.wait()
            self.body.is_closed = True
            self._parts.give_up()
            self._remove()

    def _remove(self) -> None:
        """Have no files any more. A successor that finds no log knows nothing of a draft, and removes the spool."""
        body = self.body
        os.unlink(body.log.path)
        body.is_closed = True
        body.discharge()
        with contextlib.suppress(OSError):
            os.unlink(body.spool.path)
        body.log.close()
        body.spool.close()

    def catch_up(self) -> None:
        """Go on with what a predecessor had begun."""
        with self.body.lock:
            if not self.body.state.is_dropped:
                self._parts.catch_up()

    @contextmanager
    def _unlocked_by_commit(self) -> Iterator[None]:
        """Hold the lock, and not while a commit takes what it commits."""
        body = self.body
        with body.lock:
            body.wait_while(lambda: body.is_taken)
            yield

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Hold the lock while nothing is on its way either: it may look into the spool, which must not be cut off then."""
        body = self.body
        with body.lock:
            body.wait_while(lambda: body.is_taken)
            body.is_taken = True  # or a writer who never rests would keep us waiting
            try:
                self._parts.wait()
                yield
            finally:
                body.is_taken = False
                body.moved_on()

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Have nobody write or commit for a block, without holding the lock."""
        body = self.body
        with body.lock:
            body.wait_while(lambda: body.is_taken)
            body.is_taken = True
        try:
            yield
        finally:
            with body.lock:
                body.is_taken = False
                body.moved_on()

    @property
    def _is_in_doubt(self) -> bool:
        """Whether the upload may be complete already, so that nothing must be added to it."""
        upload, attempts = self.body.state.upload, self.body.state.attempts
        return not self._has_looked and upload is not None and any(one.tag == upload.tag for one in attempts)

    def _resolve(self) -> None:
        with self._committing():
            if self._is_in_doubt:
                self._commit.recognise()
                self._has_looked = True

    def _has_other_base(self, base: ObjectInfo | None) -> bool:
        """Tell whether what was there is replaced by ourselves: by a commit, or by one of which that was not known yet."""
        with self._committing():
            state = self.body.state
            if state.base is base and state.attempts:
                self._commit.recognise()
            return state.base is not base

    def _known(self, offset: int, content: Buffer) -> int:
        """Return how many of some bytes are there already, from the first on."""
        body = self.body
        end = min(offset + len(content), body.state.size)
        if not body.state.local.covers(offset, end):
            return 0
        buffer = memoryview(bytearray(end - offset))
        body.spool.read_into(offset, buffer)
        return len(buffer) if buffer == memoryview(content)[: len(buffer)] else 0

    def _append(self, content: Buffer) -> int:
        body, offset = self.body, self.body.state.size
        self._parts.release(offset)
        self._change()
        self._parts.touch(offset, offset + len(content))
        written = body.spool.write(offset, content)
        body.state.appended(offset + written)
        self._modified_ns = time.time_ns()
        self._parts.appended(offset, offset + written)
        return written

    def _write_within(self, offset: int, content: Buffer) -> int:
        """Write where there is something already, or past the end."""
        body, state, end = self.body, self.body.state, offset + len(content)
        if not self._shop.staging.is_on:
            raise OSError(errno.EOPNOTSUPP, "no room for staging")
        start = min(offset, state.size)
        if next(state.gone_within(start, end), None) is not None:
            raise OSError(errno.EOPNOTSUPP, "uploaded already, and not kept here")
        if not body.charge(sum(stop - at for at, stop in state.local.missing(start, end))):
            raise OSError(errno.EFBIG, "more than may be staged")
        self._change()
        self._parts.touch(start, end)
        written = body.spool.write(offset, content)
        below = min(offset + written, state.base_end)
        if offset < below and not state.local.covers(offset, below):
            body.record(t="local", **{"from": offset, "to": below})
        if offset + written > state.size:
            state.appended(offset + written)
        self._modified_ns = time.time_ns()
        return written

    def _change(self) -> None:
        """Note that something is about to change, if that is not known yet."""
        state = self.body.state
        if not state.is_changed or any(one.is_current for one in state.attempts):
            self.body.record(t="changed")

    def _empty(self, *, exclusive: bool = False) -> None:
        body, state = self.body, self.body.state
        self._parts.give_up()
        body.spool.set_size(0)
        body.record(t="emptied", exclusive=exclusive or state.is_exclusive)
        body.discharge()
        self._parts.reset()
        self._modified_ns = time.time_ns()
