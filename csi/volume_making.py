"""Making volumes and snapshots: aside, step by step, put on the disk, and renamed to where they are seen; and the way back.

Whoever calls holds the lock of what is made or thrown away. Source: rename(2).
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from csi.provision_plan import VolumePlan, check_content_fits
from csi.provision_request import SnapshotRequest
from csi.volume_copy import Progress, filesystem_clock, sync_filesystem
from csi.volume_cut import COPIED, Cut, copy_snapshot, cut_volume
from csi.volume_files import sync_directory, told_of, write_text
from csi.volume_intents import GONE, INTENT, encode_plan, read_intent, unfinished_name
from csi.volume_locks import locked
from csi.volume_records import directory_of, lock_file, place_of, record_name
from csi.volume_state import Content, Kind, SnapshotState, VolumeState, encode_snapshot, encode_volume
from csi.volume_tree import Stop, make_directories, opened_root, remove_tree
from sidemount.host import budget
from sidemount.host.logs import log
from sidemount.model.errors import NotReady, OperationPending, VolumeError
from sidemount.model.pool_layout import UNFINISHED, data_dir, unfinished_dir

T = TypeVar("T")
Observe = Callable[[str], None]
_PRIVATE = 0o700
_TELL_EACH = 10_000


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A directory in which something is made."""

    path: str

    @property
    def data(self) -> str:
        return data_dir(self.path)


