"""One volume of the node's keeper: the sidecar's own, at a target, and what is told of it. Standard library only."""

import contextlib
import errno
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sidemount.host.disposable import Reporter
from sidemount.host.jobs import Job, Message, Outcome, Work
from sidemount.host.session import Event, Phase
from sidemount.host.volume_interruptions import Interrupted
from sidemount.host.volume_keeper import VolumeKeeper
from sidemount.host.volume_places import VolumePlaces
from sidemount.host.volume_state import Surroundings
from sidemount.model.errors import HostFailure
from sidemount.model.mountspec import KeeperMount, MountSpec, View
from sidemount.model.names import view_name
from sidemount.model.object_numbers import Report

_STATISTICS = "statistics"
# A daemon's first process runs no filesystem, and says that it lives once a second.
_SILENT_S = 6.0
_UNSEEN_S = 1.0
_LOOK_AGAIN_S = 0.5
_CHILD_ENDS_S = 1.0
_CHILD_LOOK_S = 0.002

# Phase, fault, abnormal, hung, generation, lacks; how often it was interrupted, and the last time.
Status = tuple[str, str, str, str, int, str, Interrupted]
Answered = Callable[[Outcome, dict[str, int] | None], None]


class KeptVolume(VolumeKeeper):
    """A volume at its target. Tells `changed` whenever its status has, and `counted` what its daemon counts."""

    numbers_every_s = 0.0

    def __init__(
        self,
        spec: MountSpec,
        places: VolumePlaces,
        run_dir: str,
        source: str,
        around: Surroundings,
        finished: Callable[[], None],
        changed: Callable[[Status], None],
        counted: Callable[[Report], None],
        check_s: float,
        *,
        directory: str = "",
    ) -> None:
        """`source` is what mountinfo shows, `directory` as in `VolumeKeeper`. Raises OSError if its socket cannot be made."""
        self._told: Status | None = None
        self._changed = changed
        self._counted = counted
        self._check_s = check_s
        self._askers: list[Answered] = []
        self._is_late = False  # who was asked last may never end
        view = View(name=view_name(spec.volume, "", spec.read_only), read_only=spec.read_only)
        super().__init__(
            KeeperMount(spec=spec, views=(view,)),
            places,
            run_dir,
            source,
            around,
            finished,
            directory=directory,
        )

    def handle(self, event: Event, *, able: bool = False, fault: str = "") -> None:
        """Take an event, and tell what has changed."""
        super().handle(event, able=able, fault=fault)
        self.tell()

    def tell(self) -> None:
        """Tell the status, if it is another one."""
        state = self.state
        status = (
            state.session.phase.value,
            state.fault,
            state.legacy.abnormal,
            state.hung,
            state.session.generation,
            "" if state.directory is None else state.directory.fault,
            self._interruptions.count,
        )
        if status != self._told:
            self._told = status
            self._changed(status)

    def numbers_told(self, report: Report) -> None:
        """Tell what its daemon has counted."""
        self._counted(report)

    def _source_changed(self) -> None:
        super()._source_changed()
        self.tell()

    def drop(self) -> None:
        """Detach it and let its daemon flush. One that does not even say that it lives is not waited for to the end.

        One that has not come to serve has nothing to flush, and may wait for a source that does not answer.
        """
        is_unseen = self.state.session.phase is Phase.STARTING and not self.state.session.held
        self.handle(Event.TERMINATE)
        if is_unseen:
            self.state.around.loop.call_later(_UNSEEN_S, self._unseen_is_late)
        else:
            self.state.around.loop.call_later(_SILENT_S, self._look_whether_silent)

    def _unseen_is_late(self) -> None:
        if self.state.session.phase is Phase.FLUSHING:
            self.handle(Event.DEADLINE)

    def give_up(self) -> None:
        """End its connection and let its daemon go, whatever it still waits for."""
        with contextlib.suppress(HostFailure, OSError):
            self._abort()
        self._drop_daemon()

    def _look_whether_silent(self) -> None:
        if self.state.session.phase is not Phase.FLUSHING:
            return
        daemon = self.state.daemon
        if daemon is None or daemon.watchdog.silent_s(time.monotonic()) >= _SILENT_S:
            self.state.log.warning("flush_given_up", why=f"its daemon has said nothing for {_SILENT_S:g} s")
            self.handle(Event.DEADLINE)
        else:
            self.state.around.loop.call_later(_LOOK_AGAIN_S, self._look_whether_silent)

    def check(self, answered: Answered) -> None:
        """Ask the mount for its statistics. Whoever asks meanwhile gets the same answer; one that hangs holds nobody else up."""
        state = self.state
        state.jobs.reap()
        if self._askers:
            self._askers.append(answered)
            return
        self._askers.append(answered)
        self._ask_when_free(time.monotonic() + (0.0 if self._is_late else _CHILD_ENDS_S))

    def _ask_when_free(self, until: float) -> None:
        """Ask when the child that was asked last has ended: a moment after its answer, or never if it had none."""
        state = self.state
        state.jobs.reap()
        if not self._askers:
            return  # unpublished meanwhile
        if state.jobs.is_busy(_STATISTICS):
            if time.monotonic() < until:
                state.around.loop.call_later(_CHILD_LOOK_S, partial(self._ask_when_free, until))
            else:
                self._answer(Outcome(fault="an earlier question has no answer yet", is_late=True))
            return
        try:
            root = state.places.open_root()
        except HostFailure as error:
            if state.session.phase is Phase.SERVING:
                self._missing()  # somebody has taken it away: have it shown again
            self._answer(Outcome(fault=str(error), errno=error.errno or errno.EIO))
            return
        self._ask(root)

    def _answer(self, outcome: Outcome, found: dict[str, int] | None = None) -> None:
        """Answer everybody who waits."""
        askers, self._askers = self._askers, []
        for asker in askers:
            asker(outcome, found)

    def _ask(self, root: int) -> None:
        found: dict[str, int] = {}

        def on_message(message: Message, descriptor: int | None, job: Job) -> None:
            found.update(message["found"])

        def on_end(outcome: Outcome) -> None:
            self._is_late = outcome.is_late
            self._answer(outcome, None if outcome.fault else found)

        work = Work(
            run=statistics_work(root, self.state.spec.volume),
            on_message=on_message,
            on_end=on_end,
            clean_up=lambda: os.close(root),
            deadline_s=self._check_s,
            keep=(root,),
        )
        if self.state.jobs.start(_STATISTICS, work) is None:
            on_end(Outcome(fault="no process can be started to ask", errno=errno.EAGAIN))

    def close(self) -> None:
        """Listen no more, and leave nobody waiting."""
        self.state.jobs.cancel(_STATISTICS)
        self._answer(Outcome(fault="the volume is unpublished", errno=errno.ENOENT))
        super().close()

    def is_reaped(self) -> bool:
        """Tell whether the last child of a closed volume has ended, and count none any more then."""
        jobs = self.state.jobs
        jobs.reap()
        if jobs.children:
            return False
        self.state.around.room.leave(jobs)
        return True


def statistics_work(root: int, volume: str) -> Callable[[Reporter], None]:
    """Return the work of asking an open root for its statistics: bytes and inodes."""

    def work(reporter: Reporter) -> None:
        try:
            status = os.statvfs(root)
        except OSError as error:
            raise HostFailure(f"statfs {volume}: {error.strerror}", errno=error.errno or 0) from error
        reporter.send({"found": numbers_of(status)})

    return work


def numbers_of(status: Any) -> dict[str, int]:
    """Return what CSI wants to know of a statvfs: in bytes and inodes, none negative."""
    unit = status.f_frsize
    return {
        "total_bytes": status.f_blocks * unit,
        "used_bytes": max(0, status.f_blocks - status.f_bfree) * unit,
        "available_bytes": status.f_bavail * unit,
        "total_inodes": status.f_files,
        "used_inodes": max(0, status.f_files - status.f_ffree),
        "available_inodes": status.f_favail,
    }
