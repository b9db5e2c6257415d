"""The daemon that serves a volume, as its keeper sees it: its processes, its link, its heartbeats.

A daemon is one process, or a first process that lets others serve one after the other and tells which. It is gone only when all of
that is: two that read from one connection would each answer half of the requests.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from sidemount.host.handover import Ask, FromKeeper, Heartbeat, Kill, Leaving, Lent, Stop
from sidemount.host.loop import Loop, Timer
from sidemount.host.pidfd import has_exited, pidfd_send_signal
from sidemount.host.volume_gate import Gate, Introduction, Peer
from sidemount.host.watchdog import Verdict, Watchdog
from sidemount.model.errors import HostFailure

_EXIT_AFTER_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonEvents:
    """What the volume's keeper wants to hear. `gone`: it has ended, as surely as the kernel can tell."""

    gone: Callable[[], None]
    unkillable: Callable[[], None]


class Daemon:
    """One daemon, from its introduction to its end."""

    def __init__(
        self,
        loop: Loop,
        gate: Gate,
        introduction: Introduction,
        events: DaemonEvents,
        *,
        silent_after_s: float,
        patience_s: float,
        restart_s: float,
    ) -> None:
        """`patience_s` is how long a process that has to end may take for it, `restart_s` one that only kubelet can end."""
        self._loop = loop
        self._gate = gate
        self._events = events
        self._patience_s = patience_s
        self._restart_s = restart_s
        self._timers: list[Timer] = []
        self._is_gone = False
        self._has_first_ended = False
        self._serving: int | None = None
        self._generation = 0
        self.unserved_since: float | None = None  # the end of a process that nobody has followed yet
        self.peer = introduction.peer
        self.is_linked = True
        self.said_bye = False
        self.was_told_to_end = False
        self.has_borrowed = False  # can take the mounts away
        self.has_answered = True  # it has just introduced itself
        self.watchdog = Watchdog(time.monotonic(), silent_after_s=silent_after_s)
        self._watch_first()

    @property
    def has_processes(self) -> bool:
        """Tell whether it lets other processes serve, and so can do without one of them."""
        return self._generation > 0

    def relink(self, introduction: Introduction) -> None:
        """Continue over a new connection of the same daemon."""
        self._unwatch_first()
        self._gate.release(self.peer)
        self.peer = introduction.peer
        self.is_linked = True
        self.has_answered = True
        self.watchdog.beat(time.monotonic(), Heartbeat())
        self._watch_first()

    def succeed(self, generation: int, pidfd: int) -> None:
        """Note which of its processes serves from now on. Takes the descriptor over."""
        self._forget_serving()
        self.unserved_since = None
        self._generation = generation
        self._serving = pidfd
        self._loop.watch(pidfd, self._serving_ended)
        self.at_rest()
        self.watchdog.pardon(time.monotonic())

    def at_rest(self) -> None:
        """Note that the process that was to be killed is gone, or works again after all."""
        self._cancel_timers()

    def on_closed(self) -> None:
        """Note that its connection has ended: mostly its process too, but a lost link alone ends nothing."""
        self.is_linked = False
        if self.peer.pidfd is None or has_exited(self.peer.pidfd):
            self._first_ended()
        elif self.said_bye:
            self._timers.append(self._loop.call_later(_EXIT_AFTER_CLOSE_S, self._first_ended))

    def tell(self, message: FromKeeper) -> None:
        """Tell it something."""
        if self.is_linked and not self.peer.send(message):
            self.is_linked = False

    def stop(self) -> None:
        """Ask it to flush and end."""
        self.tell(Stop())

    def ask(self) -> None:
        """Ask whether it was told to end. What lies in its line was said before; only the answer shows that it lives now."""
        self.has_answered = False
        self.tell(Ask())

    def lend(self, mount_points: int) -> None:
        """Give it the means to take the mounts away when no keeper is left."""
        if self.is_linked and self.peer.send(Lent(), mount_points):
            self.has_borrowed = True

    def leave(self) -> None:
        """Have it leave the mounts alone: another keeper follows."""
        if self.has_borrowed:
            self.tell(Leaving())

    def kill(self) -> bool:
        """Kill what hangs; report if it does not end. From another container only its first process may be able to.

        Return True if nobody can but kubelet, who is given time for it.
        """
        is_first_alive = self.is_linked and not self.watchdog.is_silent(time.monotonic())
        is_killed = True
        if self.has_processes and is_first_alive:
            self.tell(Kill(generation=self._generation))
        else:
            is_killed = self._kill_processes()
        patience_s = self._patience_s if is_killed else self._restart_s
        self._timers.append(self._loop.call_later(patience_s, self._still_there))
        return not is_killed

    def _kill_processes(self) -> bool:
        is_killed = True
        for pidfd in (self.peer.pidfd, self._serving):
            try:
                if pidfd is not None:
                    pidfd_send_signal(pidfd, signal.SIGKILL)
            except HostFailure:
                is_killed = is_killed and pidfd is not None and has_exited(pidfd)
        return is_killed

    def drop(self) -> None:
        """Let it go without hearing of it again."""
        self._is_gone = True
        self._cancel_timers()
        self._forget_serving()
        self._unwatch_first()
        self._gate.release(self.peer)

    def judge(self, waiting: int | None) -> Verdict:
        """Return what to think of it; `waiting` is the kernel's count of its open requests."""
        return self.watchdog.judge(time.monotonic(), waiting)

    def idle_s(self) -> float:
        """Return for how long it has had nothing to do."""
        return self.watchdog.idle_s(time.monotonic())

    def _watch_first(self) -> None:
        if self.peer.pidfd is not None:
            self._loop.watch(self.peer.pidfd, self._first_ended)

    def _unwatch_first(self) -> None:
        if self.peer.pidfd is not None:
            self._loop.unwatch(self.peer.pidfd)

    def _first_ended(self) -> None:
        self._unwatch_first()
        self._gate.hear_out(self.peer)
        if not self._has_first_ended:
            self._has_first_ended = True
            self._look()

    def _serving_ended(self) -> None:
        self.unserved_since = time.monotonic()
        self._forget_serving()
        self._look()

    def _look(self) -> None:
        """Report the end if all has ended. What outlives the first process is being killed by the kernel for that."""
        if self._is_gone or not self._has_first_ended:
            return
        if self._serving is not None:
            self._timers.append(self._loop.call_later(self._patience_s, self._still_there))
            return
        self._is_gone = True
        self._cancel_timers()
        self._events.gone()

    def _still_there(self) -> None:
        if not self._is_gone:
            self._events.unkillable()

    def _forget_serving(self) -> None:
        if self._serving is not None:
            self._loop.unwatch(self._serving)
            os.close(self._serving)
            self._serving = None

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def is_daemon(daemon: Daemon | None, peer: Peer) -> bool:
    """Tell whether `peer` is the present link of the daemon."""
    return daemon is not None and daemon.peer is peer
