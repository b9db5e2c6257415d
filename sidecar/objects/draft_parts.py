"""The parts of one draft on their way to the store, while it is written and when it is committed."""

import errno
import time
from collections import Counter
from collections.abc import Sequence

from sidecar.objects.draft_body import DraftBody
from sidecar.objects.draft_state import Upload
from sidecar.objects.upload_layout import Span
from sidemount.stores.store import FaultKind, Part, StoreFault


class BegunAgain(StoreFault):
    """The store does not have an upload any more; nothing is lost, and the next attempt begins another."""


def bare(fault: OSError) -> OSError:
    """Return a fault that can be kept: its frames would keep the content that was to be sent."""
    if isinstance(fault, StoreFault):
        kind = BegunAgain if isinstance(fault, BegunAgain) else StoreFault
        return kind(fault.errno or errno.EIO, fault.kind, fault.strerror or "")
    return OSError(fault.errno or errno.EIO, fault.strerror or str(fault))


class DraftParts:
    """No two uploads of a part run at once, and none counts whose bytes were written to meanwhile."""

    def __init__(self, body: DraftBody) -> None:
        self._body = body
        self._shop = body.workshop
        self._running: dict[int, int] = {}  # number → bytes that count for the window
        self._touched: Counter[int] = Counter()
        self._faults: dict[int, OSError] = {}
        self._unkept: list[int] = []  # uploaded while it was written, and still in the spool
        self._is_beginning = False
        if body.state.upload is not None:
            self._unkept = [one for one in body.state.upload.parts if one not in body.state.upload.gone]

    @property
    def are_running(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._running) or self._is_beginning

    def touch(self, start: int, end: int) -> None:
        """Know that a range is about to be written: what the store has of it is the past. For whoever holds the lock."""
        upload = self._body.state.upload
        if upload is None:
            return
        for span in upload.layout.spans(start, end):
            self._touched[span.number] += 1
            if span.number in upload.parts:
                self._body.record(t="dirty", number=span.number)

    def appended(self, start: int, end: int) -> None:
        """Upload the parts that have become full: there is something after them now. For whoever holds the lock."""
        if not self._shop.store.abilities.uploads or end <= self._shop.largest_put:
            return
        layout = self._body.layout()
        span = layout.span(layout.number_at(max(start - 1, 0)))
        while span.end < end:
            if start <= span.end and not self._has(span.number):
                self._start(span, counts=True)
            span = layout.span(span.number + 1)

    def catch_up(self) -> None:
        """Upload what a predecessor had not yet. For whoever holds the lock."""
        state = self._body.state
        upload = state.upload
        if upload is not None and not upload.id:
            self._shop.leftovers.doubt(state.key, upload.at)
        self.appended(state.base_end, state.size)

    def give_up(self) -> None:
        """Have the upload removed from the store, by and by. For whoever holds the lock, when nothing is on its way."""
        upload = self._body.state.upload
        if upload is not None and upload.id:
            self._shop.leftovers.add(self._body.state.key, upload.id)

    def release(self, start: int) -> None:
        """Give up the local copy of parts, if there is no room for it. For whoever holds the lock.

        Not before something is appended at `start`, past them: until then the kernel may send again what it has no answer for.
        """
        body, upload = self._body, self._body.state.upload
        waiting = []
        for number in self._unkept:
            if upload is None or number not in upload.parts:
                continue
            span = upload.layout.span(number)
            if span.end > start:
                waiting.append(number)
            elif body.state.local.touches(span.start, span.end) and not body.charge(
                span.end - span.start, to_keep=True
            ):
                body.record(t="gone", number=number)
                body.spool.punch(span.start, span.end)
        self._unkept = waiting

    def retry(self) -> bool:
        """Try what has failed once more, and wait for it; False if there was nothing. Raises what it fails with.

        For whoever holds the lock, who does not hold it while it waits.
        """
        if not self._faults:
            return False
        upload = self._body.state.upload
        numbers, self._faults = list(self._faults), {}
        if upload is None:
            return False
        for number in numbers:
            span = upload.layout.span(number)
            if not self._has(number) and span.end < self._body.state.size:
                self._start(span, counts=True)
        self._body.wait_while(lambda: any(number in self._running for number in numbers))
        for fault in self._faults.values():
            raise fault
        return True

    def wait(self) -> None:
        """Wait for everything that is on its way. For whoever holds the lock."""
        self._body.wait_while(lambda: self.are_running)

    def upload_rest(self, size: int) -> tuple[Upload, Sequence[Part]]:
        """Have all parts in the store and return them. Raises what that fails with. For whoever holds the lock; nobody writes."""
        body = self._body
        self.wait()
        self._faults = {}
        upload = self._begun()
        for span in upload.layout.spans(0, size):
            end = min(span.end, size)
            found = upload.parts.get(span.number)
            if found is None or found.size != end - span.start:
                self._start(Span(span.number, span.start, end), counts=False)
        self.wait()
        for fault in self._faults.values():
            raise fault
        numbers = [one.number for one in upload.layout.spans(0, size)]
        if body.state.upload is not upload or any(number not in upload.parts for number in numbers):
            raise OSError(errno.EIO, f"the upload of {body.state.key!r} was ended")
        return upload, [upload.parts[number] for number in numbers]

    def begin_again(self) -> bool:
        """Forget an upload that the store does not have any more; False if that would lose something. For whoever holds the lock."""
        upload = self._body.state.upload
        if upload is not None and upload.id:
            if upload.gone:
                return False
            self._renew(upload.layout.prefix)
        return True

    def compare(self) -> bool:
        """Find the parts that are others in the store than we know, and return whether there are any. Not for whoever holds the lock."""
        body = self._body
        with body.lock:
            upload = body.state.upload
        if upload is None:
            return False
        there = {part.number: part for part in self._shop.store.parts(body.state.key, upload.id)}
        with body.lock:
            wrong = [one for one, part in upload.parts.items() if there.get(one) != part]
            if any(number in upload.gone for number in wrong):
                raise OSError(errno.EIO, "the store has lost parts of an upload")
            for number in wrong:
                body.record(t="dirty", number=number)
        return bool(wrong)

    def reset(self) -> None:
        """Know that there is another upload, or none. For whoever holds the lock."""
        self._faults = {}
        self._unkept = []

    def _has(self, number: int) -> bool:
        upload = self._body.state.upload
        return number in self._running or (upload is not None and number in upload.parts)

    def _begun(self) -> Upload:
        if self._body.state.upload is None:
            self._renew(self._body.layout().prefix)
        upload = self._body.state.upload
        assert upload is not None
        return upload

    def _renew(self, prefix: int) -> None:
        body = self._body
        at = time.time_ns()
        body.record(t="uploading", prefix=prefix, tag=f"{body.state.nonce}-u{at:x}", at=at)
        self.reset()

    def _start(self, span: Span, *, counts: bool) -> None:
        upload = self._begun()
        counted = span.end - span.start if counts else 0
        self._shop.window.take(counted)
        self._running[span.number] = counted
        self._faults.pop(span.number, None)
        touched = self._touched[span.number]
        if not self._shop.pool.submit(lambda: self._run(upload, span, touched)):
            self._shop.window.give(self._running.pop(span.number))
            self._faults[span.number] = OSError(errno.EIO, "no more uploads are begun")

    def _run(self, upload: Upload, span: Span, touched: int) -> None:
        """Upload a part, in a thread of the pool."""
        body = self._body
        with body.lock:  # where one has failed, others need not wait for the same
            part, fault = None, next(iter(self._faults.values()), None)
        try:
            if fault is None and self._make_begin(upload):
                part = self._send(upload, span)
        except OSError as error:
            fault = error
        except Exception as error:  # a defect must not take the pool's thread with it
            fault = OSError(errno.EIO, repr(error))
            fault.__cause__ = error
        with body.lock:
            try:
                is_current = body.state.upload is upload and not body.is_closed
                if part is not None and is_current and self._touched[span.number] == touched:
                    body.record(t="part", part=part)
                    self._unkept.append(span.number)
            except OSError as error:
                fault = error
            if fault is not None and is_current:
                self._faults[span.number] = bare(self._judge(upload, fault))
                self._shop.count("upload_faults")
            counted = self._running.pop(span.number)
            body.moved_on()
        self._shop.window.give(counted)

    def _judge(self, upload: Upload, fault: OSError) -> OSError:
        """Return what the application is told; have a new upload where the old one is gone."""
        if not isinstance(fault, StoreFault) or fault.kind is not FaultKind.MISSING:
            return fault
        if not self.begin_again():
            return StoreFault(
                errno.EIO, FaultKind.MISSING, f"the store has lost an upload of {self._body.state.key!r}"
            )
        return BegunAgain(errno.EIO, FaultKind.RESET, f"an upload of {self._body.state.key!r} is gone")

    def _make_begin(self, upload: Upload) -> bool:
        """Have an upload begun, once, and return whether it is still wanted."""
        body = self._body
        with body.lock:
            body.wait_while(lambda: self._is_beginning)
            if body.state.upload is not upload or body.is_closed:
                return False
            if upload.id:
                return True
            self._is_beginning = True
            key, at = body.state.key, time.time_ns()
        found = ""
        try:
            found = self._shop.store.begin_upload(key, tag=upload.tag)
        except StoreFault:
            self._shop.leftovers.doubt(key, at)
            raise
        finally:
            with body.lock:
                self._is_beginning = False
                is_wanted = body.state.upload is upload and not body.is_closed
                try:
                    if found and is_wanted:
                        body.record(t="upload", id=found)
                    elif found:
                        self._shop.leftovers.add(key, found)
                finally:
                    body.moved_on()
        return is_wanted

    def _send(self, upload: Upload, span: Span) -> Part:
        body, shop = self._body, self._shop
        with body.lock:
            key, base = body.state.key, body.state.base
            pieces = body.pieces(span.start, span.end)
            is_last = span.end == body.state.size
        size = span.end - span.start
        is_copy = (
            base is not None
            and shop.copy_least
            and not any(piece.is_local for piece in pieces)
            and (size >= shop.copy_least or is_last)
        )
        if is_copy and base is not None:
            shop.count("parts_copied")
            return shop.store.copy_part(key, upload.id, span.number, base, span.start, size)
        with body.content(span.start, span.end) as content:
            part = shop.store.put_part(key, upload.id, span.number, content)
        shop.count("parts_uploaded")
        return part
