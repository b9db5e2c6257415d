"""One generation of a daemon for tests: takes over from the one before it and serves until it is killed.

A `Fault` leaves one of the conditions of a takeover out, so that a test can show that it is needed.
"""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import pyfuse3

from sidecar.daemon_session import FuseSession, keep_buffers_in_memory, make_buffer_resident
from sidecar.detour import Detour
from sidecar.directory.listing import Directories
from sidecar.directory.store import Store
from sidecar.filesystems import Succession, build_operations
from sidecar.poll_runtime import PollRuntime
from sidecar.takeover import leftovers, shared_ledger, state
from sidecar.takeover.drain import Drained, drain, requeue
from sidecar.takeover.handle_ledger import Handles, SharedHandleLedger
from sidecar.takeover.journal import Journal
from sidecar.takeover.park import Park
from sidecar.takeover.shared_journal import SharedStep
from sidecar.takeover.table import Table, load_table
from sidemount.model.mountspec import MountSpec
from sidemount.stores.local_store import LocalStore
from tests.sidecar.directory.daemon import drop_to
from tests.sidecar.takeover.absent_pages import AbsentPages

_MAKING = ("create", "mkdir", "mknod", "symlink", "link")
_TAKING = ("unlink", "rmdir", "rename", "setxattr", "removexattr")


