"""FactsDirectory: facts from a directory of ordinary Kubernetes manifests, kept up to date and always the last good set."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sidemount.host.facts_files import list_manifests, read_manifest
from sidemount.host.facts_manifests import Fact, ObjectId, expand_lists, identify, is_known, parse_fact
from sidemount.host.facts_snapshot import FactsSnapshot, index_facts
from sidemount.host.facts_text import parse_manifests
from sidemount.host.regular_file import Signature
from sidemount.model.errors import HostFailure, VolumeError
from sidemount.model.facts import SourceFault

_MAX_FAULTS = 200  # reported at once: a file of garbage must not fill the log
_RACY_S = 0.1  # a file this young may change again without its times changing

_GONE = Signature(device=-1, inode=-1, size_bytes=-1, mtime_ns=-1, ctime_ns=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileState:
    """What one file stated when it was last good, and what is wrong with it now."""

    signature: Signature | None = None
    facts: dict[ObjectId, Fact | None] = field(default_factory=dict)
    faults: tuple[SourceFault, ...] = ()
    notes: tuple[SourceFault, ...] = ()


class FactsDirectory:
    """Reads the manifests of one directory; `refresh` looks again, `facts` never blocks once loaded.

    A change, a deletion too, is taken over when it has stood for `settle_s`: so no half-written file is read, and a file
    that is being replaced is not missed. A file that cannot be parsed keeps what it last stated; so does a single object
    that became invalid. What is gone from a good file is gone; a deleted file's objects are gone; while the directory is
    missing everything is kept. An object stated twice counts as stated by the first file by name, first document.
    Safe to refresh from another thread.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        settle_s: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(path)
        self._settle_s = settle_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._files: dict[str, _FileState] = {}
        self._changing: dict[str, tuple[Signature | None, float]] = {}
        self._snapshot = FactsSnapshot()
        self._notes: tuple[SourceFault, ...] = ()
        self._seen_at: float | None = None
        self._directory_fault: SourceFault | None = None
        self._lock = threading.Lock()

    def facts(self) -> FactsSnapshot:
        """Return the present snapshot; the first call reads the directory.

        Raises: nothing for a broken file or directory; see `faults` of the snapshot.
        """
        if self._seen_at is None and self._snapshot.number == 0:
            self.refresh()
        return self._snapshot

    def notes(self) -> tuple[SourceFault, ...]:
        """Return what was passed over without being a fault: objects of kinds that state no fact."""
        return self._notes

    @property
    def is_loaded(self) -> bool:
        """Whether the directory could ever be read."""
        return self._seen_at is not None

    @property
    def is_changing(self) -> bool:
        """Whether some file changed and is not still for long enough yet: look again soon."""
        return bool(self._changing)

    def age_s(self) -> float:
        """Return the seconds since the directory could last be read; infinite if never."""
        return float("inf") if self._seen_at is None else self._clock() - self._seen_at

    def refresh(self) -> bool:
        """Look at the directory, take over what changed, return whether any answer may differ."""
        with self._lock:
            now = self._clock()
            try:
                present = list_manifests(self._path)
            except VolumeError as error:
                return self._publish(SourceFault(where=str(self._path), message=error.message))
            first = self._seen_at is None
            looked = {**dict.fromkeys(self._files, _GONE), **present}
            due = [
                name for name, signature in looked.items() if self._is_due(name, signature, now, first=first)
            ]
            for name in due:
                if looked[name] == _GONE:
                    del self._files[name]
                else:
                    self._files[name] = self._read(name, looked[name], self._files.get(name, _FileState()))
            self._changing = {name: seen for name, seen in self._changing.items() if name in looked}
            self._seen_at = now
            if due or first or self._directory_fault is not None:
                return self._publish(None)
            return False

    def _is_due(self, name: str, signature: Signature | None, now: float, *, first: bool) -> bool:
        known = self._files.get(name)
        if known is not None and known.signature == signature:
            self._changing.pop(name, None)
            return False
        if first:
            return True
        seen = self._changing.get(name)
        if seen is None or seen[0] != signature:
            self._changing[name] = seen = (signature, now)
        if now - seen[1] < self._settle_s:
            return False
        del self._changing[name]
        return True

    def _read(self, name: str, listed: Signature | None, known: _FileState) -> _FileState:
        try:
            signature, text = read_manifest(self._path / name)
            documents = parse_manifests(text, is_json=name.endswith(".json"))
            manifests = [manifest for document in documents for manifest in expand_lists(document)]
        except VolumeError as error:
            # What the machine refused may be granted later without the file changing: look again.
            seen = None if isinstance(error, HostFailure) else self._settled(listed)
            stated = any(fact is not None for fact in known.facts.values())
            fault = SourceFault(where=name, message=_kept(error, stated))
            return replace(known, signature=seen, faults=(fault,))
        return replace(_state_of(name, manifests, known), signature=self._settled(signature))

    def _settled(self, signature: Signature | None) -> Signature | None:
        """Forget the signature of a file so young that another write may leave it the same."""
        if signature is None or abs(self._wall_clock() - signature.ctime_ns / 1e9) < _RACY_S:
            return None
        return signature

    def _publish(self, directory_fault: SourceFault | None) -> bool:
        stated: dict[ObjectId, tuple[str, Fact]] = {}
        faults = [] if directory_fault is None else [directory_fault]
        notes: list[SourceFault] = []
        for name, state in sorted(self._files.items()):
            faults.extend(state.faults)
            notes.extend(state.notes)
            for identity, fact in state.facts.items():
                if fact is None:
                    continue
                if identity in stated:
                    faults.append(_duplicate(identity, name, stated[identity][0]))
                else:
                    stated[identity] = (name, fact)
        self._directory_fault = directory_fault
        self._notes = tuple(notes[:_MAX_FAULTS])
        last = self._snapshot
        facts = (fact for _, fact in stated.values())
        snapshot = index_facts(facts, _bounded(faults, self._path), last.number)
        if snapshot == last and last.number > 0:
            return False
        self._snapshot = replace(snapshot, number=last.number + 1)
        return True


