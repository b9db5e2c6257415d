"""What has to be seen to while time goes by: is the connection there, does the daemon work, has all been written."""

import errno as errnos
import os
import time

from sidemount.host.fuse_mount import FuseConnection
from sidemount.host.jobs import Outcome, Work
from sidemount.host.mount_table import mount_by_id, mount_id_of, read_mount_table
from sidemount.host.session import Event, Phase
from sidemount.host.volume_state import VolumeState
from sidemount.host.volume_work import inspect_work, sync_work
from sidemount.host.watchdog import Verdict
from sidemount.model.errors import HostFailure
from sidemount.model.mountinfo import Mount

_TICK_S = 1.0
_FAST_TICK_S = 0.1
_DRAIN_TICK_S = 0.05
_LOADING_S = 5.0
_FOUND_INSPECTION_S = 10.0
DEAD_ERRNOS = frozenset({errnos.ENOTCONN, errnos.ECONNABORTED})
SHORTAGES = frozenset({errnos.EMFILE, errnos.ENFILE, errnos.ENOMEM})  # ours: they say nothing of a mount
_WITH_CONNECTION = (Phase.MOUNTING, Phase.WAITING, Phase.STARTING, Phase.ATTACHING, Phase.SERVING)
_UNSYNCED = "what the kernel still holds is not waited for"
_NOTHING = -1  # no mount's id
_BEFORE_CLIENT = (Phase.MOUNTING, Phase.WAITING, Phase.STARTING)