class Fault(Enum):
    """A condition that is left out."""

    NONE = "none"
    NO_INIT = "no-init"
    NO_RESEND = "no-resend"
    NO_JOURNAL = "no-journal"
    NO_SECOND_RESEND = "no-second-resend"
    NO_PREFAULT = "no-prefault"
    NO_NODES = "no-nodes"
    NO_HANDLES = "no-handles"
    NO_HOLDER = "no-holder"
    NO_ERRANDS = "no-errands"
    TOUCHES_MOUNT = "touches-mount"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a volume is served in a test. `uri` is its source's, "" for the directory `source`.

    `quiet_s`: how long a node must be let be before the kernel is asked for it. `suicide`: how likely a daemon kills itself at each boundary of an operation, `deadly_listing`: when it has
    listed something. `stillborn`: the first one dies before INIT is answered. `deadly_operation`: every daemon dies of the second
    operation on names that it does, once it is done and before it is noted. `deadly_pages`: it dies while the kernel copies a
    request into a page that is absent.
    """

    source: str
    target: str
    state_dir: str
    uri: str = ""
    cache: str = ""
    secrets: str = ""
    filesystem: str = "directory"
    options: dict[str, Any] = field(default_factory=dict)
    fault: Fault = Fault.NONE
    suicide: float = 0.0
    deadly_listing: float = 0.0
    stillborn: bool = False
    quiet_s: float = 10.0
    deadly_operation: bool = False
    deadly_pages: bool = False


def serve(
    plan: Plan,
    device: int,
    init: bytes,
    park: Park,
    *,
    resume: bool,
    say: Callable[[dict[str, Any]], None],
) -> None:
    """Serve to the end. `say` is given what is worth knowing, once everything is served."""
    began = time.perf_counter()
    _leave_out(plan.fault)
    vars(leftovers)["QUIET_S"] = plan.quiet_s
    if plan.suicide:
        _be_suicidal(plan.suicide)
    if plan.deadly_listing:
        _die_of_listing(plan.deadly_listing)
    if plan.deadly_operation:
        _die_of_operations()
    runtime = PollRuntime()
    _prepare_buffers(plan, runtime)
    held = park.recover() if resume else {}
    if not resume:
        park.clear()
    spec = MountSpec(
        volume="test",
        driver_class="directory",
        source=plan.uri or f"dir://{plan.source}",
        filesystem=plan.filesystem,
        options=tuple(sorted(plan.options.items())),
    )
    operations = build_operations(
        spec,
        source=plan.source,
        secrets=plan.secrets,
        cache=plan.cache,
        state_dir=plan.state_dir,
        in_thread=runtime.in_thread,
        succession=Succession(resume=resume, holder=park, held=held),
    )
    if plan.fault is not Fault.NO_ERRANDS:
        runtime.errands = operations.errands
    loaded = time.perf_counter()
    drained = Drained()
    if resume and plan.fault is not Fault.NO_RESEND:
        drained = drain(device, newcomers=operations.memory.newcomers)
        operations.resume(drained)
        operations.memory.newcomers.clear()
        if plan.fault is not Fault.NO_SECOND_RESEND:
            requeue(device, drained)
    if resume and plan.fault is Fault.TOUCHES_MOUNT:
        os.statvfs(plan.target)
    drop_to(0, "production")

    def served() -> None:
        say(
            {
                "state_id": operations.state_id,
                "load_ms": (loaded - began) * 1e3,
                "drain_ms": (time.perf_counter() - loaded) * 1e3,
                "drained": drained.requests,
                "operations": len(drained.operations),
                "nodes": len(operations._filesystem.nodes),  # type: ignore[attr-defined]  # a test may look
                "size_bytes": getattr(operations.memory, "size_bytes", 0),
            }
        )

    operations.memory.on_lost = lambda reason: say({"lost": reason})
    if resume and plan.fault is Fault.NO_INIT:
        pyfuse3.init(operations, f"/dev/fd/{os.dup(device)}", set(pyfuse3.default_options))
        served()
        runtime.run(pyfuse3.main)
        return
    operations.detour = Detour(partial(setattr, runtime, "once_answered"))
    session = FuseSession(
        operations, operations, os.dup(device), drained.init or init, served, operations.detour
    )
    if plan.stillborn and not resume:
        operations.on_init = _die
    runtime.run(session.main)  # type: ignore[arg-type]  # an awaitable of pyfuse3's


def _prepare_buffers(plan: Plan, runtime: PollRuntime) -> None:
    """Have read buffers resident, unless that is what is left out."""
    has_buffers = plan.fault is not Fault.NO_PREFAULT
    if plan.deadly_pages:
        keep_buffers_in_memory()
        pages = AbsentPages()
        runtime.before_first_read = partial(pages.watch, make_buffer_resident if has_buffers else None)
    elif has_buffers:
        keep_buffers_in_memory()
        runtime.before_first_read = make_buffer_resident


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _leave_out(fault: Fault) -> None:
    match fault:
        case Fault.NO_JOURNAL:
            vars(state)["SharedJournal"] = _NoJournal
        case Fault.NO_NODES:
            vars(shared_ledger)["load_table"] = _root_alone
        case Fault.NO_HANDLES:
            vars(state)["SharedHandleLedger"] = _NoHandles
        case Fault.NO_HOLDER:
            setattr(Park, "hold", lambda self, key, descriptor: False)  # noqa: B010


class _NoJournal(Journal):
    def __init__(self, *_: Any) -> None:
        super().__init__()

    def stop(self) -> None:
        """Do nothing."""


class _NoHandles(SharedHandleLedger):
    def load(self) -> Handles:
        super().load()
        return {}


def _root_alone(*arguments: Any) -> Table:
    table = load_table(*arguments)
    return Table({node: what for node, what in table.nodes.items() if node == 1})


def _be_suicidal(likely: float) -> None:
    """Kill this process now and then: before and after the store is changed, and between all that is noted of it."""
    dice = random.Random()

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            _perhaps_die(dice, likely)
            result = original(*arguments, **named)
            _perhaps_die(dice, likely)
            return result

        return wrapped

    for name in (*_MAKING, *_TAKING):
        setattr(Store, name, around(getattr(Store, name)))
    for name in ("put", "copy", "delete", "delete_many", "complete"):
        setattr(LocalStore, name, around(getattr(LocalStore, name)))
    for name in ("intend", "done", "opens"):
        setattr(SharedStep, name, around(getattr(SharedStep, name)))
    setattr(SharedHandleLedger, "opened", around(SharedHandleLedger.opened))  # noqa: B010
    ledger = shared_ledger.SharedLedger
    for name in ("node", "link", "unlink", "gone"):
        setattr(ledger, name, around(getattr(ledger, name)))


def _die_of_operations() -> None:
    """Kill this process after the second change of names that it has made: the first may be one that its predecessor died of."""
    done = itertools.count(1)

    def deadly(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            if next(done) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    for name in (*_MAKING, *_TAKING):
        setattr(Store, name, deadly(getattr(Store, name)))


def _die_of_listing(likely: float) -> None:
    dice, original = random.Random(), Directories.readdir

    def readdir(*arguments: Any) -> None:
        original(*arguments)
        _perhaps_die(dice, likely)

    setattr(Directories, "readdir", readdir)  # noqa: B010


def _perhaps_die(dice: random.Random, likely: float) -> None:
    if dice.random() < likely:
        os.kill(os.getpid(), signal.SIGKILL)
