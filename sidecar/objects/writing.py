"""The files of a volume that are being written."""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Sequence

from sidecar.objects.draft import Draft
from sidecar.objects.draft_body import DraftBody
from sidecar.objects.draft_errands import DraftErrands
from sidecar.objects.draft_log import DraftLog, read_log
from sidecar.objects.draft_state import FORMAT, begun, replay
from sidecar.objects.draft_workshop import Workshop
from sidecar.objects.settings import ObjectsSettings
from sidecar.objects.spool import Spool
from sidecar.objects.upload_leftovers import UploadLeftovers
from sidemount.stores.store import ObjectInfo, ObjectStore

_log = logging.getLogger(__name__)
_LOG, _SPOOL = ".log", ".spool"
_KEPT_S = 3600.0  # how long a file is tried to be committed that nobody has open any more
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class Drafts:
    """All drafts of a volume. `directory` outlives the process; nobody else uses it.

    A draft that is forgotten before it could be committed is tried again for an hour, by this process or a successor, and
    is found by `create` and `edit` of its key; what becomes of it then is logged, with its key and size.
    """

    def __init__(self, store: ObjectStore, settings: ObjectsSettings, directory: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._directory = directory
        self._leftovers = UploadLeftovers(store, os.path.join(directory, "uploads"))
        self._shop = Workshop(store, settings, self._leftovers)
        self._settings = settings
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._drafts: dict[int, Draft] = {}
        self._abandoned: dict[str, Draft] = {}  # by key
        self._dropped: list[Draft] = []
        self._errands = DraftErrands(self._run_errands)
        self._leftovers.on_added = self._errands.wake
        watch_copies = getattr(store, "watch_copies", None)
        if watch_copies is not None:
            watch_copies(self._leftovers)
        self._is_closed = False

    def create(self, node_id: int, key: str, *, exclusive: bool) -> Draft:
        """Return the draft of a new object, or of one that is written anew as a whole: until the commit the old one stays."""
        draft = self.of(node_id)
        if draft is not None:
            draft.truncate(exclusive=exclusive)
            return draft
        self.supersede(key)
        return self._begin_once(node_id, key, None, exclusive=exclusive)

    def edit(self, node_id: int, key: str, info: ObjectInfo) -> Draft:
        """Return the draft of an object whose content stays. EOPNOTSUPP where nothing may be staged, EFBIG if it is too large.

        Nothing has to be staged of an object that is empty.
        """
        draft = self.of(node_id)
        if draft is None:
            draft, info = self._readopt(node_id, key, info)
        if draft is not None:
            return draft
        if info.size and not self._shop.staging.is_on:
            raise OSError(errno.EOPNOTSUPP, "no room for staging")
        # A store that copies parts has all but the changes already; from another one everything has to come here and back.
        most = self._shop.staging.bound if self._shop.store.abilities.uploads else self._shop.largest_whole
        if not self._shop.copy_least and info.size > most:
            raise OSError(errno.EFBIG, "more than may be staged")
        return self._begin_once(node_id, key, info, exclusive=False)

    def of(self, node_id: int) -> Draft | None:
        """Return the draft of a node, None if there is none."""
        return self._drafts.get(node_id)

    def resume(self) -> Sequence[Draft]:
        """Go on with what a predecessor on the same connection had, and return it."""
        self._load()
        return list(self._drafts.values())

    def begin(self) -> None:
        """Clear up what an earlier connection has left: nobody can have any of it open.

        What was closed is committed still; what was not, its writers know about, for every call of theirs fails.
        """
        self._load()
        for draft in list(self._drafts.values()):
            del self._drafts[draft.node_id]
            if draft.is_pending:
                self._tell_lost(draft.key, draft.size, "its mount has ended while it was written")
            self._drop(draft)

    def forget(self, node_id: int) -> None:
        """Let go of a node's draft: its last handle is gone. It was committed or discarded; if not, it is tried again."""
        with self._lock:
            draft = self._drafts.pop(node_id, None)
        if draft is None:
            return
        if not draft.is_pending or draft.is_lost:
            if draft.is_lost:
                self._tell_lost(draft.key, draft.size, str(draft.fault))
            self._drop(draft)
            return
        self.supersede(draft.key)
        draft.due_s = time.monotonic() + _FIRST_PAUSE_S
        with contextlib.suppress(OSError):
            draft.abandon(time.time())
        with self._lock:
            self._abandoned[draft.key] = draft
        extra = {"key": draft.key, "size_bytes": draft.size, "reason": str(draft.fault or "")}
        _log.warning("keep_uncommitted_file", extra=extra)
        self._errands.wake()

    def supersede(self, key: str) -> None:
        """Have nothing committed at a key that nobody has open any more: it is written anew, removed, or another file's."""
        with self._lock:
            earlier = self._abandoned.pop(key, None)
        if earlier is not None:
            size = earlier.size
            earlier.discard()  # waits for a commit that is on its way: it must not come after ours
            self._tell_lost(key, size, "written anew, removed or replaced")
            self._drop(earlier)

    def finish(self, until: float) -> bool:
        """Commit everything, for nobody will any more; return whether all was, by the time `until` of the monotonic clock."""
        with self._lock:
            drafts = [*self._drafts.values(), *self._abandoned.values()]
        left = iter(drafts)

        def commit() -> None:
            for draft in left:
                if time.monotonic() >= until:
                    return
                with contextlib.suppress(OSError):
                    draft.commit()

        # Side by side, or one that waits for its store would leave no time for the others.
        threads = [
            threading.Thread(target=commit, name="finish", daemon=True)
            for _ in range(min(len(drafts), self._settings.uploading))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(min(max(until - time.monotonic(), 0.0), threading.TIMEOUT_MAX))
        return not any(draft.is_pending for draft in drafts)

    def statistics(self) -> dict[str, int]:
        """Return counts since the start, and how much there is of what now."""
        with self._lock:
            now = {"drafts": len(self._drafts), "abandoned": len(self._abandoned)}
            drafts = [*self._drafts.values(), *self._abandoned.values()]
        return {
            "uncommitted_bytes": sum(draft.size for draft in drafts if draft.is_pending),
            "uploads_given_up": self._leftovers.aborted,
            "uploads_to_give_up": len(self._leftovers),
            "staged_bytes": self._shop.staging.used,
            "waiting_bytes": self._shop.window.used,
            **now,
            **self._shop.counts(),
        }

    def close(self) -> None:
        """End the threads. What there is stays for a successor."""
        with self._lock:
            self._is_closed = True
            drafts = [*self._drafts.values(), *self._abandoned.values(), *self._dropped]
            for draft in drafts:
                draft.body.is_closed = True
        self._errands.close()
        self._shop.pool.close()

    def _begin_once(self, node_id: int, key: str, info: ObjectInfo | None, *, exclusive: bool) -> Draft:
        with self._making:  # others may have opened it at the same time
            return self.of(node_id) or self._begin(node_id, key, info, exclusive=exclusive)

    def _begin(self, node_id: int, key: str, info: ObjectInfo | None, *, exclusive: bool) -> Draft:
        shop = self._shop
        state = begun(
            node_id,
            key,
            info,
            part_bytes=shop.part_bytes,
            largest_part=shop.largest_part,
            is_exclusive=exclusive,
        )
        path = os.path.join(self._directory, state.nonce)
        spool = Spool(path + _SPOOL)
        try:
            if state.size:
                spool.set_size(state.size)
            log = DraftLog(path + _LOG, is_new=True)
            try:
                log.append(state.snapshot())
            except OSError:
                os.unlink(log.path)
                log.close()
                raise
        except OSError:
            os.unlink(spool.path)
            spool.close()
            raise
        draft = Draft(DraftBody(shop, log, spool, state))
        with self._lock:
            self._drafts[node_id] = draft
        return draft

    def _load(self) -> None:
        """Read what is in the directory; what is not whole there was never begun, or is over."""
        names = sorted(os.listdir(self._directory))
        nonces = {name.removesuffix(_LOG) for name in names if name.endswith(_LOG)}
        for name in names:
            path = os.path.join(self._directory, name)
            if name.endswith(_LOG):
                self._load_one(path.removesuffix(_LOG))
            elif name.endswith((_SPOOL, ".new")) and name.removesuffix(_SPOOL) not in nonces:
                os.unlink(path)
        if self._dropped or self._abandoned or len(self._leftovers):
            self._errands.wake()

    def _load_one(self, path: str) -> None:
        records = read_log(path + _LOG)
        if not records or not os.path.exists(path + _SPOOL):
            for suffix in (_SPOOL, _LOG):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path + suffix)
            return
        if records[0].get("format") != FORMAT:
            _log.error("leave_written_file", extra={"key": records[0].get("key"), "path": path})
            return
        spool = Spool(path + _SPOOL)
        state = replay(records, spool.size)
        body = DraftBody(self._shop, DraftLog(path + _LOG), spool, state)
        body.charged = sum(end - start for start, end in state.local.within(0, state.base_end))
        self._shop.staging.take_anyway(body.charged)
        draft = Draft(body)
        if not state.is_dropped:
            # A cut may have been made and not noted: what is written now must not pass for what was there when we die, too.
            with contextlib.suppress(OSError):
                body.record(t="size", to=state.size)
        if state.is_dropped:
            self._dropped.append(draft)
        elif state.abandoned_s:
            self._abandoned[state.key] = draft
        else:
            self._drafts[state.node_id] = draft
            draft.catch_up()

    def _readopt(self, node_id: int, key: str, info: ObjectInfo) -> tuple[Draft | None, ObjectInfo]:
        """Return what was to be committed there, if it still is, and the version that there is."""
        with self._lock:
            draft = self._abandoned.get(key)
        if draft is None:
            return None, info
        with contextlib.suppress(OSError):
            info = draft.commit()
        self._settle(key, draft)  # committed, or never to be: somebody has written since
        with self._lock:
            if self._abandoned.get(key) is not draft:
                return None, info
            del self._abandoned[key]
            draft.rebind(node_id)
            self._drafts[node_id] = draft
            return draft, info

    def _tell_lost(self, key: str, size: int, reason: str) -> None:
        self._shop.count("files_lost")
        _log.error("lose_written_file", extra={"key": key, "size_bytes": size, "reason": reason})

    def _drop(self, draft: Draft) -> None:
        if draft.vanish():
            return
        with contextlib.suppress(OSError):
            draft.drop()
        with self._lock:
            self._dropped.append(draft)
        self._errands.wake()

    def _run_errands(self) -> float | None:
        while True:
            with self._lock:
                if self._is_closed:
                    return None
                draft = self._dropped.pop() if self._dropped else None
            if draft is None:
                break
            draft.dismantle()
        waits = [self._leftovers.run(), self._retry_abandoned()]
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def _retry_abandoned(self) -> float | None:
        """Try again what is due, and return after how many seconds something will be."""
        with self._lock:
            abandoned = list(self._abandoned.items())
        waits = []
        for key, draft in abandoned:
            if draft.due_s <= time.monotonic():
                with contextlib.suppress(OSError):
                    draft.commit()
                self._shop.count("commits_retried")
                draft.tries += 1
                pause_s = min(_FIRST_PAUSE_S * 2**draft.tries, _LONGEST_PAUSE_S)
                draft.due_s = time.monotonic() + pause_s
                self._settle(key, draft)
            waits.append(max(draft.due_s - time.monotonic(), 0.0))
        return min(waits, default=None)

    def _settle(self, key: str, draft: Draft) -> None:
        """See what has become of an abandoned draft."""
        age_s = time.time() - draft.body.state.abandoned_s
        with self._lock:
            is_over = not draft.is_pending or draft.is_lost or age_s > _KEPT_S
            if self._abandoned.get(key) is not draft or not is_over:
                return
            del self._abandoned[key]
        if draft.is_pending:
            self._tell_lost(key, draft.size, str(draft.fault or ""))
        else:
            _log.info("commit_file_late", extra={"key": key, "size_bytes": draft.size})
        self._drop(draft)
