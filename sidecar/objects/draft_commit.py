"""Making what a draft has the object in the store, once, whatever is known of earlier attempts."""

import errno

from sidecar.objects.draft_body import DraftBody
from sidecar.objects.draft_parts import BegunAgain, DraftParts
from sidecar.objects.draft_state import Attempt
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault

_ROUNDS = 4  # of an attempt that finds out why it cannot work, and changes that
_MOST_KEPT = 1000


class DraftCommit:
    """Commits one draft; nobody writes to it meanwhile."""

    def __init__(self, body: DraftBody, parts: DraftParts) -> None:
        self._body = body
        self._parts = parts
        self._shop = body.workshop

    def run(self) -> ObjectInfo:
        """Commit and return the version. Raises OSError: nothing has changed, or whether it has is found out next time."""
        body = self._body
        with body.lock:
            self._parts.wait()
        if body.state.attempts and (info := self.recognise()):
            return info
        for _ in range(_ROUNDS):
            try:
                tag, info = self._put() if self._is_small() else self._complete()
            except StoreFault as fault:
                if (found := self._after(fault)) is not None:
                    return found
                continue
            self._finish(info, tag)
            return info
        raise OSError(errno.EIO, f"{body.state.key!r} could not be committed in {_ROUNDS} attempts")

    def _after(self, fault: StoreFault) -> ObjectInfo | None:
        """Return the version if it was made all the same, None if another attempt can work. Raises the fault if none can."""
        body = self._body
        if fault.kind in (FaultKind.EXISTS, FaultKind.CHANGED, FaultKind.MISSING):
            before = len(body.state.attempts)
            if info := self.recognise():
                return info
            if before and not body.state.attempts:
                return None  # it is what we were a while ago: go on from there
        if fault.kind is FaultKind.MISSING and body.state.upload is not None:
            with body.lock:
                if self._parts.begin_again():
                    return None
            raise StoreFault(
                errno.EIO, FaultKind.MISSING, f"the store has lost an upload of {body.state.key!r}"
            ) from fault
        if fault.kind is FaultKind.REQUEST and body.state.upload is not None and self._parts.compare():
            return None
        if isinstance(fault, BegunAgain):
            return None
        raise fault

    def _is_small(self) -> bool:
        state = self._body.state
        if not self._shop.store.abilities.uploads:
            return True
        return state.size <= self._shop.largest_put and not (state.upload and state.upload.gone)

    def _put(self) -> tuple[str, ObjectInfo]:
        body, state = self._body, self._body.state
        if_absent, if_match = self._conditions()
        with body.content(0, state.size) as content:
            self._attempt(state.tag)
            put = self._shop.store.put
            return state.tag, put(state.key, content, if_absent=if_absent, if_match=if_match, tag=state.tag)

    def _complete(self) -> tuple[str, ObjectInfo]:
        body, state = self._body, self._body.state
        if_absent, if_match = self._conditions()
        with body.lock:
            upload, parts = self._parts.upload_rest(state.size)
        self._attempt(upload.tag)
        complete = self._shop.store.complete
        return upload.tag, complete(state.key, upload.id, parts, if_absent=if_absent, if_match=if_match)

    def _conditions(self) -> tuple[bool, str]:
        """Return what the store has to hold, having asked what it cannot."""
        state, can = self._body.state, self._shop.store.abilities
        if_absent = state.is_exclusive
        if_match = state.base.etag if state.base is not None and (state.is_edit or state.uses_base) else ""
        if state.abandoned_s and not if_absent and not if_match:
            found = self._found()  # this is late: it must not undo what somebody has written since
            if found is not None and found.modified_ns > state.abandoned_s * 1e9:
                raise _changed(state.key)
            if_absent, if_match = found is None, found.etag if found is not None else ""
        elif (if_absent and not can.put_if_absent) or (if_match and not can.put_if_match):
            found = self._found()
            if if_absent and found is not None:
                raise StoreFault(errno.EEXIST, FaultKind.EXISTS, f"{state.key!r} is there")
            if if_match and (found is None or found.etag != if_match):
                raise _changed(state.key)
        return if_absent and can.put_if_absent, if_match if can.put_if_match else ""

    def _found(self) -> ObjectInfo | None:
        try:
            return self._shop.store.head(self._body.state.key)
        except StoreFault as fault:
            if fault.kind is not FaultKind.MISSING:
                raise
            return None

    def _attempt(self, tag: str) -> None:
        body = self._body
        with body.lock:
            size = body.state.size
            if not any(one == Attempt(tag, size, size, is_current=True) for one in body.state.attempts):
                body.record(t="committing", tag=tag, size=size)

    def recognise(self) -> ObjectInfo | None:
        """Return the version if an attempt has made what we are now; if it made what we were, be based on that."""
        body, state = self._body, self._body.state
        try:
            info, tag = self._shop.store.tag_of(state.key)
        except StoreFault as fault:
            if fault.kind is FaultKind.MISSING:
                return None
            raise
        ours = [one for one in state.attempts if one.tag == tag]
        if not ours:
            return None
        if ours[-1].is_current and info.size == state.size:
            self._end_upload(tag)
            self._finish(info, tag)
            return info
        with body.lock:
            # An upload keeps its tag from one attempt to the next: the size tells which one it was.
            same = [one for one in ours if one.made == info.size] or ours
            end = min(info.size, *(one.size for one in same))
            gone = state.upload.gone if state.upload is not None and state.upload.tag == tag else ()
            if state.upload is not None and any(state.upload.layout.span(one).end > end for one in gone):
                raise OSError(errno.EIO, f"{state.key!r} lacks what was written last")
        self._end_upload(tag)
        with body.lock:
            body.record(t="adopted", base=info, end=end, tag=tag)
            self._parts.reset()
        return None

    def _end_upload(self, tag: str) -> None:
        """Have an upload that has made its object removed, should it be there still: the store may have been interrupted, too."""
        with self._body.lock:
            upload = self._body.state.upload
            if upload is not None and upload.tag == tag:
                self._parts.give_up()

    def _finish(self, info: ObjectInfo, tag: str) -> None:
        """Know that it is done. Only the last bytes are kept: more may be appended to them."""
        body, state = self._body, self._body.state
        with body.lock:
            if state.upload is not None and state.upload.tag != tag:
                self._parts.give_up()
            kept = self._kept(info.size)
            body.record(t="committed", base=info, kept=kept, tag=tag)
            at = 0
            for start, end in [*kept, (info.size, info.size)]:
                body.spool.punch(at, start)
                at = end
            body.discharge()
            self._parts.reset()
        self._shop.count("commits")

    def _kept(self, size: int) -> list[tuple[int, int]]:
        if not size:
            return []
        state, layout = self._body.state, self._body.layout()
        start = layout.span(layout.number_at(size - 1)).start if size > self._shop.part_bytes else 0
        kept = list(state.local.within(start, size))
        is_little = (
            len(kept) <= _MOST_KEPT and sum(end - begin for begin, end in kept) <= self._shop.part_bytes
        )
        return kept if is_little else []


def _changed(key: str) -> StoreFault:
    return StoreFault(errno.ESTALE, FaultKind.CHANGED, f"{key!r} is another version")
