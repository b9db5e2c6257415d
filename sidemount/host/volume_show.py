"""Showing a volume: the parent's part. The child looks, the keeper attaches, so a late child can never attach anything."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from sidemount.host.jobs import Job, Jobs, Message, Outcome, Work
from sidemount.host.mount_table import mount_by_id, mount_id_of, read_mount_table
from sidemount.host.volume_places import NewMount, Place, VolumePlaces
from sidemount.host.volume_work import show_work
from sidemount.model.errors import HostFailure
from sidemount.model.mountinfo import Mount

_KIND = "show"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowEvents:
    """What the volume's keeper wants to hear. `anchored` tells the entry of the volume's own mount."""

    anchored: Callable[[Mount], None]
    done: Callable[[Outcome], None]


@dataclass(slots=True)
class _Show:
    places: VolumePlaces
    new: NewMount | None
    missing: tuple[Place, ...]
    root: int
    clones: dict[int, int] = field(default_factory=dict)
    faults: list[Outcome] = field(default_factory=list)

    def close(self) -> None:
        if self.new is not None and self.places.client:
            self.new.release_mount()  # a connection's own is the keeper's to give up
        for descriptor in (self.root, *self.clones.values()):
            os.close(descriptor)
        self.clones.clear()


def show(
    jobs: Jobs,
    places: VolumePlaces,
    new: NewMount | None,
    volume: str,
    deadline_s: float,
    events: ShowEvents,
) -> bool:
    """Start to show the volume and every view that is missing; False if that is being done or stuck.

    A mount that is attached nowhere, `new` or a copy of what a client has mounted by itself, is attached first; otherwise the
    mount at the volume's place is what the views are made from. Raises HostFailure.
    """
    jobs.reap()
    if jobs.is_busy(_KIND):
        return False
    state = _opened(places, new)

    def on_message(message: Message, descriptor: int | None, job: Job) -> None:
        try:
            _proceed(state, message, descriptor, job, events)
        except HostFailure as error:
            job.fail(str(error), error.errno)

    work = Work(
        run=show_work(state.root, state.missing, places.all_paths, volume),
        on_message=on_message,
        on_end=events.done,
        clean_up=state.close,
        deadline_s=deadline_s,
        keep=(state.root,),
    )
    return jobs.start(_KIND, work) is not None


def cancel_show(jobs: Jobs) -> None:
    """Stop showing it."""
    jobs.cancel(_KIND)


def _opened(places: VolumePlaces, new: NewMount | None) -> _Show:
    if new is not None and new.mount >= 0:
        return _Show(places, new, places.views, os.dup(new.mount))
    if places.client and not places.shows_client():
        clone = places.clone_of_client()
        try:
            return _Show(places, clone, places.views, os.dup(clone.mount))
        except OSError:
            clone.release_mount()
            raise
    root = places.open_shown()
    anchor = mount_by_id(read_mount_table(), mount_id_of(root))
    missing = places.views if anchor is None else places.missing_views(anchor)
    return _Show(places, None, missing, root)


def _proceed(state: _Show, message: Message, descriptor: int | None, job: Job, events: ShowEvents) -> None:
    if "live" in message:
        if state.new is not None:
            anchor = state.places.attach_anchor(state.new)
            state.new.release_mount()
            events.anchored(anchor)
        job.go_on()
    elif "view" in message:
        if descriptor is not None:
            state.clones[message["view"]] = descriptor
        else:
            state.faults.append(Outcome(fault=message["fault"], errno=message["errno"]))
    elif "prepared" in message:
        for number, clone in list(state.clones.items()):
            state.places.attach_view(state.missing[number], clone)
            os.close(state.clones.pop(number))
        if state.faults:
            job.fail("; ".join(fault.fault for fault in state.faults), state.faults[0].errno)
        else:
            job.go_on()
