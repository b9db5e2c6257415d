"""Keeps one volume: carries out what the session machine decides, and tells it what happened."""

from collections import deque
from collections.abc import Callable, Mapping

from sidemount.host.foreign_descriptors import let_go
from sidemount.host.fuse_mount import MountPlan, open_connection
from sidemount.host.handover import Message, Refusal
from sidemount.host.jobs import Jobs, Outcome
from sidemount.host.limited_log import LimitedLog
from sidemount.host.logs import log
from sidemount.host.loop import Timer
from sidemount.host.pod_end import Witness
from sidemount.host.session import Action, Event, Phase, begin, step
from sidemount.host.volume_daemon import is_daemon
from sidemount.host.volume_gate import Gate, Introduction, Peer
from sidemount.host.volume_interruptions import Interruptions
from sidemount.host.volume_legacy import Legacy
from sidemount.host.volume_numbers import VolumeNumbers
from sidemount.host.volume_places import VolumePlaces
from sidemount.host.volume_probe import ProbeDesk
from sidemount.host.volume_reception import Reception
from sidemount.host.volume_reports import Reports
from sidemount.host.volume_show import ShowEvents, cancel_show, show
from sidemount.host.volume_source import SourceDesk
from sidemount.host.volume_state import Surroundings, VolumeState
from sidemount.host.volume_upkeep import SHORTAGES, Upkeep
from sidemount.model.errors import HostFailure
from sidemount.model.mountinfo import Mount
from sidemount.model.mountspec import KeeperMount
from sidemount.model.object_numbers import Report

_NUMBERS_EVERY_S = 60.0  # a line of the log


