"""What serves a built-in filesystem: one process at a time, and another one as soon as it dies.

The first process of the container keeps its own copy of the descriptor, of the kernel's INIT and of the files without a name, runs no
filesystem code, and hands all that to a process that waits for it. A successor starts only after its predecessor has been
reaped: then all its threads are gone, and nothing that it still had in hand can be answered twice.
"""

import os
import socket
import time
from dataclasses import replace
from functools import partial

from sidecar import daemon_codes
from sidecar.daemon_settings import Master, Order
from sidecar.orphaned_mounts import Use
from sidecar.zygote_backings import BackingsLine
from sidecar.zygote_children import Child, how_ended, receive
from sidecar.zygote_deaths import BLAMELESS, Deaths, suspicion_of
from sidecar.zygote_numbers import NumbersLine
from sidecar.zygote_parts import ZygoteParts
from sidecar.zygote_service import Service
from sidecar.zygote_state import lacks_resend, make_state_dir, may_be_succeeded, resumable_state
from sidemount.host.fuse_mount import is_connection_gone
from sidemount.host.handover import (
    Bye,
    Condition,
    Failed,
    Heartbeat,
    Hello,
    Holds,
    Keep,
    Kept,
    Message,
    Numbers,
    Predecessor,
    Ready,
    Register,
    Registered,
    Serve,
    Source,
    Stop,
    Successor,
    Unregister,
    Usage,
)
from sidemount.host.logs import EventLog
from sidemount.host.loop import Timer
from sidemount.model.errors import BadMessage, HostFailure, Reason

_KEPT_WITHIN_S = 5.0
_HAND_OVER_WITHIN_S = 5.0
_DEAD_WITHIN_S = 5.0
_FRESH_STARTS_MAX = 3
_FORK_RETRY_S = 0.5
_LATE_S = 1.0
_FRAMES_AT_ONCE = 64
_LAST_FRAMES = 1 << 16  # more than a socket's queue can hold


