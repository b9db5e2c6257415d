"""The daemon's first process: its line to the keeper, its signals, its end. It runs no filesystem and cannot fail.

How it ends: the keeper lets it go, the mount is gone, or a signal's deadline passes. A signal alone ends nothing: kubelet stops this
container before the keeper's, and also when applications still run.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial

from sidecar import daemon_codes
from sidecar.daemon_client_server import ClientServer, Restarts
from sidecar.daemon_link import KeeperLink
from sidecar.daemon_settings import DaemonSettings, Order, Server
from sidecar.orphaned_mounts import OrphanedMounts
from sidecar.zygote import Zygote
from sidecar.zygote_parts import ZygoteParts
from sidecar.zygote_state import resumable_state
from sidemount.host.handover import (
    Adopted,
    Answer,
    Ask,
    Bye,
    FromDaemon,
    GiveUp,
    HandOver,
    Hello,
    Kept,
    Kill,
    Leaving,
    Lend,
    Lent,
    Message,
    Refusal,
    Refused,
    Registered,
    Registers,
    Serve,
    Source,
    Stop,
    Stopping,
    Wanted,
)
from sidemount.host.logs import EventLog
from sidemount.host.loop import Loop, Timer
from sidemount.model.errors import HostFailure, Unsupported, VolumeError

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_ENDING_SIGNALS, signal.SIGCHLD, signal.SIGUSR1)
_BEAT_S = 1.0
_STOPPING_BEAT_S = 0.2
_LAST_WORDS_S = 2.0
_LET_GO_LOOK_S = 0.01
_DEATH_SHOWS_S = 0.1  # the end of a program's mount can be seen before its own
_REPORT_EVERY_S = 10.0
_NEVER_TAKEN = frozenset({Refusal.IDENTITY, Refusal.PROTOCOL})


class Supervisor:
    """Asks the keeper for work, has it done, and keeps the keeper informed, whichever keeper there is."""

    def __init__(self, settings: DaemonSettings, log: EventLog) -> None:
        self._settings = settings
        self._log = log
        self._loop = Loop(on_error=self._unexpected)
        self._link = KeeperLink(self._loop, settings.run_dir, self, log)
        self._parts = ZygoteParts(self._loop, settings, log)
        self._restarts = Restarts()  # of an external client
        self._server: Server | None = None
        self._code = daemon_codes.DEFECT
        self._failure: VolumeError | None = None
        self._beat_s = _BEAT_S
        self._orphans = OrphanedMounts(log)
        self._source = -1  # of the source's directory, as the keeper gave it
        self._is_stopping = False
        self._is_let_go = False  # told to stop when nothing was served any more; not told anything since
        self._ending: Timer | None = None
        self._asked_since = self._reported = time.monotonic()

    def run(self) -> int:
        """Return the exit code. Raises VolumeError if nothing could be served."""
        self._loop.on_signals(_SIGNALS, self._on_signal)
        self._link.dial()
        self._beat()
        self._loop.run()
        self._parts.close()
        self._orphans.give_up()
        self._forget_source()
        self._loop.close()
        if self._failure is not None:
            raise self._failure
        return self._code

    # The keeper ---------------------------------------------------------------------------------------

    def introduce(self) -> tuple[Hello, int | None]:
        """Return who we are now."""
        if self._server is not None:
            return self._server.introduce()
        is_able = self._settings.resend and self._settings.runtime == "poll"
        state = resumable_state(self._settings.run_dir) if is_able else ""
        return Hello(takeover=is_able, state=state), None

    def on_message(self, message: Message, descriptor: int | None) -> None:
        """Do as the keeper says."""
        match message:
            case Serve() if self._server is None:
                self._is_let_go = False
                source, self._source = self._source, -1
                self._begin(Order(message, -1 if descriptor is None else descriptor, source))
                return
            case Source() if self._server is None and descriptor is not None:
                self._forget_source()
                self._source = descriptor
                return
            case Kept() if self._server is not None and descriptor is not None:
                self._server.take_kept(message.key, descriptor)
                return
            case Lent() if descriptor is not None:
                self._orphans.take(descriptor)
                return
        if descriptor is not None:
            os.close(descriptor)
        match message:
            case Stop() if isinstance(self._server, ClientServer):
                self._loop.call_later(_DEATH_SHOWS_S, partial(self._stop, self._server))
            case Stop() if self._server is not None:
                self._stop(self._server)
            case Stop():
                self._is_let_go = True
                self._look_let_go(time.monotonic() + _BEAT_S)
            case Adopted() if self._server is not None:
                self._log.info("keeper_took_descriptor_back", generation=message.generation)
                self._taken()
                self._server.adopted()
                self._borrow()
            case Kill() if self._server is not None:
                self._server.kill(message.generation)
            case HandOver() if self._server is not None:
                self._server.hand_over()
            case Wanted() if isinstance(self._server, Zygote):
                self._server.tell_numbers()
            case Registers() if isinstance(self._server, Zygote):
                self._server.keeper_registers()
            case Registered() if isinstance(self._server, Zygote):
                self._server.take_registered(message)
            case Leaving():
                self._orphans.give_up()
            case Ask():
                self._link.tell(Answer(told_to_end=self._is_stopping))
            case _:
                self._log.warning("message_ignored", kind=type(message).__name__)

    def _forget_source(self) -> None:
        if self._source >= 0:
            os.close(self._source)
            self._source = -1

    def _stop(self, server: Server) -> None:
        """End what serves. If that has ended by itself, another connection is asked for, and the answer tells whether to end."""
        self._reap()
        if self._server is server:
            self._log.info("keeper_lets_go")
            self._let_go()

    def on_refused(self, refused: Refused) -> None:
        """Go on asking, unless asking is in vain."""
        if self._server is None and refused.reason in _NEVER_TAKEN:
            self.failed(HostFailure(f"the keeper refuses us ({refused.reason.value}): {refused.detail}"))
        elif self._server is None and refused.reason is Refusal.STOPPING:
            self._let_go()
        elif isinstance(self._server, ClientServer) and refused.reason is Refusal.STALE:
            self._server.on_stale()

    def _begin(self, order: Order) -> None:
        spec = order.serve.spec
        log = self._log.bind(volume=spec.volume)
        log.info("descriptor_received", generation=order.serve.generation, filesystem=spec.filesystem)
        self._taken()
        self._beat_s = min(_BEAT_S, order.serve.heartbeat_ms / 1000)
        try:
            if spec.filesystem:
                self._server = Zygote(order, self._parts, self, log)
            elif order.serve.continued:
                raise Unsupported(f"volume {spec.volume}: a client cannot continue another one's connection")
            else:
                self._server = ClientServer(order, self._settings, self, self._restarts, log)
            self._server.start()
            self._borrow()
        except VolumeError as error:
            self.failed(error)
        except OSError as error:  # or nobody would ever try again
            self.failed(HostFailure(f"volume {spec.volume}: cannot begin: {error}", errno=error.errno or 0))

    def _borrow(self) -> None:
        """Ask for the means to take the mounts away. Who cannot tell whether they are in use does not need it."""
        if isinstance(self._server, Zygote):
            self._link.tell(Lend())

    def _taken(self) -> None:
        self._link.be_content()
        if self._is_stopping:
            self._link.tell(Stopping())

    # What serves --------------------------------------------------------------------------------------

    def tell(
        self,
        message: FromDaemon,
        descriptor: Callable[[], int | None] | None = None,
        *,
        droppable: bool = False,
    ) -> None:
        """Tell the keeper."""
        self._link.tell(message, descriptor, droppable=droppable)

    def ended(self, code: int, *, clean: bool) -> None:
        """Say goodbye and end."""
        self._server = None
        self._code = code
        self._link.tell(Bye(clean=clean))
        self._link.close()
        self._loop.stop()

    def lost(self, detail: str, *, clean: bool) -> None:
        """Ask for another connection; with the end in sight, end."""
        if self._is_stopping or self._ending is not None:
            self.ended(0 if clean else daemon_codes.NOT_FLUSHED, clean=clean)
            return
        self._server = None
        self._asked_since = self._reported = time.monotonic()
        self._log.warning("connection_given_up", detail=detail)
        self._link.tell(Bye(clean=clean))
        self._link.tell(GiveUp(detail=detail))
        self._link.hang_up_later(_LAST_WORDS_S)

    def failed(self, error: VolumeError) -> None:
        """End with that error."""
        self._failure = error
        if self._server is not None:
            self._server.abandon()
            self._server = None
        self._link.close()
        self._loop.stop()

    # Clock and signals --------------------------------------------------------------------------------

    def _beat(self) -> None:
        # Due again whatever happens below.
        self._loop.call_later(_STOPPING_BEAT_S if self._is_stopping else self._beat_s, self._beat)
        self._reap()
        if self._server is not None:
            self._link.tell(self._server.heartbeat(), droppable=True)
            self._server.check()
            self._look_for_keeper()
        elif self._is_let_go and self._link.fault:
            self._let_go()  # the keeper is gone, and that was its last word
        else:
            self._report_waiting()

    def _look_for_keeper(self) -> None:
        if self._server is not None and self._ending is None:
            now = time.monotonic()
            self._orphans.look(now, alone_s=self._link.alone_s(now), use=self._server.use())

    def _report_waiting(self) -> None:
        now = time.monotonic()
        if now - self._reported >= _REPORT_EVERY_S:
            self._reported = now
            elapsed_s = round(now - self._asked_since, 1)
            self._log.info("waiting_for_keeper", elapsed_s=elapsed_s, fault=self._link.fault)

    def _reap(self) -> None:
        if self._server is not None:
            self._server.reap()
        else:
            self._parts.reap()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGUSR1:
            if self._server is not None:
                self._server.hand_over()
        elif not self._is_stopping:
            self._told_to_end(number)

    def _told_to_end(self, number: int) -> None:
        self._is_stopping = True
        self._log.info("told_to_end", signal=signal.Signals(number).name, served=self._server is not None)
        if self._server is None:
            self._let_go()
            return
        self._link.tell(Stopping())
        self._orphans.told_to_end(time.monotonic())
        self._loop.call_later(self._settings.stop_s, self._keeper_is_late)

    def _let_go(self) -> None:
        """Do as one whom nobody needs: flush and end."""
        if self._server is not None:
            self.finish()
            return
        self._code = 0
        self._link.close()
        self._loop.stop()

    def _look_let_go(self, until: float) -> None:
        """End as soon as the line does, which is a moment after the keeper's last word; after a while the beat looks."""
        if self._server is not None or not self._is_let_go:
            return
        if self._link.fault:
            self._let_go()
        elif time.monotonic() < until:
            self._loop.call_later(_LET_GO_LOOK_S, partial(self._look_let_go, until))

    def _keeper_is_late(self) -> None:
        if self._ending is None:
            self._log.warning("keeper_did_not_let_go", waited_s=self._settings.stop_s)
            self.finish()

    def finish(self) -> None:
        """Begin the end."""
        if self._ending is not None or self._server is None:
            return
        # An external client is killed by then, and its end goes the regular way.
        self._ending = self._loop.call_later(self._settings.flush_s + _LAST_WORDS_S, self._flush_is_late)
        self._server.stop()

    def _flush_is_late(self) -> None:
        if self._server is None:
            return
        waited_s = self._settings.flush_s
        self._log.error("flush_late", waited_s=waited_s, consequence="what was not written yet is lost")
        self._server.abandon()
        self.ended(daemon_codes.NOT_FLUSHED, clean=False)

    def _unexpected(self, error: Exception) -> None:
        with contextlib.suppress(Exception):  # without memory even for a line, serving goes on
            self._log.error("unexpected_error", fault=repr(error), exc_info=True)
