"""LiveStore: what lists, watches and single reads have told, as one snapshot that never changes under its reader.

One event loop's: only reading a snapshot is safe from other threads.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from sidemount.host.cluster_reader import Trouble
from sidemount.host.facts_manifests import Fact
from sidemount.host.facts_snapshot import FactsSnapshot, cluster_of
from sidemount.host.live_groups import Groups, add_to_group, changed_groups
from sidemount.host.live_kinds import (
    CLAIM,
    CSI_DRIVER_KIND,
    FUSE_DRIVER_CLASS,
    KINDS,
    LIMIT_RANGE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    RESOURCE_QUOTA,
    STORAGE_CLASS,
    Key,
    LiveKind,
    key_of,
    read_fact,
    version_of,
)
from sidemount.host.logs import log
from sidemount.host.sharded_map import GONE, Gone, ShardedMap, ShardedMapBuilder
from sidemount.model.errors import VolumeError
from sidemount.model.facts import SourceFault

_MAX_FAULTS = 200
_BORROWED_S = 30.0
_log = log("live_store")

Change = Fact | None | Gone


class _Target(Protocol):
    """What facts are gathered in."""

    def get(self, key: Key, default: Any = None, /) -> Any: ...
    def __setitem__(self, key: Key, value: Change, /) -> None: ...


@dataclass(slots=True)
class Listing:
    """A list on its way in, ready to be taken over at once. `same` counts what is as it was in `before`."""

    before: ShardedMap[Key, Change]
    objects: ShardedMapBuilder[Key, Change] = field(default_factory=ShardedMapBuilder)
    groups: ShardedMapBuilder[Key, tuple[Any, ...]] = field(default_factory=ShardedMapBuilder)
    same: int = 0


@dataclass(slots=True)
class KindState:
    """All that is known of one kind, also in groups. An object that states no fact is there as None.

    `borrowed`: what single reads told, until when, and what the watch had told before. `touched`: what the watch has told
    since such a read began. `heard_at` is the clock's time when the API server last spoke of this kind.
    """

    objects: ShardedMap[Key, Change] = field(default_factory=ShardedMap)
    groups: Groups = field(default_factory=ShardedMap)
    faults: dict[Key, tuple[str, SourceFault]] = field(default_factory=dict)
    borrowed: dict[Key, tuple[float, Change]] = field(default_factory=dict)
    touched: dict[Key, bool] = field(default_factory=dict)
    is_synced: bool = False
    is_live: bool = False
    absent_why: str = ""
    trouble: str = ""
    heard_at: float | None = None
    lists: int = 0
    errors: Counter[Trouble] = field(default_factory=Counter)


class LiveStore:
    """Takes over lists, events and single reads; `snapshot` is always whole."""

    def __init__(self, clock: Callable[[], float], kinds: Iterable[LiveKind] = KINDS) -> None:
        self.clock = clock
        self._kinds = tuple(kinds)
        self.states = {kind.name: KindState() for kind in self._kinds}
        self.snapshot = FactsSnapshot(number=1)
        self._published: dict[str, ShardedMap[Key, Change]] = {}

    def heard(self, kind: LiveKind) -> None:
        """Note that the API server spoke of a kind: what is known of it is as new as its watch."""
        self.states[kind.name].heard_at = self.clock()

    def read(self, kind: LiveKind, manifest: Mapping[str, Any], into: _Target) -> Key | None:
        """Add an object's fact to what is to be taken over; return its key, None if it cannot even be named.

        A faulty object keeps what it last stated.
        """
        state = self.states[kind.name]
        try:
            key = key_of(kind, manifest)
        except Exception:  # an object may be wrong in any way; that must not end the watch of the others
            state.errors[Trouble.MALFORMED] += 1
            return None
        known = into.get(key, state.objects.get(key))
        if isinstance(known, Gone):
            known = None
        try:
            fact = read_fact(kind, manifest)
        except Exception as error:
            self._note_fault(kind, key, version_of(manifest), _why(error), is_kept=known is not None)
            into[key] = known
            return key
        state.faults.pop(key, None)
        into[key] = known if known is not None and known == fact else fact
        return key

    def read_deleted(self, kind: LiveKind, manifest: Mapping[str, Any], into: dict[Key, Change]) -> None:
        """Add that an object is gone."""
        try:
            into[key_of(kind, manifest)] = GONE
        except Exception:
            self.states[kind.name].errors[Trouble.MALFORMED] += 1

    def _note_fault(self, kind: LiveKind, key: Key, version: str, why: str, *, is_kept: bool) -> None:
        faults = self.states[kind.name].faults
        known = faults.get(key)
        if known is not None and known[0] == version and version:
            return
        where = f"{kind.name} {key if isinstance(key, str) else '/'.join(key)}"
        message = f"{why}; what was last good is kept" if is_kept else why
        if known is None and len(faults) >= _MAX_FAULTS:
            return
        faults[key] = (version, SourceFault(where=where, message=message))
        _log.warning("facts_faulty", where=where, resource_version=version, error=message)

    def begin_list(self, kind: LiveKind) -> Listing:
        """Return what a list of a kind is gathered in."""
        return Listing(self.states[kind.name].objects)

    def read_listed(self, kind: LiveKind, manifest: Mapping[str, Any], listing: Listing) -> None:
        """Add an object of a list."""
        key = self.read(kind, manifest, listing.objects)
        if key is None:
            return
        fact = listing.objects.get(key)
        if key in listing.before and listing.before[key] is fact:
            listing.same += 1
        add_to_group(listing.groups, fact)

    def end_list(self, kind: LiveKind, listing: Listing) -> None:
        """Take over a whole list: what is not in it is gone."""
        objects = listing.objects.build()
        state = self.states[kind.name]
        state.lists += 1
        state.is_synced = True
        state.absent_why = ""
        state.faults = {key: fault for key, fault in state.faults.items() if key in objects}
        state.borrowed.clear()
        state.touched = dict.fromkeys(state.touched, True)
        self.heard(kind)
        is_same = state.objects is listing.before and len(objects) == len(state.objects) == listing.same
        if not is_same:
            state.objects, state.groups = objects, listing.groups.build()
        self._publish(kind)

    def give_up(self, kind: LiveKind, why: str) -> None:
        """Do without an optional kind that may not be read."""
        state = self.states[kind.name]
        state.is_synced = True
        state.absent_why = why

    def apply(self, kind: LiveKind, changes: Mapping[Key, Change]) -> None:
        """Take over events of the watch: for each object, the last."""
        state = self.states[kind.name]
        for key, change in changes.items():
            state.borrowed.pop(key, None)
            if key in state.touched:
                state.touched[key] = True
            if change is GONE:
                state.faults.pop(key, None)
        self._change(kind, changes)

    def begin_read(self, kind: LiveKind, key: Key) -> None:
        """A single read of an object begins: from here on the watch may overtake it."""
        self.states[kind.name].touched[key] = False

    def abandon_read(self, kind: LiveKind, key: Key) -> None:
        """A single read told nothing."""
        self.states[kind.name].touched.pop(key, None)

    def end_read(self, kind: LiveKind, key: Key, found: Mapping[str, Any] | None) -> None:
        """Take over what a single read told, for a while, unless the watch has spoken of the object meanwhile.

        For a while only: if the object is deleted before the watch ever tells of it, nobody else says so. What a read does not
        find is taken for gone as long: a limit that is no more must refuse nobody.
        """
        state = self.states[kind.name]
        is_overtaken = state.touched.pop(key, True)
        told: dict[Key, Change] = {}
        if is_overtaken or (found is None and key not in state.objects):
            return
        if found is None:
            told[key] = GONE
        elif self.read(kind, found, told) != key:
            return
        before: Change = state.objects.get(key, GONE)
        if key in state.borrowed:
            before = state.borrowed[key][1]
        state.borrowed[key] = (self.clock() + _BORROWED_S, before)
        self._change(kind, told)

    def lend(self, kind: LiveKind, items: Iterable[Any]) -> None:
        """Take over, for a while, objects of a list that the watch has not told of yet."""
        state = self.states[kind.name]
        told: dict[Key, Change] = {}
        for item in items:
            if isinstance(item, dict):
                self.read(kind, item, told)
        new = {key: fact for key, fact in told.items() if key not in state.objects and fact is not None}
        until = self.clock() + _BORROWED_S
        state.borrowed.update(dict.fromkeys(new, (until, GONE)))
        self._change(kind, new)

    def return_borrowed(self) -> None:
        """Give up what single reads told some time ago."""
        now = self.clock()
        for kind in self._kinds:
            state = self.states[kind.name]
            over = {key: before for key, (until, before) in state.borrowed.items() if until <= now}
            for key in over:
                del state.borrowed[key]
            self._change(kind, over)

    def is_without_fact(self, kind: LiveKind, key: Key) -> bool:
        """Say whether an object is known to be there and to state nothing: no reason to look again."""
        state = self.states[kind.name]
        return key in state.objects and state.objects[key] is None and key not in state.faults

    def _change(self, kind: LiveKind, changes: Mapping[Key, Change]) -> None:
        state = self.states[kind.name]
        real = {key: change for key, change in changes.items() if _differs(state.objects, key, change)}
        if real:
            state.groups = changed_groups(state.groups, state.objects, real)
            state.objects = state.objects.changed(real)
        self._publish(kind)

    def _publish(self, kind: LiveKind) -> None:
        """Make a new snapshot if anything of this kind differs."""
        objects = self.states[kind.name].objects
        now = last = self.snapshot
        faults = self._faults()
        if faults != last.source_faults:
            now = replace(now, source_faults=faults)
        if self._published.get(kind.name) is not objects:
            self._published[kind.name] = objects
            now = self._with_kind(now, kind)
        if now is not last:
            self.snapshot = replace(now, number=last.number + 1)

    def _faults(self) -> tuple[SourceFault, ...]:
        found = [fault for kind in self._kinds for _, fault in self.states[kind.name].faults.values()]
        return tuple(found[:_MAX_FAULTS])

    def _with_kind(self, snapshot: FactsSnapshot, kind: LiveKind) -> FactsSnapshot:
        objects: Any = self.states[kind.name].objects
        groups: Any = self.states[kind.name].groups
        match kind.name:
            case FUSE_DRIVER_CLASS.name:
                known = {name: fact for name, fact in sorted(objects.items()) if fact is not None}
                return replace(snapshot, classes=MappingProxyType(known))
            case NAMESPACE.name:
                return replace(snapshot, namespaces=objects)
            case PERSISTENT_VOLUME.name:
                return replace(snapshot, volumes=objects, handles=groups)
            case CLAIM.name:
                return replace(snapshot, claims=objects)
            case STORAGE_CLASS.name:
                return replace(snapshot, storage_classes=objects)
            case LIMIT_RANGE.name:
                return replace(snapshot, ranges=groups)
            case RESOURCE_QUOTA.name:
                return replace(snapshot, quota_facts=groups)
            case CSI_DRIVER_KIND.name | NODE.name:
                cluster = cluster_of(
                    self.states[CSI_DRIVER_KIND.name].objects.values(),
                    self.states[NODE.name].objects.values(),
                )
                same = cluster == snapshot.cluster_facts
                return snapshot if same else replace(snapshot, cluster_facts=cluster)
        return snapshot


def _differs(objects: ShardedMap[Key, Change], key: Key, change: Change) -> bool:
    if change is GONE:
        return key in objects
    return key not in objects or objects[key] != change


def _why(error: Exception) -> str:
    return (
        str(error) if isinstance(error, VolumeError) else f"it cannot be understood ({type(error).__name__})"
    )
