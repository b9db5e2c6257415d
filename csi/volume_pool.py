"""A pool that is a directory: `volume_store.VolumeStore` on any filesystem that every node and the controller see.

Everything is made in the pool's directory of unfinished things, put on the disk, and renamed to where it is seen. What is deleted
is renamed back there first. Source: rename(2).
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from csi.faults import BeyondRange, NotFound, WrongState
from csi.provision_plan import VolumePlan, check_content_fits
from csi.provision_request import CapacityRange, SnapshotRequest
from csi.volume_copy import filesystem_clock, sync_filesystem
from csi.volume_cut import COPIED, Cut, copy_snapshot, cut_volume
from csi.volume_files import sync_directory, told_of, write_text
from csi.volume_intents import (
    GONE,
    INTENT,
    decode_plan,
    encode_plan,
    read_intent,
    unfinished_kind,
    unfinished_name,
)
from csi.volume_locks import locked
from csi.volume_records import Records, directory_of, place_of, record_name
from csi.volume_state import (
    Content,
    Kind,
    SnapshotState,
    VolumeState,
    decode_snapshot,
    decode_volume,
    encode_snapshot,
    encode_volume,
)
from csi.volume_tree import Stop, check_no_mounts, make_directories, opened_root, remove_tree
from sidemount.host import budget
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure, NotReady, OperationPending, VolumeError, shown
from sidemount.model.pool_layout import UNFINISHED, data_dir, unfinished_dir

T = TypeVar("T")
Observe = Callable[[str], None]
_LOCKS = "locks"  # in the directory of unfinished things
_PRIVATE = 0o700
_PLACE_MODE = 0o711
_TELL_EACH = 10_000


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A directory in which something is made."""

    path: str

    @property
    def data(self) -> str:
        return data_dir(self.path)


