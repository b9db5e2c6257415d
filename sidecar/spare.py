"""The life of a forked process of the daemon: wait for its turn, then serve what a keeper has mounted, or go on serving it."""

import errno
import gc
import logging
import os
import signal
import socket
import threading
from dataclasses import dataclass
from functools import partial

from sidecar import daemon_codes
from sidecar.daemon_runtime import Runtime, make_runtime
from sidecar.daemon_session import FuseSession, keep_buffers_in_memory, make_buffer_resident
from sidecar.daemon_work import CountedOperations, Work
from sidecar.detour import Detour
from sidecar.filesystems import Succession, build_operations
from sidecar.protocol import FilesystemOperations
from sidecar.spare_line import SpareLine, Turn, wait_for_turn
from sidecar.takeover.drain import drain, requeue
from sidecar.takeover.park import Park
from sidecar.takeover.suspects import Suspects, alone_for_s, forget_suspects
from sidecar.zygote_deaths import BLAMELESS
from sidecar.zygote_memory import has_room, leave_reserve, limit_data
from sidecar.zygote_state import PARK_ENDS, may_be_succeeded
from sidemount.host import process_attributes
from sidemount.host.logs import EventLog
from sidemount.host.own_descriptors import close_all_but
from sidemount.host.volume_backings import PASSING_FILESYSTEM
from sidemount.model.errors import HostFailure, OperationPending, Unsupported, VolumeError

