"""A pool that is a directory: `volume_store.VolumeStore` on any filesystem that every node and the controller see.

Everything is made in the pool's directory of unfinished things, put on the disk, and renamed to where it is seen. What is deleted
is renamed back there first. Source: rename(2).
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from csi.faults import BeyondRange, NotFound, WrongState
from csi.hidden_texts import HiddenTexts
from csi.pool_identity import PoolIdentity
from csi.provision_plan import VolumePlan
from csi.provision_request import CapacityRange, SnapshotRequest
from csi.volume_copy import Progress, filesystem_clock
from csi.volume_files import told_of, write_text
from csi.volume_intents import (
    GONE,
    decode_plan,
    read_intent,
    unfinished_kind,
    unfinished_name,
)
from csi.volume_locks import locked
from csi.volume_making import Making, Observe
from csi.volume_records import Records, directory_of, lock_file, place_of, record_name
from csi.volume_state import (
    Content,
    Kind,
    SnapshotState,
    VolumeState,
    decode_snapshot,
    decode_volume,
    encode_volume,
)
from csi.volume_tree import check_no_mounts
from sidemount.host import budget
from sidemount.host.logs import log
from sidemount.model.errors import BadMessage, HostFailure, NotReady, OperationPending, shown
from sidemount.model.pool_layout import UNFINISHED, unfinished_dir

_PRIVATE = 0o700
_PLACE_MODE = 0o711


class DirectoryPool:
    """One pool. Safe in several threads and processes: each thing has a lock, which dies with whoever holds it."""

    has_copies = True

    def __init__(
        self,
        path: str,
        observe: Observe = lambda point: None,
        identity: PoolIdentity | None = None,
    ) -> None:
        """`observe` hears of every step before and after it is done: where a crash may happen."""
        self._path = path
        self._identity = identity or PoolIdentity(path)
        self._making = Making(path, observe)
        self._volumes: Records[VolumeState] = Records(path, Kind.VOLUME, decode_volume)
        self._snapshots: Records[SnapshotState] = Records(path, Kind.SNAPSHOT, decode_snapshot)

    @property
    def name(self) -> str:
        """Return the directory."""
        return self._path

    @property
    def progress(self) -> Progress:
        """Return what was copied into it."""
        return self._making.progress

    def bound(self, secrets: HiddenTexts) -> "DirectoryPool":
        """Return itself: a directory needs no credentials."""
        return self

    def stop(self) -> None:
        """Have copies and removals end at their next file."""
        self._making.stop.set()

    # Looking -----------------------------------------------------------------------------------------

    def volume(self, id_: str) -> VolumeState | None:
        """Return a volume."""
        with self._told():
            return self._volumes.read(id_)

    def named(self, name_id: str) -> VolumeState | None:
        """Return the volume of a name: that is its id."""
        return self.volume(name_id)

    def snapshot(self, id_: str) -> SnapshotState | None:
        """Return a snapshot."""
        with self._told():
            return self._snapshots.read(id_)

    def ids(self, kind: Kind) -> Sequence[str]:
        """Return the ids of what may be there."""
        with self._told():
            return (self._volumes if kind is Kind.VOLUME else self._snapshots).ids()

    def states(self, kind: Kind, ids: Sequence[str]) -> "dict[str, VolumeState | SnapshotState]":
        """Return what is there of some ids."""
        found: dict[str, VolumeState | SnapshotState] = {}
        for id_ in ids:
            try:
                state = self.volume(id_) if kind is Kind.VOLUME else self.snapshot(id_)
            except BadMessage as error:
                log("csi.controller").error("record_unreadable", kind=kind.value, id=id_, fault=str(error))
                continue
            if state is not None:
                found[id_] = state
        return found

    def available_bytes(self) -> int:
        """Return how much an unprivileged user could write."""
        with self._told():
            found = os.statvfs(self._path)
            return found.f_bavail * found.f_frsize

    def size_bytes(self) -> int:
        """Return how large the filesystem is."""
        with self._told():
            found = os.statvfs(self._path)
            return found.f_blocks * found.f_frsize

    # Making ------------------------------------------------------------------------------------------

    def make_volume(self, plan: VolumePlan) -> VolumeState:
        """Make a volume, or return the one that is there."""
        with self._told(), self._owned(Kind.VOLUME, plan.id):
            found = self._volumes.read(plan.id)
            if found is not None:
                return found
            with self._kept(plan.content, plan.source_pool):
                return self._making.make_volume(plan)

    def make_snapshot(self, request: SnapshotRequest) -> SnapshotState:
        """Cut a volume, or return the snapshot that is there."""
        source = Content(kind=Kind.VOLUME, id=request.source_volume_id)
        with self._told(), self._owned(Kind.SNAPSHOT, request.id) as lock:
            found = self._snapshots.read(request.id)
            if found is not None:
                return found
            with self._kept(source, self._path):
                return self._making.make_snapshot(request, filesystem_clock(lock))

    # Changing and removing ---------------------------------------------------------------------------

    def expand(self, id_: str, capacity: CapacityRange) -> VolumeState:
        """Raise the limit first: a crash in between promises nothing that does not hold, and the retry finds it done."""
        with self._told(), self._owned(Kind.VOLUME, id_):
            found = self._volumes.read(id_)
            if found is None:
                raise NotFound(f"there is no volume {shown(id_)}")
            if capacity.limit_bytes and found.capacity_bytes > capacity.limit_bytes:
                raise BeyondRange(
                    f"volume {shown(id_)} has {found.capacity_bytes} bytes already, more than limit_bytes "
                    f"{capacity.limit_bytes}; a volume is never made smaller"
                )
            state = replace(found, capacity_bytes=max(found.capacity_bytes, capacity.wanted_bytes))
            directory = directory_of(self._path, Kind.VOLUME, id_)
            if found.limit_bytes:
                self._making.do("raise", lambda: budget.raise_limit(directory, state.capacity_bytes))
            if state != found:
                self._making.do(
                    "record",
                    lambda: write_text(f"{directory}/{record_name(Kind.VOLUME)}", encode_volume(state)),
                )
            return state

    def remove(self, kind: Kind, id_: str) -> bool:
        """Take it away; `settle` removes what it holds."""
        with self._told(), self._owned(kind, id_):
            records = self._volumes if kind is Kind.VOLUME else self._snapshots
            is_there = records.read(id_) is not None
            if is_there:
                directory = directory_of(self._path, kind, id_)
                check_no_mounts(directory)
                if kind is Kind.VOLUME:
                    _check_unused(directory, id_)
                self._making.do("gone", lambda: self._making.throw_away(kind, id_, directory))
                log("csi.pool").info("gone", kind=kind.value, id=id_, pool=self._path)
            place = unfinished_dir(self._path, unfinished_name(kind, id_))
            is_unfinished = os.path.lexists(place)
            if is_unfinished:
                self._making.do("aside", lambda: self._making.throw_away(kind, id_, place))
            return is_there or is_unfinished

    # What is left ------------------------------------------------------------------------------------

    def unfinished(self) -> Sequence[str]:
        """Return what is on its way in or out. Names that are none of ours are nobody's business."""
        with self._told():
            try:
                names = os.listdir(f"{self._path}/{UNFINISHED}")
            except FileNotFoundError:
                return []
            return sorted(name for name in names if name.startswith(f"{GONE}-") or unfinished_kind(name))

    def settle(self, name: str) -> None:
        """Remove what is gone; make what was to be a copy; remove what was to be empty, which is made again at once if asked for."""
        with self._told():
            try:
                if name.startswith(f"{GONE}-"):
                    with locked(lock_file(self._path), own=name, wait_s=0):
                        self._making.empty(name)
                else:
                    self._resume(name)
            except OperationPending:
                log("csi.pool").info("left_to_another", unfinished=name, pool=self._path)

    def _resume(self, name: str) -> None:
        found = unfinished_kind(name)
        if found is None:
            return
        kind, id_ = found
        intent = read_intent(unfinished_dir(self._path, name))
        plan = decode_plan(intent, self._path) if intent and kind is Kind.VOLUME else None
        if plan is not None and plan.content is not None:
            self.make_volume(plan)
        elif intent and kind is Kind.SNAPSHOT:
            asked = decode_snapshot(intent, self._path)
            self.make_snapshot(
                SnapshotRequest(id=asked.id, name=asked.name, source_volume_id=asked.source_volume_id)
            )
        with self._owned(kind, id_, wait_s=0):
            place = unfinished_dir(self._path, name)
            if os.path.lexists(place):
                self._making.empty(self._making.throw_away(kind, id_, place))

    # Around ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        with told_of(self._path):
            if not os.path.isdir(self._path):
                raise NotReady(f"pool {self._path} is not there", hint="mount it")
            self._identity.check()
            try:
                yield
            finally:
                # What was not found, or was made, may have been so in the directory beneath a pool that went away meanwhile.
                self._identity.check()

    @contextlib.contextmanager
    def _owned(self, kind: Kind, id_: str, wait_s: float = 2.0) -> Iterator[int]:
        for place in (place_of(self._path, Kind.VOLUME), place_of(self._path, Kind.SNAPSHOT)):
            os.makedirs(place, mode=_PLACE_MODE, exist_ok=True)
        os.makedirs(f"{self._path}/{UNFINISHED}", mode=_PRIVATE, exist_ok=True)
        with locked(lock_file(self._path), own=f"{kind.value} {id_}", wait_s=wait_s) as lock:
            yield lock

    @contextlib.contextmanager
    def _kept(self, content: Content | None, pool: str) -> Iterator[None]:
        """Have what something is made from stay; see that it is there."""
        if content is None:
            yield
            return
        with locked(lock_file(pool), shared=f"{content.kind.value} {content.id}"):
            record = f"{directory_of(pool, content.kind, content.id)}/{record_name(content.kind)}"
            if not os.path.lexists(record):
                raise NotFound(f"there is no {content.kind.value} {shown(content.id)}")
            yield


def _check_unused(volume: str, id_: str) -> None:
    """See that nobody writes to a volume. Raises WrongState."""
    try:
        is_used = budget.is_mounted(volume)
    except HostFailure as error:
        if error.errno != errno.ENOENT:
            raise
        return
    if is_used:
        raise WrongState(f"volume {shown(id_)} is mounted", hint="unpublish it on every node first")