class Upkeep:
    """The clockwork of one volume."""

    def __init__(self, state: VolumeState) -> None:
        self._state = state
        self._root = -1  # pins the superblock, so that its number stays its own
        self._root_number: int | None = None
        self._is_stopped = False
        self._is_watching_quiet = False
        self._quiet_asked_at = 0.0
        self._was_called_hung = False
        self._was_found = False
        self._tick_due = time.monotonic()

    def start(self) -> None:
        """Begin to tick."""
        self._state.heard_at = time.monotonic()
        self._was_found = self._state.number is not None
        self._tick()

    def stop(self) -> None:
        """Tick no more, and let go of everything."""
        self._is_stopped = True
        for kind in ("inspect", "sync"):
            self._state.jobs.cancel(kind)
        self.unpin()

    def forget_daemon(self) -> None:
        """Begin anew with the next daemon."""
        self._is_watching_quiet = False
        self._was_called_hung = False

    def note_life(self) -> None:
        """Note that something in the daemon's container does what it should. Whoever was called hung is given another chance."""
        state = self._state
        state.heard_at = time.monotonic()
        if state.hung:
            state.log.info("container_works_again", was=state.hung)
            state.hung = ""
            self._was_called_hung = False
            if state.daemon is not None:
                state.daemon.at_rest()

    def call_container_hung(self, why: str) -> None:
        """Have the liveness probe tell kubelet, the only one who can end what is in another container."""
        if not self._state.hung:
            self._state.hung = why
            self._state.log.warning("container_called_hung", why=why)

    def note_successor(self) -> None:
        """Judge the daemon's next process by itself."""
        self._was_called_hung = False

    # Looking at the mount ----------------------------------------------------------------------------

    def inspect(self) -> None:
        """Ask the mount that is there whether it answers; what comes of it is posted."""
        state = self._state
        if state.jobs.is_busy("inspect"):
            return
        try:
            root = state.places.open_root()
        except HostFailure as error:
            if error.errno not in SHORTAGES:
                self._inspected(Outcome(fault=str(error), errno=errnos.ENOTCONN), _NOTHING)
            return
        mount_id = mount_id_of(root)
        is_found = state.session.phase is Phase.ADOPTING
        work = Work(
            run=inspect_work(root, state.spec.volume),
            on_end=lambda outcome: self._inspected(outcome, mount_id),
            clean_up=lambda: os.close(root),
            deadline_s=_FOUND_INSPECTION_S if is_found else max(1.0, state.spec.hung_after_s / 2),
            keep=(root,),
        )
        state.jobs.start("inspect", work)

    def _inspected(self, outcome: Outcome, mount_id: int) -> None:
        state = self._state
        phase = state.session.phase
        is_dead = outcome.errno in DEAD_ERRNOS
        if phase is Phase.ADOPTING:
            if is_dead:
                state.post(Event.DEAD)
        elif state.session.self_mounting and phase in _BEFORE_CLIENT:
            self._client_inspected(outcome, mount_id)
        elif phase in (Phase.ATTACHING, Phase.SERVING):
            if is_dead:
                state.post(Event.LOST, fault=outcome.fault)
            elif outcome.is_late:
                self._call_hung("its mount does not answer")
            elif state.daemon is not None:
                state.daemon.watchdog.absolve(time.monotonic())

    # A client that mounts by itself --------------------------------------------------------------------

    def prepare_place(self) -> None:
        """Make the place fit for the client to mount on, and post MOUNTED; a mount of its own that lives may stay."""
        if self._state.places.find_client() is not None:
            self.inspect()
        else:
            self._state.post(Event.MOUNTED)

    def _client_inspected(self, outcome: Outcome, mount_id: int) -> None:
        """Show what answers, and take away what is dead: until then containers see the mount before, be it dead."""
        state = self._state
        mount = state.places.find_client()
        if mount is None or mount.mount_id != mount_id:  # another one by now, which will be looked at
            return
        if not outcome.fault:
            state.number = mount.minor
            state.post(Event.MOUNTED)
            state.post(Event.READY)
        elif outcome.is_late or outcome.errno in DEAD_ERRNOS:
            self._take_away(mount, hangs=outcome.is_late)

    def _take_away(self, mount: Mount, *, hangs: bool) -> None:
        state = self._state
        try:
            if hangs and state.around.control is not None:
                state.around.control.abort(mount.minor, lambda: self.is_pinned(mount.minor))
            state.places.clear_client()
        except HostFailure as error:
            state.post(Event.MOUNT_FAILED, fault=str(error))
            return
        state.post(Event.MOUNTED)

    def _check_client(self) -> None:
        """See whether the client has mounted, and whether its mount is still there and answers."""
        state = self._state
        mount = state.places.find_client()
        if state.session.phase in _BEFORE_CLIENT:
            if mount is not None:
                self.inspect()
        elif mount is None or mount.minor != state.number:
            state.post(Event.LOST, fault="the client's mount is gone")
        elif state.session.phase is Phase.SERVING and not state.places.shows_client():
            state.post(Event.ATTACH_FAILED, fault=f"{state.places.anchor} is not mounted any more")
        else:
            self.inspect()

    def missing(self) -> str:
        """Return what the mount table does not show of the volume, "" if it shows all."""
        anchor = self._state.places.find()
        if anchor is None or anchor.minor != self._state.number:
            return f"{self._state.places.anchor} is not mounted any more"
        missing = self._state.places.missing_views(anchor)
        return f"{missing[0].path} is not mounted any more" if missing else ""

    # The clock ---------------------------------------------------------------------------------------

    def watch_quiet(self) -> None:
        """Post QUIET once nothing has been asked of the daemon for a while."""
        self._is_watching_quiet = True
        self._quiet_asked_at = time.monotonic()

    def _tick(self) -> None:
        if self._is_stopped:
            return
        state = self._state
        now = time.monotonic()
        if now - self._tick_due > _TICK_S:
            state.heard_at = now
            if state.daemon is not None:
                state.daemon.watchdog.pardon(now)
        state.jobs.reap()
        phase = state.session.phase
        if phase is Phase.ADOPTING:
            self.inspect()
        elif phase is Phase.FLUSHING:
            self._check_orphan()
        elif phase in _WITH_CONNECTION:
            if state.session.self_mounting:
                self._check_client()
            self._check_connection()
        self._check_absence(now)
        is_fast = self._is_watching_quiet or (state.session.self_mounting and phase in _BEFORE_CLIENT)
        delay_s = _FAST_TICK_S if is_fast else _TICK_S
        self._tick_due = time.monotonic() + delay_s
        state.around.loop.call_later(delay_s, self._tick)

    def _check_connection(self) -> None:
        state = self._state
        if state.connection is not None and state.connection.is_gone:
            state.post(Event.LOST, fault="the kernel's connection was aborted or unmounted")
            return
        if state.daemon is None:
            return
        if not state.legacy.is_served:
            state.daemon.watchdog.pardon(time.monotonic())
            return
        verdict = state.daemon.judge(state.waiting())
        is_loading = state.session.phase is Phase.STARTING
        if is_loading and state.daemon.watchdog.silent_s(time.monotonic()) < _LOADING_S:
            return  # it says nothing while it imports what serves, which takes a loaded machine long
        if verdict is Verdict.SILENT and state.session.phase is Phase.SERVING:
            verdict = Verdict.SUSPECT  # its first process is silent, which serves nothing by itself
        if verdict is Verdict.SILENT:
            self._call_hung(f"its daemon was silent for more than {state.spec.hung_after_s} s")
        elif verdict is Verdict.SUSPECT and state.session.phase is Phase.SERVING:
            self.inspect()
        elif self._is_watching_quiet and self._idle_s() >= state.around.limits.quiet_s:
            self._is_watching_quiet = False
            state.post(Event.QUIET)

    def _idle_s(self) -> float:
        """Return for how long nothing has been asked of the daemon: before it was told to end it told us too rarely to know."""
        since_asked_s = time.monotonic() - self._quiet_asked_at
        return (
            since_asked_s if self._state.daemon is None else min(since_asked_s, self._state.daemon.idle_s())
        )

    def _check_absence(self, now: float) -> None:
        """A daemon that lives asks for work all the time; the probe is asked only where its container runs and has served."""
        state = self._state
        was_served = self._was_found or state.session.generation > 0
        if state.daemon is None and was_served and now - state.heard_at > state.spec.hung_after_s:
            self.call_container_hung(f"no daemon has been heard of for more than {state.spec.hung_after_s} s")

    def _call_hung(self, fault: str) -> None:
        """Say so once of a process: it is being killed since then."""
        if not self._was_called_hung:
            self._was_called_hung = True
            self._state.post(Event.HUNG, fault=fault)

    def _check_orphan(self) -> None:
        state = self._state
        if state.daemon is not None or state.around.control is None:
            return
        if state.number is None or state.waiting() is None:
            state.post(Event.DEAD)

    # Writing back ------------------------------------------------------------------------------------

    def pin(self) -> None:
        """Hold the volume's root, before it is detached: to sync it, and so that its number is not given away."""
        if self._root >= 0:
            return
        places = self._state.places
        fault: HostFailure | None = None
        for open_root in (places.open_root, places.open_shown):
            try:
                self._root = open_root()
                break
            except HostFailure as error:
                fault = error
        if self._root < 0:
            if fault is not None and fault.errno != errnos.ENOENT:  # else nothing is mounted: nothing to hold
                self._state.log.error("pin_failed", fault=str(fault), consequence=_UNSYNCED)
            return
        mount = mount_by_id(read_mount_table(), mount_id_of(self._root))
        self._root_number = mount.minor if mount is not None else None

    def unpin(self) -> None:
        """Let go of the root."""
        if self._root >= 0:
            os.close(self._root)
        self._root, self._root_number = -1, None

    def is_ours(self, number: int, connection: FuseConnection | None) -> bool:
        """Tell whether the connection of that number is certainly the volume's: by its descriptor, or by its mount."""
        if connection is None:
            return self.is_pinned(number)
        return not connection.is_gone and connection.number in (number, None)

    def is_pinned(self, number: int) -> bool:
        """Tell whether a mount of that number is certainly still the volume's."""
        if self._root >= 0 and self._root_number == number:
            return True
        places = self._state.places
        return any(
            mount is not None and mount.minor == number for mount in (places.find(), places.find_client())
        )

    def sync(self) -> None:
        """Have the kernel write back what it holds; post SYNCED when it has, or cannot."""
        state = self._state
        if self._is_stopped:
            return
        self.pin()
        if self._root < 0:
            state.post(Event.SYNCED)
            return
        if not state.legacy.is_served:
            state.log.error(
                "sync_left_out", consequence="nobody serves, so what the kernel still holds is lost"
            )
            state.post(Event.SYNCED)
            return
        work = Work(
            run=sync_work(self._root, state.spec.volume),
            on_end=self._synced,
            deadline_s=state.around.limits.sync_s,
            keep=(self._root,),
        )
        if state.jobs.start("sync", work) is None:  # one is under way, or there is no process for it yet
            state.around.loop.call_later(_DRAIN_TICK_S, self.sync)

    def _synced(self, outcome: Outcome) -> None:
        state = self._state
        if outcome.fault and not (outcome.errno in DEAD_ERRNOS and state.daemon is None):
            state.log.error("sync_failed", fault=outcome.fault)
        if outcome.errno in DEAD_ERRNOS and state.daemon is None:
            state.post(Event.DEAD)
            return
        self._drain(time.monotonic() + state.around.limits.drain_s)

    def _drain(self, until: float) -> None:
        """Wait until the daemon has answered everything, releases of the last files too."""
        if self._is_stopped:
            return
        if self._state.waiting() and time.monotonic() < until:
            self._state.around.loop.call_later(_DRAIN_TICK_S, lambda: self._drain(until))
            return
        if self._state.daemon is not None and self._state.connection is not None:
            self.unpin()  # the daemon may learn now from the kernel that it is over
        self._state.post(Event.SYNCED)