class Zygote:
    """Implements `sidecar.daemon_settings.Server` for one connection."""

    def __init__(self, order: Order, parts: ZygoteParts, master: Master, log: EventLog) -> None:
        self._order = order.serve
        self._device = order.device
        self._source = order.source
        self._parts = parts
        self._master = master
        self._log = log
        self._generation = order.serve.generation - 1
        self._is_continuing = order.serve.continued
        self._kept: dict[int, int] = {}
        self._current: Service | None = None
        self._condition = Condition(takeover=order.serve.continued, state="")
        self._told = Condition(takeover=False, state="")
        self._deaths = Deaths()
        self._predecessor: Predecessor | None = None
        self._starts = 0
        self._pending: Timer | None = None
        self._has_served = order.serve.continued
        self._is_ending = False
        self._is_over = False
        self._checked_at = time.monotonic()
        self._numbers = NumbersLine(lambda message: self._master.tell(message))
        self._backings = BackingsLine(lambda *arguments: self._master.tell(*arguments))

    # What the keeper wants ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, once all that the keeper has kept is here."""
        self._parts.load(self._order.spec.filesystem)
        from sidecar.zygote_spec import settle_spec  # only now: it imports what `load` has to import first

        try:
            directory = make_state_dir(self._parts.settings.run_dir)
            self._order = settle_spec(self._order, directory, self._log)
        except BadMessage as error:
            self._lose(f"the connection cannot be continued: {error.message}")
            return
        if self._order.continued:
            # Also whoever follows a process that dies before it has said what it goes on with.
            state = resumable_state(self._parts.settings.run_dir)
            self._condition = replace(self._condition, state=state)
        if lacks_resend(self._order, self._parts.settings):
            self._log.warning(
                "no_takeover",
                reason=Reason.NO_RESEND.value,
                consequence="when its process dies, files that are open fail with ENOTCONN",
            )
        if self._order.kept:
            self._parts.loop.call_later(_KEPT_WITHIN_S, self._begin)
        else:
            self._begin()

    def introduce(self) -> tuple[Hello, int | None]:
        """Hand the descriptor back."""
        self._numbers.new_line()
        self._backings.new_line()
        hello = Hello(
            takeover=self._can_continue(),
            hands_back=True,
            generation=max(1, self._generation),
            init=self._order.init,
            state=self._condition.state,
        )
        return hello, self._device

    def adopted(self) -> None:
        """Tell which process serves, how it is, and hand over what is kept."""
        self._tell_successor()
        self._master.tell(self._told)
        if self._current is not None and self._current.is_ready:
            self._master.tell(Ready(generation=self._generation))
        self._tell_kept()
        self._numbers.adopted()
        self._backings.adopted()

    def keeper_registers(self) -> None:
        """Let the serving process know that there is somebody who registers files."""
        self._backings.registers(self._child())

    def take_registered(self, answer: Registered) -> None:
        """Take the keeper's answer to whoever serves."""
        self._backings.registered(answer, self._child())

    def tell_numbers(self) -> None:
        """Tell from now on what the volume counts."""
        self._numbers.wanted()

    def take_kept(self, key: int, descriptor: int) -> None:
        """Take what the keeper has kept; what comes too late or twice is not kept open."""
        if self._is_over or self._starts or key in self._kept:
            os.close(descriptor)
            return
        self._kept[key] = descriptor
        if len(self._kept) >= self._order.kept:
            self._begin()

    def heartbeat(self) -> Heartbeat:
        """Return what the serving process last told of itself."""
        return self._current.progress if self._current is not None else Heartbeat()

    def use(self) -> Use | None:
        """Return what the serving process last told of the volume's use, None if nobody serves."""
        service = self._current
        if service is None or not service.is_ready:
            return None
        progress = service.progress
        return Use(
            volume=self._order.spec.volume,
            handled=progress.handled,
            in_progress=progress.in_progress,
            open_handles=service.open_handles,
            told_at=service.usage_at,
        )

    def stop(self) -> None:
        """Have the serving process flush and end."""
        self._is_ending = True
        if self._current is None:
            self._end(clean=True)
        else:
            self._current.child.send(Stop())  # if that fails it is dying, and its end tells how

    def kill(self, generation: int) -> None:
        """End a process that hangs."""
        if generation == self._generation and self._current is not None:
            self._kill_hung("the keeper sees that nothing is answered")

    def hand_over(self) -> None:
        """Let a fresh process go on."""
        if self._current is None or self._is_ending or self._current.is_handing_over:
            return
        if not self._can_continue():
            self._log.warning("hand_over_refused", why="the connection cannot be continued")
            return
        self._log.info("hand_over", generation=self._generation)
        self._current.hand_over(_HAND_OVER_WITHIN_S)

    def abandon(self) -> None:
        """Kill what serves, and let go of everything."""
        if self._current is not None:
            self._current.child.kill()
        self._let_go()

    # Clock --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Look after the serving process."""
        now = time.monotonic()
        late_s, self._checked_at = now - self._checked_at - _LATE_S, now
        if self._is_over:
            return
        service = self._current
        if service is not None:
            if late_s > _LATE_S:
                service.pardon(now)  # it was us who were away
            self._judge(service, now)
        elif is_connection_gone(self._device):
            self._lose("the kernel has ended the connection")
            return
        elif self._starts and self._pending is None:
            self._go()  # whatever went wrong between a death and its succession
        self._tell_condition()

    def _judge(self, service: Service, now: float) -> None:
        if service.is_stuck(now, _DEAD_WITHIN_S):
            self._parts.stuck.append(service.child)
            self._parts.loop.unwatch(service.child.control)
            self._current = None
            self._lose(f"process {service.child.pid} was killed and does not end")
            return
        why = service.why_hung(
            now,
            hung_after_s=self._order.spec.hung_after_s,
            is_gone=is_connection_gone(self._device),
            flush_s=self._parts.settings.flush_s,
        )
        if why:
            self._kill_hung(why)

    def _kill_hung(self, why: str) -> None:
        if self._current is not None and self._current.killed_at is None:
            service = self._current
            self._log.warning("process_killed_as_hung", pid=service.child.pid, why=why)
            # What it works on is no cause if others have stopped it, or if its time was short.
            service.was_hung = not (service.is_handing_over or service.child.is_stopped())
            service.kill(time.monotonic())

    # Processes ----------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take ended processes off the table, ours and orphans."""
        for pid, status in self._parts.reap():
            if self._current is not None and pid == self._current.child.pid:
                self._ended(self._current, status)

    def _begin(self) -> None:
        if self._starts == 0 and not self._is_over and not self._is_ending:
            if len(self._kept) < self._order.kept:
                self._lose("the keeper has not given all that it kept")
                return
            if not self._kept:
                self._kept = dict(enumerate(_new_park()))
                self._tell_kept()
            self._go()

    def _go(self) -> None:
        """Let the next process serve."""
        if self._is_over or self._is_ending or self._current is not None:
            return
        if is_connection_gone(self._device):
            self._lose("the kernel has ended the connection")
            return
        try:
            child = self._parts.take()
        except (OSError, HostFailure) as error:
            self._log.warning("fork_failed", fault=str(error))
            self._go_later(_FORK_RETRY_S)
            return
        self._starts += 1
        self._generation += 1
        self._current = Service(child, time.monotonic())
        self._parts.loop.watch(child.control, partial(self._read, self._current))
        self._tell_successor()
        self._tell_condition()
        if not self._order_to_serve(child):
            child.kill()  # its end is seen like any other's

    def _go_later(self, delay_s: float) -> None:
        def go() -> None:
            self._pending = None
            self._go()

        self._pending = self._parts.loop.call_later(delay_s, go)

    def _order_to_serve(self, child: Child) -> bool:
        order = Serve(
            spec=self._order.spec,
            generation=self._generation,
            continued=self._is_continuing,
            init=self._order.init,
            heartbeat_ms=self._order.heartbeat_ms,
            kept=len(self._kept),
        )
        if self._predecessor is not None and not child.send(self._predecessor):
            return False
        if self._source >= 0 and not child.send(Source(), self._source):
            return False
        return child.send(order, self._device) and all(
            child.send(Kept(key=key), descriptor) for key, descriptor in self._kept.items()
        )

    def _read(self, service: Service, most: int = _FRAMES_AT_ONCE) -> None:
        for _ in range(most):
            try:
                received = receive(service.child.control)
            except BlockingIOError:
                return
            except BadMessage as error:
                self._log.error("bad_frame_of_own_process", pid=service.child.pid, fault=str(error))
                continue
            if received is None:
                self._parts.loop.unwatch(
                    service.child.control
                )  # its process is ending, and reaped in a moment
                return
            self._take(service, *received)

    def _child(self) -> Child | None:
        return None if self._current is None else self._current.child

    def _take(self, service: Service, message: Message, descriptor: int | None) -> None:
        match message:
            case Register() if descriptor is not None:
                self._backings.register(message, descriptor, service.child)
            case Holds():
                self._backings.begin(message, service.child)
            case Unregister():
                self._backings.unregister(message)
            case Heartbeat():
                service.beat(time.monotonic(), message)
            case Usage():
                service.use(time.monotonic(), message)
            case Numbers():
                self._numbers.take(message)
            case Ready():
                self._serves(service)
            case Condition():
                self._condition = message
                self._is_continuing = self._is_continuing or message.takeover
                self._tell_condition()
            case Bye():
                service.bye = message
            case Failed():
                service.failure = message
            case _:
                self._log.warning("message_ignored", kind=type(message).__name__)

    def _serves(self, service: Service) -> None:
        service.is_ready = self._has_served = True
        self._log.info(
            "serving",
            generation=self._generation,
            pid=service.child.pid,
            since_go_ms=round((time.monotonic() - service.since) * 1000, 1),
        )
        self._master.tell(Ready(generation=self._generation))
        self._tell_condition()
        self._parts.refill()

    def _ended(self, service: Service, status: int) -> None:
        """Decide what follows from the death of the process that served."""
        self._read(service, most=_LAST_FRAMES)
        self._parts.loop.unwatch(service.child.control)
        service.child.close()
        self._current = None
        how = how_ended(status)
        is_clean = service.bye is not None and service.bye.clean
        suspicion = suspicion_of(status, hung=service.was_hung, out_of_memory=self._parts.was_out_of_memory())
        # Who has not come to serve has read nothing that it could have died of.
        self._predecessor = Predecessor(suspicion=suspicion if service.is_ready else BLAMELESS)
        if self._is_over:
            return
        if self._is_ending:
            self._end(clean=is_clean)
        elif is_connection_gone(self._device):
            self._lose("the kernel has ended the connection", clean=is_clean)
        elif service.is_handing_over and is_clean:
            self._log.info("handed_over", generation=self._generation)
            self._go()
        else:
            self._succeed(service, how, from_outside=suspicion == BLAMELESS)

    def _succeed(self, service: Service, how: str, *, from_outside: bool) -> None:
        failure = service.failure
        why = failure.detail if failure is not None else how
        now = time.monotonic()
        pause_s = self._deaths.died(now, why, fruitful=service.is_fruitful(now), from_outside=from_outside)
        if self._has_served:
            is_hopeless = failure.lasting if failure is not None else self._deaths.is_hopeless
            if not self._can_continue():
                self._lose(f"the process that served has ended ({how}) and cannot be succeeded")
                return
            if is_hopeless:
                self._lose(f"no process can continue it: {why}")
                return
        elif failure is not None:
            self._fail(HostFailure(failure.detail, hint=failure.hint))
            return
        elif self._starts >= _FRESH_STARTS_MAX:
            self._fail(HostFailure(f"{self._starts} processes ended before they served: {how}"))
            return
        if pause_s:
            self._parts.refill()  # or the next one would have to be forked when its turn has come
            self._go_later(pause_s)
        else:
            self._go()
        # Not before: the successor waits for its order, and applications for the successor.
        self._log.warning("process_died", pid=service.child.pid, how=how, pause_s=pause_s)
        self._tell_condition()

    def _can_continue(self) -> bool:
        return self._condition.takeover and may_be_succeeded(self._order, self._parts.settings)

    # Ends ---------------------------------------------------------------------------------------------

    def _end(self, *, clean: bool) -> None:
        self._let_go()
        self._master.ended(0 if clean else daemon_codes.NOT_FLUSHED, clean=clean)

    def _lose(self, detail: str, *, clean: bool = True) -> None:
        self._let_go()
        self._master.lost(detail, clean=clean)

    def _fail(self, error: HostFailure) -> None:
        self._let_go()
        self._master.failed(error)

    def _let_go(self) -> None:
        if not self._is_over:
            self._is_over = True
            for descriptor in (self._device, *self._kept.values()):
                os.close(descriptor)
            if self._source >= 0:
                os.close(self._source)
            self._kept.clear()

    # What the keeper is told --------------------------------------------------------------------------

    def _tell_successor(self) -> None:
        service = self._current
        if service is not None:
            self._master.tell(
                Successor(generation=self._generation),
                lambda: service.child.pidfd if self._current is service else None,
            )

    def _tell_kept(self) -> None:
        for key in self._kept:
            self._master.tell(Keep(key=key), partial(self._kept.get, key))

    def _tell_condition(self) -> None:
        condition = Condition(
            takeover=self._can_continue(),
            state=self._condition.state,
            abnormal=self._deaths.abnormal(time.monotonic()),
            serving=self._current is not None,
        )
        if condition != self._told:
            self._told = condition
            if condition.abnormal:
                self._log.warning("abnormal", what=condition.abnormal)
            self._master.tell(condition)


def _new_park() -> tuple[int, int]:
    """Return the two ends of a `sidecar.takeover.park.Park`, where the serving process leaves files that have lost their names."""
    inlet, outlet = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return inlet.detach(), outlet.detach()