class DirectoryPool:
    """One pool. Safe in several threads and processes: each thing has a lock, which dies with whoever holds it."""

    def __init__(self, path: str, observe: Observe = lambda point: None) -> None:
        """`observe` hears of every step before and after it is done: where a crash may happen."""
        self._path = path
        self._observe = observe
        self._stop = Stop()
        self._volumes: Records[VolumeState] = Records(path, Kind.VOLUME, decode_volume)
        self._snapshots: Records[SnapshotState] = Records(path, Kind.SNAPSHOT, decode_snapshot)

    @property
    def name(self) -> str:
        """Return the directory."""
        return self._path

    def stop(self) -> None:
        """Have copies and removals end at their next file."""
        self._stop.set()

    # Looking -----------------------------------------------------------------------------------------

    def volume(self, id_: str) -> VolumeState | None:
        """Return a volume."""
        with self._told():
            return self._volumes.read(id_)

    def snapshot(self, id_: str) -> SnapshotState | None:
        """Return a snapshot."""
        with self._told():
            return self._snapshots.read(id_)

    def ids(self, kind: Kind) -> Sequence[str]:
        """Return the ids of what may be there."""
        with self._told():
            return (self._volumes if kind is Kind.VOLUME else self._snapshots).ids()

    def available_bytes(self) -> int:
        """Return how much an unprivileged user could write."""
        with self._told():
            found = os.statvfs(self._path)
            return found.f_bavail * found.f_frsize

    # Making ------------------------------------------------------------------------------------------

    def make_volume(self, plan: VolumePlan) -> VolumeState:
        """Make a volume, or return the one that is there."""
        with self._told(), self._owned(Kind.VOLUME, plan.id):
            found = self._volumes.read(plan.id)
            if found is not None:
                return found
            with self._kept(plan.content, plan.source_pool):
                return self._making(Kind.VOLUME, plan.id, lambda: self._make_volume(plan))

    def make_snapshot(self, request: SnapshotRequest) -> SnapshotState:
        """Cut a volume, or return the snapshot that is there."""
        source = Content(kind=Kind.VOLUME, id=request.source_volume_id)
        with self._told(), self._owned(Kind.SNAPSHOT, request.id) as lock:
            found = self._snapshots.read(request.id)
            if found is not None:
                return found
            with self._kept(source, self._path):
                return self._making(
                    Kind.SNAPSHOT, request.id, lambda: self._make_snapshot(request, filesystem_clock(lock))
                )

    def _make_volume(self, plan: VolumePlan) -> VolumeState:
        self._check_room(plan)
        made = self._begin(Kind.VOLUME, plan.id, encode_plan(plan), resume=plan.content is not None)
        cut: Cut | None = None
        if plan.content is None:
            self._do("data", lambda: make_directories_at(made.path, "data", plan.mode))
        else:
            cut = self._copy_content(plan.content, plan.source_pool, made)
            check_content_fits(plan.content, cut.size_bytes, plan.capacity_bytes)
        if plan.sub_path:
            self._do("sub_path", lambda: make_directories_at(made.data, plan.sub_path, plan.mode))
        used = 0 if cut is None else cut.size_bytes
        self._do("budget", lambda: budget.create(made.path, plan.limit_bytes, used))
        state = plan.state(time.time_ns())
        self._appear(Kind.VOLUME, plan.id, made, encode_volume(state))
        return state

    def _check_room(self, plan: VolumePlan) -> None:
        """See early that a clone will fit. What its source holds is known for sure when it is cut."""
        content = plan.content
        if content is not None and content.kind is Kind.VOLUME:
            held = budget.read(directory_of(plan.source_pool, Kind.VOLUME, content.id))
            check_content_fits(content, held.used if held.limit else 0, plan.capacity_bytes)

    def _make_snapshot(self, request: SnapshotRequest, clock: Callable[[], int]) -> SnapshotState:
        state = SnapshotState(
            id=request.id, name=request.name, pool=self._path, source_volume_id=request.source_volume_id
        )
        made = self._begin(Kind.SNAPSHOT, request.id, encode_snapshot(state), resume=True)
        self._do("data", lambda: make_directories_at(made.path, "data", _PRIVATE))
        volume = directory_of(self._path, Kind.VOLUME, request.source_volume_id)
        cut = self._do("cut", lambda: cut_volume(volume, made.path, clock, self._stop, self._observe))
        state = replace(state, size_bytes=cut.size_bytes, created_ns=cut.cut_ns)
        self._appear(Kind.SNAPSHOT, request.id, made, encode_snapshot(state))
        return state

    def _copy_content(self, content: Content, source_pool: str, made: _Unfinished) -> Cut:
        source = directory_of(source_pool, content.kind, content.id)
        self._do("data", lambda: make_directories_at(made.path, "data", _PRIVATE))
        if content.kind is Kind.SNAPSHOT:
            return self._do("copy", lambda: copy_snapshot(source, made.path, self._stop, self._observe))
        # Straight from the volume, under the same hold as a snapshot: there is no snapshot in between that a crash could leave.
        with locked(_lock_file(source_pool)) as lock:
            clock = filesystem_clock(lock)
            return self._do("cut", lambda: cut_volume(source, made.path, clock, self._stop, self._observe))

    def _begin(self, kind: Kind, id_: str, intent: str, *, resume: bool) -> _Unfinished:
        """Return the directory to make it in. One that an earlier attempt left is gone on with, if it was to be the same."""
        place = unfinished_dir(self._path, unfinished_name(kind, id_))
        if os.path.lexists(place) and not (resume and read_intent(place) == intent):
            self._do("aside", lambda: self._throw_away(kind, id_, place))
        self._do("unfinished", lambda: os.makedirs(place, mode=_PRIVATE, exist_ok=True))
        self._do("intent", lambda: write_text(f"{place}/{INTENT}", intent))
        return _Unfinished(place)

    def _appear(self, kind: Kind, id_: str, made: _Unfinished, record: str) -> None:
        """Have what is made be seen, whole, and put on the disk before."""
        self._do("record", lambda: write_text(f"{made.path}/{record_name(kind)}", record))
        self._do("sync", lambda: _sync_all(made.path))
        self._do("tidy", lambda: _unlink(f"{made.path}/{COPIED}", f"{made.path}/{INTENT}"))
        self._do("rename", lambda: os.rename(made.path, directory_of(self._path, kind, id_)))
        self._do("sync_place", lambda: sync_directory(place_of(self._path, kind)))
        log("csi.pool").info("made", kind=kind.value, id=id_, pool=self._path)

    def _making(self, kind: Kind, id_: str, make: Callable[[], T]) -> T:
        """Make something; what fails for good leaves nothing, what may be continued is left to be."""
        try:
            return make()
        except (NotReady, OperationPending):
            raise
        except (VolumeError, OSError):
            place = unfinished_dir(self._path, unfinished_name(kind, id_))
            with contextlib.suppress(OSError, VolumeError):
                if os.path.lexists(place):
                    self._empty(self._throw_away(kind, id_, place))
            raise

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
                self._do("raise", lambda: budget.raise_limit(directory, state.capacity_bytes))
            if state != found:
                self._do(
                    "record",
                    lambda: write_text(f"{directory}/{record_name(Kind.VOLUME)}", encode_volume(state)),
                )
            return state

    def remove(self, kind: Kind, id_: str) -> None:
        """Take it away; `settle` removes what it holds."""
        with self._told(), self._owned(kind, id_):
            records = self._volumes if kind is Kind.VOLUME else self._snapshots
            if records.read(id_) is not None:
                directory = directory_of(self._path, kind, id_)
                check_no_mounts(directory)
                if kind is Kind.VOLUME:
                    _check_unused(directory, id_)
                self._do("gone", lambda: self._throw_away(kind, id_, directory))
                log("csi.pool").info("gone", kind=kind.value, id=id_, pool=self._path)
            place = unfinished_dir(self._path, unfinished_name(kind, id_))
            if os.path.lexists(place):
                self._do("aside", lambda: self._throw_away(kind, id_, place))

    def _throw_away(self, kind: Kind, id_: str, directory: str) -> str:
        """Rename something to where only `settle` looks, and return its name."""
        name = f"{GONE}-{kind.value}-{id_}-{secrets.token_hex(4)}"
        os.rename(directory, unfinished_dir(self._path, name))
        sync_directory(os.path.dirname(directory))
        return name

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
                    with locked(_lock_file(self._path), own=name, wait_s=0):
                        self._empty(name)
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
                self._empty(self._throw_away(kind, id_, place))

    def _empty(self, name: str) -> None:
        place = unfinished_dir(self._path, "").rstrip("/")
        self._observe("before empty")
        with opened_root(place) as directory:
            remove_tree(directory, name, self._stop, lambda removed: _tell_removed(name, removed))
        self._observe("after empty")

    # Around ------------------------------------------------------------------------------------------

    def _do(self, step: str, work: Callable[[], T]) -> T:
        self._observe(f"before {step}")
        done = work()
        self._observe(f"after {step}")
        return done

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        with told_of(self._path):
            if not os.path.isdir(self._path):
                raise NotReady(f"pool {self._path} is not there", hint="mount it")
            yield

    @contextlib.contextmanager
    def _owned(self, kind: Kind, id_: str, wait_s: float = 2.0) -> Iterator[int]:
        for place in (place_of(self._path, Kind.VOLUME), place_of(self._path, Kind.SNAPSHOT)):
            os.makedirs(place, mode=_PLACE_MODE, exist_ok=True)
        os.makedirs(f"{self._path}/{UNFINISHED}", mode=_PRIVATE, exist_ok=True)
        with locked(_lock_file(self._path), own=f"{kind.value} {id_}", wait_s=wait_s) as lock:
            yield lock

    @contextlib.contextmanager
    def _kept(self, content: Content | None, pool: str) -> Iterator[None]:
        """Have what something is made from stay; see that it is there."""
        if content is None:
            yield
            return
        with locked(_lock_file(pool), shared=f"{content.kind.value} {content.id}"):
            record = f"{directory_of(pool, content.kind, content.id)}/{record_name(content.kind)}"
            if not os.path.lexists(record):
                raise NotFound(f"there is no {content.kind.value} {shown(content.id)}")
            yield


def make_directories_at(directory: str, path: str, mode: int) -> None:
    """Make a directory beneath one that is ours. What is there already remains as it is. Raises WrongState, HostFailure."""
    with opened_root(directory) as root:
        make_directories(root, path, mode)


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


def _lock_file(pool: str) -> str:
    return f"{pool}/{UNFINISHED}/{_LOCKS}"


def _unlink(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _sync_all(directory: str) -> None:
    with opened_root(directory) as descriptor:
        sync_filesystem(descriptor)


def _tell_removed(name: str, removed: int) -> None:
    if removed % _TELL_EACH == 0:
        log("csi.pool").info("removing", unfinished=name, removed=removed)
