"""What is published on this node: carries plans out, undoes what fails, keeps alive what is there, tears down what shall go.

Every operation is bounded and belongs to one target; while it runs, another one on that target is refused at once. It goes on
when its caller does not wait for it any more.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from csi import targets
from csi.faults import NotFound, TooLate, WrongState
from csi.keeper_link import Answer, KeeperLink, Kept, VolumeStatus
from csi.launcher import Ended, Launcher
from csi.publish_plan import PublishPlan, Step
from csi.records import Record, RecordStore, Stage, target_name
from csi.targets import Targets
from sidemount.host.logs import log
from sidemount.host.session import Phase
from sidemount.model.errors import (
    HostFailure,
    NotReady,
    OperationPending,
    PublishConflict,
    VolumeError,
    shown,
)

_DROP_S = 45.0  # more than the keeper takes for a daemon that never flushes
_LOOK_AGAIN_S = 0.5
_READY_S = 10.0
_LEFTOVER_AGAIN_S = 10.0

Observe = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Operation:
    """What is being done at a target. `removes`: it ends in nothing being there; `is_own`: nobody has asked for it."""

    volume_id: str
    is_exclusive: bool
    removes: bool
    is_own: bool
    task: "asyncio.Task[None]"


class Publications:
    """Every target of this node."""

    def __init__(
        self,
        store: RecordStore,
        roots: Targets,
        keeper: KeeperLink,
        launcher: Launcher,
        *,
        mount_timeout_s: float,
        observe: Observe = lambda point: None,
    ) -> None:
        """`observe` hears of every step before and after it is done: where a crash may happen."""
        self._store = store
        self._roots = roots
        self._keeper = keeper
        self._launcher = launcher
        self._mount_timeout_s = mount_timeout_s
        self._observe = observe
        self._log = log("csi.publications")
        self._records: dict[str, Record] = {}  # by resolved path
        self._under_way: dict[str, _Operation] = {}  # by resolved path
        self._given_up: set[str] = set()  # paths whose publish nobody needs any more
        self._tasks: set[asyncio.Task[None]] = set()
        self._events: dict[str, asyncio.Event] = {}
        self._is_ready = asyncio.Event()
        self._is_closed = False

    @property
    def is_ready(self) -> bool:
        """Tell whether what was there before is known."""
        return self._is_ready.is_set()

    # Before and after --------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Take up what an earlier plugin has left: keep what is published, undo what nobody was told of. Raises VolumeError."""
        for record in await asyncio.to_thread(self._store.load):
            self._records[record.path] = record
        for record in list(self._records.values()):
            if record.stage is Stage.PUBLISHED and not await asyncio.to_thread(_is_stale, record):
                try:
                    await self._launcher.start(record, {})
                except VolumeError as error:
                    self._log.error("daemon_not_started", volume=record.volume_id, fault=str(error))
                self._hold(record)
            else:
                self._clear_leftover(record)
        self._log.info("reconciled", targets=len(self._records))
        self._is_ready.set()

    async def close(self, timeout_s: float) -> None:
        """Wait for what is under way. Mounts stay."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in list(self._tasks):
            task.cancel()

    def changed(self, name: str) -> None:
        """Note that keeper or launcher has news of a target."""
        event = self._events.get(name)
        if event is not None:
            event.set()
        status = self._keeper.status(name)
        record = next((record for record in self._records.values() if record.name == name), None)
        if status.hung and record is not None:
            self._launcher.replace(record, status.hung)

    # Publish -----------------------------------------------------------------------------------------

    async def publish(
        self,
        volume_id: str,
        target: str,
        arguments: str,
        make_plan: Callable[[str], PublishPlan],
        *,
        exclusive: bool,
    ) -> None:
        """See that a volume is live at a target. Raises VolumeError; nothing is left then, unless it was there before."""
        await self._wait_ready()
        path = await asyncio.to_thread(self._roots.resolve, target)
        under_way = self._under_way.get(path)
        if under_way is not None and under_way.is_own:
            await asyncio.wait({under_way.task})  # what it clears is in the way
        self._refuse_busy(path)
        known = self._records.get(path)
        if known is not None and known.stage is Stage.PUBLISHED:
            _check_same(known, volume_id, arguments)
            await self._run(path, known, self._ensure_live(known))
            return
        self._check_exclusive(volume_id, path, exclusive=exclusive)
        plan = make_plan(path)
        await self._run(path, plan.record, self._publish(plan, known))

    async def _publish(self, plan: PublishPlan, leftover: Record | None) -> None:
        if leftover is not None:
            await self._tear_down(leftover, remove_target=leftover.made)
        record = plan.record
        await asyncio.to_thread(targets.check_free, record.path)
        if targets.own_layers(record.path):
            await self._detach(record)  # of a state that was lost
        done: list[Step] = []
        try:
            for step in plan.steps:
                done.append(step)
                self._observe(f"before {step.value}")
                record = await self._do(step, record, plan)
                self._observe(f"after {step.value}")
        except BaseException as error:
            await self._undo(record, done, error)
            raise
        self._log.info("published", volume=record.volume_id, target=record.target)

    async def _do(self, step: Step, record: Record, plan: PublishPlan) -> Record:
        match step:
            case Step.REMEMBER:
                made = not await asyncio.to_thread(os.path.lexists, record.path)
                return await self._remember(record.at(Stage.PUBLISHING, made=made))
            case Step.MAKE_TARGET:
                await asyncio.to_thread(targets.make, record.path)
            case Step.LAUNCH:
                await self._launcher.start(record, plan.secrets)
            case Step.HOLD:
                self._hold(record)
            case Step.AWAIT_LIVE:
                await self._await_live(record, is_new=True)
            case Step.COMMIT:
                return await self._remember(record.at(Stage.PUBLISHED))
        return record

    async def _undo(self, record: Record, done: list[Step], error: BaseException) -> None:
        self._log.warning("publish_undone", volume=record.volume_id, target=record.target, fault=str(error))
        try:
            for step in reversed(done):
                self._observe(f"before undoing {step.value}")
                await self._undo_step(step, record, remove_target=record.made)
                self._observe(f"after undoing {step.value}")
        except VolumeError as fault:
            self._log.error("undo_failed", volume=record.volume_id, target=record.target, fault=str(fault))
            with contextlib.suppress(HostFailure):
                left = await self._remember(record.at(Stage.REMOVING))
                asyncio.get_running_loop().call_later(_LEFTOVER_AGAIN_S, self._clear_leftover, left)

    async def _undo_step(self, step: Step, record: Record, *, remove_target: bool) -> None:
        match step:
            case Step.REMEMBER:
                await asyncio.to_thread(self._store.remove, record)
                self._records.pop(record.path, None)
            case Step.MAKE_TARGET:
                if remove_target and not await asyncio.to_thread(targets.remove, record.path):
                    self._log.warning("target_not_empty", volume=record.volume_id, target=record.target)
            case Step.LAUNCH:
                await self._launcher.stop(record)
            case Step.HOLD:
                await self._release(record)
            case Step.AWAIT_LIVE | Step.COMMIT:
                pass

    async def _ensure_live(self, record: Record) -> None:
        if not await self._is_live(record):
            await self._await_live(record, is_new=False)

    async def _is_live(self, record: Record) -> bool:
        """Tell whether the volume is served, shown and answers."""
        if not self._keeper.status(record.name).is_live:
            return False
        try:
            return not (await self._keeper.check(record.name)).fault
        except NotReady:
            return False

    async def _await_live(self, record: Record, *, is_new: bool) -> None:
        """Wait until the volume answers at its target. Raises TooLate, or what its daemon has said."""
        until = time.monotonic() + self._mount_timeout_s
        event = self._events.setdefault(record.name, asyncio.Event())
        try:
            while True:
                event.clear()
                status = self._keeper.status(record.name)
                ended = self._launcher.ended(record)
                if record.path in self._given_up:
                    raise OperationPending(
                        f"volume {shown(record.volume_id)}: given up, for it is being unpublished"
                    )
                if is_new and ended is not None:
                    raise _start_failure(record, ended)
                if is_new and status.phase == Phase.DETACHED.value and status.fault:
                    raise HostFailure(f"volume {shown(record.volume_id)}: {status.fault}")
                if await self._is_live(record):
                    return
                if time.monotonic() > until:
                    raise _late(record, status, ended, self._mount_timeout_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), _LOOK_AGAIN_S)
        finally:
            self._events.pop(record.name, None)

    # Unpublish ---------------------------------------------------------------------------------------

    async def unpublish(self, volume_id: str, target: str) -> None:
        """See that nothing of a volume is left at a target. Fine if nothing is there. Raises VolumeError."""
        await self._wait_ready()
        await self._give_up_publish(volume_id, target)
        record = await self._find(target)
        if record is None:
            await self._remove_unknown(target)
            return
        if record.volume_id != volume_id:
            raise WrongState(
                f"target_path {shown(target)} shows volume {shown(record.volume_id)}, not {shown(volume_id)}",
                hint="nothing was changed",
            )
        under_way = self._under_way.get(record.path)
        if under_way is not None and under_way.removes:
            await asyncio.shield(under_way.task)  # whoever began it, this is what is asked for
        else:
            self._refuse_busy(record.path)
            await self._run(record.path, record, self._tear_down(record, remove_target=True), removes=True)
        self._log.info("unpublished", volume=volume_id, target=target)

    async def _give_up_publish(self, volume_id: str, target: str) -> None:
        """End a publish that still waits: whoever unpublishes does not want it, and must not wait for its time to be up."""
        path = await self._path_of(target)
        under_way = None if path is None else self._under_way.get(path)
        if path is None or under_way is None or under_way.removes or under_way.volume_id != volume_id:
            return
        self._given_up.add(path)
        try:
            event = self._events.get(target_name(path))
            if event is not None:
                event.set()
            await asyncio.wait({under_way.task})
        finally:
            self._given_up.discard(path)

    async def _tear_down(self, record: Record, *, remove_target: bool) -> None:
        """Take everything away. The record says so from the beginning, so that nothing can bring it back."""
        record = await self._remember(record.at(Stage.REMOVING))
        for step in reversed(Step):
            self._observe(f"before undoing {step.value}")
            await self._undo_step(step, record, remove_target=remove_target)
            self._observe(f"after undoing {step.value}")

    async def _remove_unknown(self, target: str) -> None:
        """Take away what a lost state has left. Whatever is not ours stays."""
        path = await self._path_of(target)
        if path is None:
            return
        self._refuse_busy(path)
        foreign = await asyncio.to_thread(targets.foreign_mount, path)
        if foreign is not None:
            raise WrongState(f"target_path {shown(target)}: something else is mounted there")
        if targets.own_layers(path):
            answer = await self._keeper.detach(path)
            if answer.fault:
                raise HostFailure(f"target_path {shown(target)}: {answer.fault}", errno=answer.errno)
        if not await asyncio.to_thread(targets.remove, path):
            self._log.warning("target_not_empty", target=target)

    def _clear_leftover(self, record: Record) -> None:
        """Tear down what a crash or a failure has left; again after a while, until it is done or somebody else has done it."""
        if self._records.get(record.path) is not record or self._is_closed:
            return
        if record.path in self._under_way:
            asyncio.get_running_loop().call_later(_LEFTOVER_AGAIN_S, self._clear_leftover, record)
            return
        remove_target = record.made or record.stage is not Stage.PUBLISHING
        tear_down = self._tear_down(record, remove_target=remove_target)
        self._begin(record.path, record, tear_down, removes=True, is_own=True).add_done_callback(
            lambda task: self._leftover_tried(record, task)
        )

    def _leftover_tried(self, record: Record, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._log.info("leftover_cleared", volume=record.volume_id, target=record.target)
            return
        self._log.error("leftover_stays", volume=record.volume_id, target=record.target, fault=str(error))
        left = self._records.get(record.path, record)
        asyncio.get_running_loop().call_later(_LEFTOVER_AGAIN_S, self._clear_leftover, left)

    # Looking -----------------------------------------------------------------------------------------

    async def statistics(self, volume_id: str, target: str) -> tuple[VolumeStatus, Answer | None]:
        """Return how a published volume is, and its mount's statistics: None if it is not live. Raises NotFound, NotReady."""
        await self._wait_ready()
        record = await self._find(target)
        if record is None or record.volume_id != volume_id or record.stage is not Stage.PUBLISHED:
            raise NotFound(f"volume {shown(volume_id)} is not published at {shown(target)}")
        status = self._keeper.status(record.name)
        if not status.is_live:
            return status, None
        return status, await self._keeper.check(record.name)

    async def _find(self, target: str) -> Record | None:
        path = await self._path_of(target)
        return None if path is None else self._records.get(path)

    async def _path_of(self, target: str) -> str | None:
        """Return where a target really is: as its record says, for its parents may be gone since; None if nowhere."""
        for record in self._records.values():
            if target in (record.target, record.path):
                return record.path
        if self._roots.root_of(target) is None:
            return None
        try:
            return await asyncio.to_thread(self._roots.resolve, target)
        except VolumeError:
            return None

    # One at a time -----------------------------------------------------------------------------------

    async def _wait_ready(self) -> None:
        try:
            await asyncio.wait_for(self._is_ready.wait(), _READY_S)
        except TimeoutError:
            raise NotReady("the node service is still starting", hint="try again") from None

    def _refuse_busy(self, path: str) -> None:
        if path in self._under_way:
            raise OperationPending(f"target_path {shown(path)}: an operation on it is under way")

    def _check_exclusive(self, volume_id: str, path: str, *, exclusive: bool) -> None:
        for other, operation in self._under_way.items():
            if other != path and operation.volume_id == volume_id and (exclusive or operation.is_exclusive):
                raise OperationPending(f"volume {shown(volume_id)}: an operation on it is under way")
        for record in self._records.values():
            if record.path == path or record.volume_id != volume_id or record.stage is not Stage.PUBLISHED:
                continue
            if (exclusive or record.mode.is_exclusive) and not _is_stale(record):
                raise WrongState(
                    f"volume {shown(volume_id)} is published at {shown(record.target)} already, and one of both access "
                    "modes allows one target of a node only",
                    hint="unpublish it there first, or use SINGLE_NODE_MULTI_WRITER or a MULTI_NODE mode",
                )

    async def _run(
        self, path: str, record: Record, operation: Coroutine[Any, Any, None], *, removes: bool = False
    ) -> None:
        """Carry an operation out to its end, whether or not the caller waits for it."""
        await asyncio.shield(self._begin(path, record, operation, removes=removes))

    def _begin(
        self,
        path: str,
        record: Record,
        operation: Coroutine[Any, Any, None],
        *,
        removes: bool,
        is_own: bool = False,
    ) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(operation)
        self._under_way[path] = _Operation(record.volume_id, record.mode.is_exclusive, removes, is_own, task)
        self._tasks.add(task)

        def over(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            self._under_way.pop(path, None)
            if not task.cancelled():
                task.exception()  # whoever waits gets it; if nobody does, it was logged

        task.add_done_callback(over)
        return task

    # Keeper and store --------------------------------------------------------------------------------

    def _hold(self, record: Record) -> None:
        self._keeper.keep(
            Kept(name=record.name, target=record.path, spec=record.spec, source=record.mount_source)
        )

    async def _release(self, record: Record) -> None:
        # Also what only an earlier plugin has kept: its daemon is told to flush by a keeper, or by nobody.
        self._hold(record)
        try:
            await self._keeper.drop(record.name, _DROP_S)
        except TimeoutError:
            raise TooLate(f"volume {shown(record.volume_id)}: its keeper has not let it go yet") from None
        await self._detach(record)

    async def _detach(self, record: Record) -> None:
        if not await asyncio.to_thread(targets.own_layers, record.path):
            return
        answer = await self._keeper.detach(record.path)
        if answer.fault:
            raise HostFailure(f"target_path {shown(record.target)}: {answer.fault}", errno=answer.errno)

    async def _remember(self, record: Record) -> Record:
        await asyncio.to_thread(self._store.write, record)
        self._records[record.path] = record
        return record


def _check_same(known: Record, volume_id: str, arguments: str) -> None:
    if known.volume_id != volume_id:
        raise PublishConflict(
            f"target_path {shown(known.target)} shows volume {shown(known.volume_id)} already",
            hint="unpublish it first",
        )
    if known.arguments != arguments:
        raise PublishConflict(
            f"volume {shown(volume_id)} is published at {shown(known.target)} with other arguments",
            hint="unpublish it first",
        )


def _is_stale(record: Record) -> bool:
    """Tell whether the target of a record is gone: no directory, no mount."""
    return not targets.own_layers(record.path) and not os.path.lexists(record.path)


def _start_failure(record: Record, ended: Ended) -> VolumeError:
    words = ended.words
    what = f"volume {shown(record.volume_id)}: its daemon has ended with code {ended.code}"
    message = f"{what}: {words.fault}" if words.fault else what
    # What the daemon says of a sub-path or a source is about what was asked for, not about this machine.
    if words.is_own and ("sub-path" in words.fault or "source" in words.fault):
        return WrongState(message, hint=words.hint)
    return HostFailure(message, hint=words.hint)


def _late(record: Record, status: VolumeStatus, ended: Ended | None, timeout_s: float) -> TooLate:
    last = f" ({status.fault or status.phase})" if status.fault or status.phase else ""
    words = f"; its daemon has ended: {ended.words.fault}" if ended is not None and ended.words.fault else ""
    return TooLate(f"volume {shown(record.volume_id)} is not live within {timeout_s:g} s{last}{words}")