_PASSED_OVER = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # the first process decides what they mean
_BUFFERS_READY = 2  # what draining and the filesystem take before the first request is read
_STACK_BYTES = 512 << 10  # counted by RLIMIT_DATA in full, for every thread
# The connection is gone; the kernel cannot resend; the source is another one now. Without a number it is no store's fault.
_LASTING_ERRNOS = frozenset({errno.ENODEV, errno.EINVAL, errno.ESTALE, 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareSettings:
    """What every process of a daemon has in common. `data_bytes`: its RLIMIT_DATA, None for none. `resend`: see `DaemonSettings`."""

    state_dir: str
    source: str
    secrets: str
    cache: str
    runtime: str
    resend: bool
    data_bytes: int | None


def run_spare(settings: SpareSettings, parent: int, log: EventLog, control: socket.socket) -> int:
    """Do everything that the process does, and return its exit code."""
    try:
        _prepare(settings, control)
        if os.getppid() != parent:
            return 0
        service = _Service(settings, control, log)
        keep_buffers_in_memory()
        make_buffer_resident(_BUFFERS_READY)
        turn = wait_for_turn(control)
        return 0 if turn is None else service.run(turn)
    except Exception:
        log.error("process_failed", exc_info=True)
        return daemon_codes.DEFECT
    finally:
        logging.shutdown()


def _prepare(settings: SpareSettings, control: socket.socket) -> None:
    process_attributes.die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in _PASSED_OVER:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    close_all_but({0, 1, 2, control.fileno()})
    threading.stack_size(_STACK_BYTES)
    if settings.data_bytes is not None:
        limit_data(settings.data_bytes)


class _Service:
    """A process, from before its turn has come to its end."""

    _turn: Turn

    def __init__(self, settings: SpareSettings, control: socket.socket, log: EventLog) -> None:
        self._settings = settings
        self._log = log
        self._work = Work()
        self._runtime: Runtime = make_runtime(settings.runtime)
        self._line = SpareLine(control, self._work, end=self._runtime.terminate)

    def run(self, turn: Turn) -> int:
        """Serve to the end and return the exit code."""
        self._turn = turn
        self._log = self._log.bind(generation=turn.serve.generation)
        gc.enable()
        self._line.begin(turn.serve)
        try:
            session = self._begin()
        except VolumeError as error:
            self._line.fail(error.message, error.hint, lasting=_is_lasting(error))
            return daemon_codes.NOT_STARTED
        is_clean = self._serve(session)
        self._log.info("daemon_ended", handled=self._work.handled, clean=is_clean)
        self._line.say_bye(clean=is_clean)
        return 0 if is_clean else daemon_codes.NOT_FLUSHED

    def _begin(self) -> FuseSession:
        turn = self._turn
        operations = self._operations()
        self._runtime.run_errands(operations.errands)
        self._runtime.before_first_read(make_buffer_resident)
        init = turn.serve.init
        if turn.serve.continued:
            suspects = Suspects.load(self._settings.state_dir)
            newcomers = operations.memory.newcomers
            judge, is_judged_before = partial(self._judge, suspects), len(suspects) > 0
            drained = drain(turn.device, judge, is_judged_before=is_judged_before, newcomers=newcomers)
            operations.resume(drained)
            newcomers.clear()
            requeue(turn.device, drained)
            init = drained.init or init
            self._log.info("resumed", unanswered=drained.requests, operations=len(drained.operations))
        else:
            forget_suspects(self._settings.state_dir)
        if self._settings.data_bytes is not None and operations.state_id:
            leave_reserve()
        if self._settings.data_bytes is not None:
            operations.memory.ledger.bound_by(has_room)
        operations.memory.on_lost = self._lost
        self._tell_condition(operations.state_id)
        self._flush = getattr(operations, "close", None)
        counted = CountedOperations(operations, self._work)
        operations.detour = self._detour()
        return FuseSession(
            operations,
            counted,
            turn.device,
            init,
            served=self._line.ready,
            detour=operations.detour,
            passes_through=operations.detour is not None and self._passes_through(),
        )

    def _detour(self) -> Detour | None:
        once_answered = self._runtime.once_answered
        return None if once_answered is None else Detour(once_answered)

    def _passes_through(self) -> bool:
        """Tell whether the volume is of a kind whose files may be passed through."""
        spec = self._turn.serve.spec
        return spec.read_only and spec.filesystem == PASSING_FILESYSTEM

    def _judge(self, suspects: Suspects, in_hand: frozenset[int]) -> frozenset[int]:
        """Return which of the requests that a dead process worked on are refused: those that end every process."""
        directory, predecessor = self._settings.state_dir, self._turn.predecessor
        # A container that dies as a whole may have been killed from outside, and nobody is left who could tell.
        suspects.note_death(in_hand, BLAMELESS if predecessor is None else predecessor.suspicion)
        suspects.save(directory)
        if suspects.must_be_alone:
            self._runtime.serve_one_by_one(alone_for_s(self._turn.serve.spec.hung_after_s))
        if suspects.condemned:
            self._work.handled += len(suspects.condemned)
            self._line.tell_progress()  # to refuse it is progress: the next process starts without a pause
            self._log.error(
                "request_refused",
                requests=len(suspects.condemned),
                why="processes died again and again while they worked on it alone",
                consequence="its caller gets EIO",
            )
        return suspects.condemned

    def _operations(self) -> FilesystemOperations:
        """Return what serves. That nothing can be kept for a successor is no reason to serve nobody."""
        succession = self._succession()
        try:
            return self._build(succession)
        except HostFailure as error:
            if succession is None or succession.resume:
                raise
            operations = self._build(None)  # or raise what is wrong with the volume itself
            self._log.warning(
                "state_not_kept",
                fault=error.message,
                hint=error.hint,
                consequence="the connection ends with this process",
            )
            return operations

    def _build(self, succession: Succession | None) -> FilesystemOperations:
        settings, given = self._settings, self._turn.source
        return build_operations(
            self._turn.serve.spec,
            source=settings.source if given < 0 else f"/proc/self/fd/{given}",
            secrets=settings.secrets,
            cache=settings.cache,
            state_dir=settings.state_dir,
            in_thread=self._runtime.in_thread,
            succession=succession,
            registrar=self._line.registrar if succession is not None and self._passes_through() else None,
        )

    def _succession(self) -> Succession | None:
        """Return how this process came to serve and what it leaves; None if nobody can come after it."""
        serve, kept = self._turn.serve, self._turn.kept
        if not may_be_succeeded(serve, self._settings) or len(kept) != PARK_ENDS:
            if serve.continued:
                raise Unsupported(f"volume {serve.spec.volume}: the connection cannot be continued here")
            return None
        park = Park.adopt(kept[0], kept[1])
        if not serve.continued:
            park.clear()
            return Succession(resume=False, holder=park, held={})
        return Succession(resume=True, holder=park, held=park.recover())

    def _lost(self, reason: str) -> None:
        self._log.warning(
            "state_given_up", reason=reason, consequence="the connection ends with this process"
        )
        self._tell_condition("")

    def _tell_condition(self, state: str) -> None:
        self._line.tell_condition(takeover=bool(state), state=state)

    def _serve(self, session: FuseSession) -> bool:
        """Serve to the end, flush, and return whether both went well."""
        is_clean = True
        try:
            self._runtime.run(session.main)
        except Exception:
            self._log.error("session_failed", exc_info=True)
            is_clean = False
        if session.init_error is not None:
            self._log.error("init_failed", fault=repr(session.init_error))
            is_clean = False
        try:
            if self._flush is not None:
                self._flush()
        except Exception as error:
            self._log.error("flush_failed", fault=repr(error))
            is_clean = False
        return is_clean


def _is_lasting(error: VolumeError) -> bool:
    """Tell whether another process would fail in the same way. A store may come back; a bad state stays bad."""
    match error:
        case HostFailure():
            return error.errno in _LASTING_ERRNOS
        case OperationPending():
            return False
        case _:
            return True
