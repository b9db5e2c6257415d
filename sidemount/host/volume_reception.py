"""Receives a volume's daemons: is it the right one, what is it given, what does it give back."""

from collections.abc import Callable
from dataclasses import replace

from sidemount.host.foreign_descriptors import is_fuse_device, let_go
from sidemount.host.fuse_init import is_init
from sidemount.host.fuse_mount import FuseConnection, is_connection_gone
from sidemount.host.handover import Adopted, Refusal, Serve, Source
from sidemount.host.mount_table import connection_of
from sidemount.host.session import Event, Phase
from sidemount.host.volume_daemon import Daemon, DaemonEvents
from sidemount.host.volume_gate import Gate, Introduction, Peer
from sidemount.host.volume_state import VolumeState

_HEARTBEATS_PER_SILENCE = 4
_HEARTBEAT_MS = (200, 1000)


class Reception:
    """At most one daemon stands at the desk; when an event has been handled, it has been taken or sent away."""

    def __init__(self, state: VolumeState, gate: Gate, reason: Callable[[], str]) -> None:
        """`reason` says why the volume cannot take a daemon now."""
        self._state = state
        self._gate = gate
        self._reason = reason
        self._candidate: Introduction | None = None
        self._last_refusal: tuple[int, Refusal] | None = None

    def introduce(self, introduction: Introduction) -> None:
        """Let the session decide about a daemon."""
        state = self._state
        self._candidate = introduction
        # One whose end cannot be waited for could never be succeeded safely.
        able = introduction.hello.takeover and introduction.peer.pidfd is not None
        if introduction.hello.generation == 0 and not self._has_source():
            self.refuse(Refusal.BUSY, self._lacks())
        elif introduction.hello.generation == 0:
            state.post(Event.CONNECTED, able=able and self._can_continue(introduction))
        elif state.session.self_mounting and state.session.phase is Phase.MOUNTING:
            self.refuse(Refusal.BUSY, "what its client has mounted is being looked at")
        elif state.daemon is not None and state.daemon.is_linked:
            self.refuse(Refusal.BUSY, "another daemon serves the volume")
        elif not self._is_of_this_volume(introduction):
            self.refuse(Refusal.STALE, "the descriptor is not that of the mount that is there")
        else:
            state.post(Event.HANDED_BACK, able=able)
        self.refuse(Refusal.BUSY, self._reason())

    def serve(self) -> None:
        """Give the daemon its work."""
        state = self._state
        introduction = self._take()
        low, high = _HEARTBEAT_MS
        serve = Serve(
            spec=state.spec,
            generation=state.session.generation,
            continued=state.session.held,
            init=b"" if state.connection is None else state.connection.init,
            heartbeat_ms=max(low, min(high, state.spec.hung_after_s * 1000 // _HEARTBEATS_PER_SILENCE)),
            kept=len(state.legacy),
        )
        state.heard.info("daemon_connected", pid=introduction.peer.pid, generation=serve.generation)
        self._employ(introduction)
        device = None if state.connection is None else state.connection.device
        peer = introduction.peer
        if not (self._give_source(peer) and peer.send(serve, device) and state.legacy.give(peer)):
            state.post(Event.GONE)

    def accept(self) -> None:
        """Take a daemon that serves already, and its descriptor if we have none."""
        state = self._state
        introduction = self._take()
        descriptor, hello = introduction.descriptor, introduction.hello
        state.heard.info("daemon_came_back", pid=introduction.peer.pid, generation=hello.generation)
        if descriptor is not None and state.connection is None:
            state.connection = FuseConnection(descriptor, -1, hello.init)
        elif descriptor is not None:
            let_go(descriptor)
        state.legacy.state_id = hello.state
        if state.daemon is not None:
            state.daemon.relink(introduction)
        else:
            state.session = replace(state.session, generation=hello.generation)
            self._employ(introduction)
        introduction.peer.send(Adopted(generation=hello.generation))

    def refuse(self, reason: Refusal, detail: str) -> None:
        """Send the daemon at the desk away, if there is one. It will ask again: told once, not each time."""
        if self._candidate is None:
            return
        introduction = self._take()
        refusal = (introduction.peer.pid, reason)
        if refusal != self._last_refusal:
            self._last_refusal = refusal
            self._state.heard.info(
                "daemon_refused", pid=introduction.peer.pid, reason=reason.value, detail=detail
            )
        self._gate.refuse(introduction, reason, detail)

    def _has_source(self) -> bool:
        desk = self._state.directory
        return desk is None or desk.is_ready(continued=self._state.session.held)

    def _lacks(self) -> str:
        desk = self._state.directory
        return (desk.fault if desk is not None else "") or "its source is being opened"

    def _give_source(self, peer: Peer) -> bool:
        desk = self._state.directory
        return desk is None or peer.send(Source(), desk.give())

    def _take(self) -> Introduction:
        candidate, self._candidate = self._candidate, None
        if candidate is None:
            raise AssertionError("no daemon has introduced itself")
        return candidate

    def _employ(self, introduction: Introduction) -> None:
        post = self._state.post
        events = DaemonEvents(
            gone=lambda: post(Event.GONE),
            unkillable=lambda: post(Event.UNKILLABLE, fault="the hung daemon cannot be killed from here"),
        )
        around = self._state.around
        self._state.had_daemon = True
        self._state.daemon = Daemon(
            around.loop,
            self._gate,
            introduction,
            events,
            silent_after_s=self._state.spec.hung_after_s,
            patience_s=around.limits.kill_s,
            restart_s=around.limits.restart_s,
        )

    def _can_continue(self, introduction: Introduction) -> bool:
        """Tell whether a daemon that asks for work could go on with the connection, whatever has happened in it."""
        state, its = self._state, introduction.hello.state
        return not state.session.held or (its != "" and its == state.legacy.state_id)

    def _is_of_this_volume(self, introduction: Introduction) -> bool:
        """Tell whether what is handed back is the connection of the mount that is there."""
        state = self._state
        descriptor, hello = introduction.descriptor, introduction.hello
        if descriptor is None:
            return not state.spec.descriptor
        if not is_fuse_device(descriptor):
            return False
        if is_connection_gone(descriptor) or (state.spec.filesystem and not is_init(hello.init)):
            return False
        number = connection_of(descriptor)
        if number is not None and state.number is not None:
            return number == state.number
        # A kernel that does not tell: the generation must do.
        return state.connection is None or hello.generation == state.session.generation
