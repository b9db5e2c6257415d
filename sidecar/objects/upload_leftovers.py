"""Uploads that nobody goes on with: given up, at the latest by a successor.

Only what a record on the volume says is ours is ever touched. Where the answer to the beginning of an upload was lost, its id is not
known (a doubt): an upload of that key, begun at that time, is ours or somebody else's who began at the same moment. It is given up
an hour later if it still has no part: then nothing is lost with it, whosever it is.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from sidecar.objects.draft_log import DraftLog, Record, read_log
from sidemount.stores.store import FaultKind, ObjectStore, StoreFault

_log = logging.getLogger(__name__)
_DOUBT_S = 3600.0
_SKEW_NS = 120 * 1_000_000_000  # between our clock and the store's, and between the record and the beginning
_GIVEN_UP_S = 7 * 24 * 3600.0  # a store that refuses for so long will not take it any more
_PAUSES_S = (0.0, 1.0, 5.0, 30.0, 300.0)


class UploadLeftovers:
    """A list that is kept in a file."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._open: dict[str, Record] = {}
        self._tries: dict[str, tuple[int, float]] = {}
        self._held: set[str] = set()  # ours, and going on: for a successor alone
        for record in read_log(path):
            self._apply(record)
        self._log = DraftLog(path)
        self.aborted = 0
        self.on_added: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._snapshot())

    def add(self, key: str, upload: str) -> None:
        """Have an upload given up."""
        self._note({"t": "abort", "key": key, "id": upload, "at": time.time()})
        self.on_added()

    def doubt(self, key: str, at: int) -> None:
        """Have an upload found and given up of which only is known when its beginning was asked for, in ns."""
        self._note({"t": "doubt", "key": key, "id": f"?{at}", "at": at / 1e9})
        self.on_added()

    def begun(self, key: str, upload: str) -> None:
        """Have an upload given up by a successor, should this process die with it."""
        with self._lock:
            self._held.add(f"{upload} {key}")
        with contextlib.suppress(OSError):  # no room to note it: that is no reason not to copy
            self._note({"t": "abort", "key": key, "id": upload, "at": time.time()})

    def ended(self, key: str, upload: str, *, is_over: bool) -> None:
        """Know what has become of it: not `is_over`, it is given up from now on."""
        with contextlib.suppress(OSError):
            self._note({"t": "done" if is_over else "abort", "key": key, "id": upload, "at": time.time()})
        with self._lock:
            self._held.discard(f"{upload} {key}")
        if not is_over:
            self.on_added()

    def run(self) -> float | None:
        """Give up what is due, and return after how many seconds something will be; None if nothing is left."""
        for name, record in self._due():
            try:
                if record["t"] == "abort":
                    self._store.abort(record["key"], record["id"])
                    self.aborted += 1
                else:
                    self._look_for(record)
            except OSError as fault:
                if time.time() - record["at"] < _GIVEN_UP_S:
                    tries = self._tries.get(name, (0, 0.0))[0] + 1
                    pause_s = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
                    self._tries[name] = (tries, time.monotonic() + pause_s)
                    continue
                extra = {"key": record["key"], "reason": str(fault)}
                _log.warning("leave_upload_behind", extra=extra)
            self._note({"t": "done", "key": record["key"], "id": record["id"]})
        return min((self._wait_s(*one) for one in self._snapshot()), default=None)

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._log.close()

    def _look_for(self, record: Record) -> None:
        at = int(record["at"] * 1e9)
        for key, upload, begun in self._store.uploads(record["key"]):
            if key != record["key"] or abs(begun - at) > _SKEW_NS:
                continue
            try:
                if not self._store.parts(key, upload):
                    self._store.abort(key, upload)
                    self.aborted += 1
            except StoreFault as fault:
                if fault.kind is not FaultKind.MISSING:
                    raise

    def _due(self) -> Iterator[tuple[str, Record]]:
        for name, record in self._snapshot():
            if self._wait_s(name, record) <= 0:
                yield name, record

    def _wait_s(self, name: str, record: Record) -> float:
        wait_s = self._tries.get(name, (0, 0.0))[1] - time.monotonic()
        if record["t"] == "doubt":
            wait_s = max(wait_s, record["at"] + _DOUBT_S - time.time())
        return max(wait_s, 0.0)

    def _snapshot(self) -> list[tuple[str, Record]]:
        with self._lock:
            return [one for one in self._open.items() if one[0] not in self._held]

    def _note(self, record: Record) -> None:
        with self._lock:
            self._log.append(record)
            self._apply(record)
            if not self._open:
                self._log.clear()

    def _apply(self, record: Record) -> None:
        name = f"{record['id']} {record['key']}"
        if record["t"] == "done":
            self._open.pop(name, None)
            self._tries.pop(name, None)
        else:
            self._open[name] = record