class VolumeKeeper:
    """One volume of a keeper. Every method returns at once."""

    numbers_every_s = _NUMBERS_EVERY_S

    def __init__(
        self,
        mount: KeeperMount,
        places: VolumePlaces,
        run_dir: str,
        source: str,
        around: Surroundings,
        finished: Callable[[], None],
        *,
        directory: str = "",
    ) -> None:
        """`run_dir` is the volume's own, `source` what mountinfo shows. Raises OSError if its socket cannot be made.

        `directory` is the source's path, of which the daemon is given a descriptor; "" for one that opens its source by itself.
        """
        spec = mount.spec
        journal = log("keeper", volume=spec.volume)
        found = places.find() if spec.descriptor else None
        session, self._first = begin(
            found=found is not None,
            self_mounting=not spec.descriptor,
            takeover=spec.takeover and bool(spec.filesystem),
        )
        self.state = VolumeState(
            spec=spec,
            source=source,
            places=places,
            around=around,
            jobs=Jobs(around.loop, around.room),
            log=journal,
            heard=LimitedLog(journal),
            post=self.handle,
            finished=finished,
            session=session,
            legacy=Legacy(),
            number=found.minor if found is not None else None,
        )
        if directory:
            self.state.directory = SourceDesk(
                self.state.jobs, directory, read_only=spec.read_only, changed=self._source_changed
            )
        self._events: deque[tuple[Event, bool]] = deque()
        self._is_handling = False
        self._deadline: Timer | None = None
        self._upkeep = Upkeep(self.state)
        self._interruptions = Interruptions(self.state.log, session)
        self._numbers = VolumeNumbers(around.loop, self.numbers_told, every_s=self.numbers_every_s)
        self._reports = Reports(self.state, self._upkeep, self._interruptions, self._numbers)
        self._gate = Gate(around.loop, run_dir, spec.uid, self, self.state.heard)
        self._probes = ProbeDesk(
            self.state.jobs,
            self._gate,
            places,
            deadline_s=around.limits.probe_s,
            fresh_s=around.limits.probe_cache_s,
            remark=self._remark,
        )
        self._reception = Reception(self.state, self._gate, self._reason)
        self._actions = self._action_table()

    # Events ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, from what an earlier keeper has left."""
        if self.state.number is not None:
            self.state.log.info(
                "own_mount_found", place=self.state.places.anchor, connection=self.state.number
            )
        self._arm_deadline()
        self._upkeep.start()
        if self.state.directory is not None:
            self.state.directory.is_ready(continued=True)  # so that the first daemon need not wait
        self._enact(self._first)

    def listen(self, run_dir: str) -> None:
        """Wait for daemons in another directory; who serves goes on. Raises OSError."""
        self._gate.move(run_dir)

    def handle(self, event: Event, *, able: bool = False, fault: str = "") -> None:
        """Take an event; what follows from it is done before this returns, unless another event is being handled."""
        if fault:
            self.state.fault = fault
            self.state.heard.warning(event.value, fault=fault)
        self._events.append((event, able))
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                self._step(*self._events.popleft())
        finally:
            self._is_handling = False

    def _step(self, event: Event, able: bool) -> None:
        before = self.state.session
        self.state.session, actions = step(before, event, able=able)
        if self.state.session.phase is not before.phase:
            self.state.log.info(
                "phase_changed",
                phase=self.state.session.phase.value,
                was=before.phase.value,
                cause=event.value,
                generation=self.state.session.generation,
            )
            if self.state.session.phase in (Phase.STARTING, Phase.SERVING):
                self.state.fault = ""
        is_same = (self.state.session.phase, self.state.session.failures) == (before.phase, before.failures)
        if not is_same or event is Event.DEADLINE:
            self._arm_deadline()
        self._interruptions.stepped(before, self.state.session, event, self.state.daemon)
        self._enact(actions)

    def _arm_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        delay_s = self.state.around.limits.deadline_s(self.state.session)
        expired = self.state.session

        def fire() -> None:
            if self.state.session.phase is expired.phase:
                self.handle(Event.DEADLINE)

        self._deadline = None if delay_s is None else self.state.around.loop.call_later(delay_s, fire)

    # The pod's end -----------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask the daemon, if there is one, whether it was told to end."""
        if self.state.daemon is not None:
            self.state.daemon.ask()

    def leave(self) -> None:
        """Tell the daemon that another keeper follows."""
        if self.state.daemon is not None:
            self.state.daemon.leave()

    def witness(self) -> Witness:
        """Return what this volume tells of whether the pod ends."""
        session, daemon = self.state.session, self.state.daemon
        if daemon is None:
            is_lone_client = (
                session.self_mounting
                and not self.state.had_daemon
                and self.state.places.find_client() is not None
            )
            return Witness(
                may_return=session.phase is Phase.ADOPTING or is_lone_client,
                needs_us=session.phase is Phase.WAITING and session.held,
            )
        return Witness(
            is_linked=daemon.is_linked,
            was_told=daemon.was_told_to_end,
            has_answered=daemon.has_answered,
        )

    # What its daemon counts --------------------------------------------------------------------------

    def numbers_told(self, report: Report) -> None:
        """Tell what the volume has counted. Whoever adds up reads the log: lines are as many as others make them, so limited."""
        found = {name: count for name, count in report.numbers.items() if count}
        self.state.heard.info("volume_counted", instance=report.process, numbers=found)

    # The gate's reports ------------------------------------------------------------------------------

    def on_introduction(self, introduction: Introduction) -> None:
        """Take or refuse a daemon."""
        self._upkeep.note_life()
        self._reception.introduce(introduction)

    def on_message(self, peer: Peer, message: Message, descriptor: int | None) -> None:
        """Take a message of the daemon that serves."""
        daemon = self.state.daemon
        if daemon is not None and is_daemon(daemon, peer):
            self._upkeep.note_life()
            self._reports.take(daemon, message, descriptor)
        elif descriptor is not None:
            let_go(descriptor)

    def on_probe(self, peer: Peer) -> None:
        """Answer whether the volume is live."""
        if self.state.session.phase is Phase.SERVING and self.state.legacy.is_served:
            self._probes.ask(peer, self._missing)
        else:
            self._probes.refuse(peer, self._reason())

    def on_hung_probe(self, peer: Peer) -> None:
        """Answer whether kubelet has to restart the daemon's container."""
        self._probes.answer_hung(peer, self.state.hung)

    def on_closed(self, peer: Peer) -> None:
        """Note that a link has ended."""
        if self.state.daemon is not None and is_daemon(self.state.daemon, peer):
            self.state.daemon.on_closed()
        else:
            self._probes.forget(peer)
            self._gate.release(peer)

    # Actions -----------------------------------------------------------------------------------------

    def _action_table(self) -> Mapping[Action, Callable[[], None]]:
        return {
            Action.MAKE_CONNECTION: self._make_connection,
            Action.INSPECT_FOUND: self._upkeep.inspect,
            Action.SERVE: self._reception.serve,
            Action.ACCEPT: self._reception.accept,
            Action.REFUSE_BUSY: lambda: self._reception.refuse(Refusal.BUSY, self._reason()),
            Action.REFUSE_STALE: lambda: self._reception.refuse(Refusal.STALE, "no mount here needs that"),
            Action.REFUSE_STOPPING: lambda: self._reception.refuse(Refusal.STOPPING, "the pod is ending"),
            Action.ATTACH: self._attach,
            Action.ABORT: self._abort,
            Action.KILL_DAEMON: self._kill_daemon,
            Action.DROP_DAEMON: self._drop_daemon,
            Action.WATCH_QUIET: self._upkeep.watch_quiet,
            Action.SYNC: self._upkeep.sync,
            Action.STOP_DAEMON: self._stop_daemon,
            Action.DETACH: self._detach,
            Action.FINISH: self._finish,
        }

    def _enact(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            self._actions[action]()

    def _make_connection(self) -> None:
        try:
            if not self.state.spec.descriptor:
                self._upkeep.prepare_place()
                return
            plan = MountPlan(
                source=self.state.source,
                read_only=self.state.spec.read_only,
                selinux_context=self.state.spec.selinux_context,
            )
            # An external client reads INIT itself: nobody else could speak its dialect.
            read_init = bool(self.state.spec.filesystem)
            self.state.connection = open_connection(
                plan, read_init=read_init, staging=self.state.around.staging
            )
        except HostFailure as error:
            self.handle(Event.MOUNT_FAILED, fault=str(error))
            return
        self.state.number = self.state.connection.number
        self.handle(Event.MOUNTED)

    def _attach(self) -> None:
        events = ShowEvents(anchored=self._anchored, done=self._shown)
        try:
            show(
                self.state.jobs,
                self.state.places,
                self.state.connection,
                self.state.spec.volume,
                self.state.around.limits.show_s,
                events,
            )
        except (HostFailure, OSError) as error:
            is_attached = self.state.connection is not None and self.state.connection.mount < 0
            if is_attached and error.errno not in SHORTAGES:
                self.handle(Event.LOST, fault=str(error))
            else:
                self.handle(Event.ATTACH_FAILED, fault=str(error))

    def _anchored(self, anchor: Mount) -> None:
        self.state.number = anchor.minor
        self.state.log.info(
            "volume_mounted", place=self.state.places.anchor, layers=self.state.places.layers()
        )

    def _shown(self, outcome: Outcome) -> None:
        if outcome.fault:
            self.handle(Event.ATTACH_FAILED, fault=outcome.fault)
        else:
            self.handle(Event.ATTACHED)

    def _abort(self) -> None:
        cancel_show(self.state.jobs)
        connection, self.state.connection = self.state.connection, None
        number, self.state.number = self.state.number, None
        if number is not None and self.state.around.control is not None:
            try:
                self.state.around.control.abort(number, lambda: self._upkeep.is_ours(number, connection))
            except HostFailure as error:
                self.state.log.error("abort_failed", fault=str(error))
        if connection is not None:
            connection.close()
        self.state.legacy.clear()
        self.state.backings.clear()

    def _kill_daemon(self) -> None:
        self.state.log.warning("daemon_killed_as_hung", hung_after_s=self.state.spec.hung_after_s)
        if self.state.daemon is not None and self.state.daemon.kill():
            self._upkeep.call_container_hung(self.state.fault or "its daemon does nothing any more")

    def _drop_daemon(self) -> None:
        self._upkeep.forget_daemon()
        daemon, self.state.daemon = self.state.daemon, None
        if daemon is not None:
            daemon.drop()

    def _stop_daemon(self) -> None:
        if self.state.daemon is not None:
            self.state.daemon.stop()
        elif not self.state.spec.descriptor or self.state.number is None:
            self.handle(Event.GONE)

    def _detach(self) -> None:
        cancel_show(self.state.jobs)
        self._probes.cancel("the pod is ending")
        self._upkeep.pin()
        try:
            layers = self.state.places.detach_all()
            self.state.log.info("volume_detached", layers=layers)
        except HostFailure as error:
            self.state.log.error("detach_failed", fault=str(error))
        if self.state.connection is not None:
            self.state.connection.release_mount()

    def _finish(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._upkeep.stop()
        self._numbers.flush()
        self.state.finished()

    def close(self) -> None:
        """Listen no more. For a volume that is detached."""
        self._gate.close()
        self.state.legacy.clear()
        if self.state.directory is not None:
            self.state.directory.close()

    # Helpers -----------------------------------------------------------------------------------------

    def _source_changed(self) -> None:
        fault = "" if self.state.directory is None else self.state.directory.fault
        if fault:
            self.state.heard.warning("source_not_open", fault=fault)

    def _missing(self) -> str:
        """Return what the mount table does not show, and have it shown again."""
        fault = self._upkeep.missing()
        if fault:
            self.handle(Event.ATTACH_FAILED, fault=fault)
        return fault

    def _reason(self) -> str:
        unserved = "" if self.state.legacy.is_served else "its daemon is about to start another process"
        return self._remark() or self.state.fault or unserved or _REASONS[self.state.session.phase]

    def _remark(self) -> str:
        abnormal = self.state.legacy.abnormal
        return f"abnormal: {abnormal}" if abnormal else ""


_REASONS: Mapping[Phase, str] = {
    Phase.MOUNTING: "its FUSE connection is not made yet",
    Phase.ADOPTING: "its daemon has not come back to the restarted keeper yet",
    Phase.WAITING: "its daemon has not connected yet",
    Phase.STARTING: "its daemon is starting",
    Phase.ATTACHING: "it is being shown",
    Phase.SERVING: "it is served already",
    Phase.ABORTED: "its connection was aborted; the daemon has to end first",
    Phase.FLUSHING: "the pod is ending",
    Phase.DETACHED: "the pod is ending",
}