class Making:
    """What happens in one pool's directory of unfinished things."""

    def __init__(self, path: str, observe: Observe) -> None:
        """`observe` hears of every step before and after it is done."""
        self._path = path
        self._observe = observe
        self.stop = Stop()
        self.progress = Progress()

    def make_volume(self, plan: VolumePlan) -> VolumeState:
        """Make a volume that is not there. Raises VolumeError, OSError."""
        return self._cleared_up(Kind.VOLUME, plan.id, lambda: self._make_volume(plan))

    def make_snapshot(self, request: SnapshotRequest, clock: Callable[[], int]) -> SnapshotState:
        """Make a snapshot that is not there; `clock` is the pool's. Raises VolumeError, OSError."""
        return self._cleared_up(Kind.SNAPSHOT, request.id, lambda: self._make_snapshot(request, clock))

    def do(self, step: str, work: Callable[[], T]) -> T:
        """Carry out one step. A crash may happen before it and after it."""
        self._observe(f"before {step}")
        done = work()
        self._observe(f"after {step}")
        return done

    def throw_away(self, kind: Kind, id_: str, directory: str) -> str:
        """Rename something to where only `settle` looks, and return its name."""
        name = f"{GONE}-{kind.value}-{id_}-{secrets.token_hex(4)}"
        os.rename(directory, unfinished_dir(self._path, name))
        sync_directory(os.path.dirname(directory))
        return name

    def empty(self, name: str) -> None:
        """Remove what was thrown away. Raises HostFailure, NotReady."""
        place = f"{self._path}/{UNFINISHED}"
        self._observe("before empty")
        with opened_root(place) as directory:
            remove_tree(directory, name, self.stop, lambda removed: _tell_removed(name, removed))
        self._observe("after empty")

    def _cleared_up(self, kind: Kind, id_: str, make: Callable[[], T]) -> T:
        """Make something; what fails for good leaves nothing, what may be continued is left to be."""
        try:
            with told_of(self._path):  # so that what may be well soon is told from what will not
                return make()
        except (NotReady, OperationPending):
            raise
        except VolumeError:
            place = unfinished_dir(self._path, unfinished_name(kind, id_))
            with contextlib.suppress(OSError, VolumeError):
                if os.path.lexists(place):
                    self.empty(self.throw_away(kind, id_, place))
            raise

    def _make_volume(self, plan: VolumePlan) -> VolumeState:
        self._check_room(plan)
        made = self._begin(Kind.VOLUME, plan.id, encode_plan(plan), resume=plan.content is not None)
        cut: Cut | None = None
        if plan.content is None:
            self.do("data", lambda: make_directories_at(made.path, "data", plan.mode))
        else:
            cut = self._copy_content(plan.content, plan.source_pool, made)
            check_content_fits(plan.content, cut.size_bytes, plan.capacity_bytes)
        if plan.sub_path:
            self.do("sub_path", lambda: make_directories_at(made.data, plan.sub_path, plan.mode))
        used = 0 if cut is None else cut.size_bytes
        self.do("budget", lambda: budget.create(made.path, plan.limit_bytes, used))
        state = plan.state(time.time_ns())
        self._appear(Kind.VOLUME, plan.id, made, encode_volume(state))
        return state

    def _make_snapshot(self, request: SnapshotRequest, clock: Callable[[], int]) -> SnapshotState:
        state = SnapshotState(
            id=request.id, name=request.name, pool=self._path, source_volume_id=request.source_volume_id
        )
        made = self._begin(Kind.SNAPSHOT, request.id, encode_snapshot(state), resume=True)
        self.do("data", lambda: make_directories_at(made.path, "data", _PRIVATE))
        volume = directory_of(self._path, Kind.VOLUME, request.source_volume_id)
        cut = self.do(
            "cut", lambda: cut_volume(volume, made.path, clock, self.stop, self._observe, self.progress)
        )
        state = replace(state, size_bytes=cut.size_bytes, created_ns=cut.cut_ns)
        self._appear(Kind.SNAPSHOT, request.id, made, encode_snapshot(state))
        return state

    def _check_room(self, plan: VolumePlan) -> None:
        """See early that a clone will fit. What its source holds is known for sure when it is cut."""
        content = plan.content
        if content is not None and content.kind is Kind.VOLUME:
            held = budget.read(directory_of(plan.source_pool, Kind.VOLUME, content.id))
            check_content_fits(content, held.used if held.limit else 0, plan.capacity_bytes)

    def _copy_content(self, content: Content, source_pool: str, made: _Unfinished) -> Cut:
        source = directory_of(source_pool, content.kind, content.id)
        self.do("data", lambda: make_directories_at(made.path, "data", _PRIVATE))
        if content.kind is Kind.SNAPSHOT:
            return self.do(
                "copy", lambda: copy_snapshot(source, made.path, self.stop, self._observe, self.progress)
            )
        # Straight from the volume, under the same hold as a snapshot: there is no snapshot in between that a crash could leave.
        with locked(lock_file(source_pool)) as lock:
            clock = filesystem_clock(lock)
            return self.do(
                "cut", lambda: cut_volume(source, made.path, clock, self.stop, self._observe, self.progress)
            )

    def _begin(self, kind: Kind, id_: str, intent: str, *, resume: bool) -> _Unfinished:
        """Return the directory to make it in. One that an earlier attempt left is gone on with, if it was to be the same."""
        place = unfinished_dir(self._path, unfinished_name(kind, id_))
        if os.path.lexists(place) and not (resume and read_intent(place) == intent):
            self.do("aside", lambda: self.throw_away(kind, id_, place))
        self.do("unfinished", lambda: os.makedirs(place, mode=_PRIVATE, exist_ok=True))
        self.do("intent", lambda: write_text(f"{place}/{INTENT}", intent))
        return _Unfinished(place)

    def _appear(self, kind: Kind, id_: str, made: _Unfinished, record: str) -> None:
        """Have what is made be seen, whole, and put on the disk before."""
        self.do("record", lambda: write_text(f"{made.path}/{record_name(kind)}", record))
        self.do("sync", lambda: _sync_all(made.path))
        self.do("tidy", lambda: _unlink(f"{made.path}/{COPIED}", f"{made.path}/{INTENT}"))
        self.do("rename", lambda: os.rename(made.path, directory_of(self._path, kind, id_)))
        self.do("sync_place", lambda: sync_directory(place_of(self._path, kind)))
        log("csi.pool").info("made", kind=kind.value, id=id_, pool=self._path)


def make_directories_at(directory: str, path: str, mode: int) -> None:
    """Make a directory beneath one that is ours. What is there already remains as it is. Raises WrongState, HostFailure."""
    with opened_root(directory) as root:
        make_directories(root, path, mode)


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
