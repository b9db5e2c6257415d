"""The daemon that serves a volume, as its keeper sees it: its process, its link, its heartbeats."""

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from sidemount.host.handover import Heartbeat, Stop
from sidemount.host.loop import Loop, Timer
from sidemount.host.pidfd import has_exited, pidfd_send_signal
from sidemount.host.volume_gate import Gate, Introduction, Peer
from sidemount.host.watchdog import Verdict, Watchdog
from sidemount.model.errors import HostFailure

_EXIT_AFTER_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonEvents:
    """What the volume's keeper wants to hear. `gone`: its process has ended, as surely as the kernel can tell."""

    gone: Callable[[], None]
    unkillable: Callable[[], None]


class Daemon:
    """One daemon, from its introduction to its end."""

    def __init__(
        self, loop: Loop, gate: Gate, introduction: Introduction, silent_after_s: float, events: DaemonEvents
    ) -> None:
        self._loop = loop
        self._gate = gate
        self._events = events
        self._timers: list[Timer] = []
        self._is_gone = False
        self.peer = introduction.peer
        self.is_linked = True
        self.said_bye = False
        self.watchdog = Watchdog(time.monotonic(), silent_after_s=silent_after_s)
        if self.peer.pidfd is not None:
            loop.watch(self.peer.pidfd, self._gone)

    def relink(self, introduction: Introduction) -> None:
        """Continue over a new connection of the same daemon."""
        self._unwatch()
        self._gate.release(self.peer)
        self.peer = introduction.peer
        self.is_linked = True
        self.watchdog.beat(time.monotonic(), Heartbeat())
        if self.peer.pidfd is not None:
            self._loop.watch(self.peer.pidfd, self._gone)

    def on_closed(self) -> None:
        """Note that its connection has ended: mostly its process too, but a lost link alone ends nothing."""
        self.is_linked = False
        if self.peer.pidfd is None or has_exited(self.peer.pidfd):
            self._gone()
        elif self.said_bye:
            self._timers.append(self._loop.call_later(_EXIT_AFTER_CLOSE_S, self._gone))

    def stop(self) -> None:
        """Ask it to flush and end."""
        if self.is_linked and not self.peer.send(Stop()):
            self.is_linked = False

    def kill(self, patience_s: float) -> None:
        """Kill it; report if it does not end. From another container it may not even be possible."""
        if self.peer.pidfd is not None:
            with contextlib.suppress(HostFailure):
                pidfd_send_signal(self.peer.pidfd, signal.SIGKILL)
        self._timers.append(self._loop.call_later(patience_s, self._still_there))

    def drop(self) -> None:
        """Let it go without hearing of it again."""
        self._is_gone = True
        self._unwatch()
        self._gate.release(self.peer)

    def judge(self, waiting: int | None) -> Verdict:
        """Return what to think of it; `waiting` is the kernel's count of its open requests."""
        return self.watchdog.judge(time.monotonic(), waiting)

    def idle_s(self) -> float:
        """Return for how long it has had nothing to do."""
        return self.watchdog.idle_s(time.monotonic())

    def _gone(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._unwatch()
            self._events.gone()

    def _still_there(self) -> None:
        if not self._is_gone:
            self._events.unkillable()

    def _unwatch(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self.peer.pidfd is not None:
            self._loop.unwatch(self.peer.pidfd)


def is_daemon(daemon: Daemon | None, peer: Peer) -> bool:
    """Tell whether `peer` is the present link of the daemon."""
    return daemon is not None and daemon.peer is peer