def _state_of(name: str, manifests: list[Any], known: _FileState) -> _FileState:
    facts: dict[ObjectId, Fact | None] = {}
    faults: list[SourceFault] = []
    notes: list[SourceFault] = []
    for number, manifest in enumerate(manifests, start=1):
        try:
            identity = identify(manifest)
        except VolumeError as error:
            faults.append(SourceFault(where=f"{name}, object {number}", message=str(error)))
            continue
        where = f"{name}, {_called(identity)}"
        if not is_known(manifest):
            notes.append(SourceFault(where=where, message="is of no kind that is read; passed over"))
        elif identity in facts:
            faults.append(SourceFault(where=where, message="stands twice in this file; the first one counts"))
        else:
            last = known.facts.get(identity)
            try:
                facts[identity] = parse_fact(manifest)
            except VolumeError as error:
                facts[identity] = last
                faults.append(SourceFault(where=where, message=_kept(error, last is not None)))
    return _FileState(facts=facts, faults=tuple(faults), notes=tuple(notes))


def _called(identity: ObjectId) -> str:
    kind, namespace, name = identity
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _kept(error: VolumeError, kept: bool) -> str:
    return f"{error}; what was last good is kept" if kept else str(error)


def _duplicate(identity: ObjectId, name: str, first: str) -> SourceFault:
    message = f"is stated by {first} already, which counts; remove one of the two"
    return SourceFault(where=f"{name}, {_called(identity)}", message=message)


def _bounded(faults: list[SourceFault], path: Path) -> tuple[SourceFault, ...]:
    if len(faults) <= _MAX_FAULTS:
        return tuple(faults)
    rest = SourceFault(where=str(path), message=f"and {len(faults) - _MAX_FAULTS} more faults")
    return (*faults[:_MAX_FAULTS], rest)
