"""Carries the steps of a publish out, and undoes them: with records, target directory, launcher and keeper."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from csi import targets
from csi.faults import NoRoom, TooLate, WrongState
from csi.keeper_link import KeeperLink, Kept, VolumeStatus
from csi.launcher import Ended, Launcher
from csi.place_threads import PlaceThreads
from csi.publish_plan import PublishPlan, Step
from csi.records import Record, RecordStore, Stage, target_name
from sidemount.host.logs import log
from sidemount.host.session import Phase
from sidemount.model.errors import HostFailure, NotReady, OperationPending, VolumeError, shown

_DROP_S = 45.0  # more than the keeper takes for a daemon that never flushes
_LOOK_AGAIN_S = 0.5
_ANSWER_S = 5.0  # for the directory that a target lies in

T = TypeVar("T")
Observe = Callable[[str], None]


class PublishSteps:
    """Every step finds done what is done already. Knows every record."""

    def __init__(
        self,
        store: RecordStore,
        keeper: KeeperLink,
        launcher: Launcher,
        *,
        mount_timeout_s: float,
        observe: Observe,
    ) -> None:
        """`observe` hears of every step before and after it is done: where a crash may happen."""
        self._store = store
        self._keeper = keeper
        self._launcher = launcher
        self._mount_timeout_s = mount_timeout_s
        self._observe = observe
        self._log = log("csi.publications")
        self._events: dict[str, asyncio.Event] = {}
        self._threads = PlaceThreads("directory", _ANSWER_S)
        self._given_up: set[str] = set()  # paths whose publish nobody needs any more
        self.records: dict[str, Record] = {}  # by resolved path

    async def load(self) -> None:
        """Read the records that an earlier plugin has left. Raises HostFailure."""
        for record in await asyncio.to_thread(self._store.load):
            self.records[record.path] = record

    # There -------------------------------------------------------------------------------------------

    async def carry_out(self, plan: PublishPlan) -> Record:
        """Do what was planned. Raises VolumeError; nothing is left then, or a tombstone of what cannot be undone yet."""
        record = plan.record
        await self.at_target(record.path, partial(targets.check_free, record.path))
        await self.forget(record.path)
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
        return record

    async def _do(self, step: Step, record: Record, plan: PublishPlan) -> Record:
        match step:
            case Step.REMEMBER:
                made = not await self.at_target(record.path, partial(os.path.lexists, record.path))
                return await self.remember(record.at(Stage.PUBLISHING, made=made))
            case Step.MAKE_TARGET:
                await self.at_target(record.path, partial(targets.make, record.path))
            case Step.LAUNCH:
                await self._launcher.start(record, plan.secrets)
            case Step.HOLD:
                self.hold(record)
            case Step.AWAIT_LIVE:
                await self.await_live(record, is_new=True)
            case Step.COMMIT:
                return await self.remember(record.at(Stage.PUBLISHED))
        return record

    # Back --------------------------------------------------------------------------------------------

    async def tear_down(self, record: Record, *, remove_target: bool) -> None:
        """Take everything away. The record says so from the beginning, so that nothing can bring it back. Raises VolumeError."""
        record = await self._bury(record)
        for step in reversed(Step):
            self._observe(f"before undoing {step.value}")
            await self._undo_step(step, record, remove_target=remove_target)
            self._observe(f"after undoing {step.value}")

    async def _bury(self, record: Record) -> Record:
        """Write down that a record's target is to go. A full disk is no reason to keep it: a crash would only bring it back."""
        try:
            return await self.remember(record.at(Stage.REMOVING))
        except HostFailure as error:
            self._log.error("tombstone_not_written", volume=record.volume_id, fault=str(error))
            self.records[record.path] = record.at(Stage.REMOVING)
            return self.records[record.path]

    async def _undo(self, record: Record, done: list[Step], error: BaseException) -> None:
        self._log.warning("publish_undone", volume=record.volume_id, target=record.target, fault=str(error))
        try:
            for step in reversed(done):
                self._observe(f"before undoing {step.value}")
                await self._undo_step(step, record, remove_target=record.made)
                self._observe(f"after undoing {step.value}")
        except VolumeError as fault:
            self._log.error("undo_failed", volume=record.volume_id, target=record.target, fault=str(fault))
            await self._bury(record)

    async def _undo_step(self, step: Step, record: Record, *, remove_target: bool) -> None:
        match step:
            case Step.REMEMBER:
                await asyncio.to_thread(self._store.remove, record)
                self.records.pop(record.path, None)
            case Step.MAKE_TARGET:
                if remove_target and not await self.remove_target(record.path):
                    self._log.warning("target_not_empty", volume=record.volume_id, target=record.target)
            case Step.LAUNCH:
                await self._launcher.stop(record)
            case Step.HOLD:
                await self._release(record)
            case Step.AWAIT_LIVE | Step.COMMIT:
                pass

    # Live --------------------------------------------------------------------------------------------

    async def ensure_live(self, record: Record) -> None:
        """See that what is published answers. Raises VolumeError."""
        if not await self.is_live(record):
            await self.at_target(record.path, partial(targets.make_again, record.path))
            await self.await_live(record, is_new=False)

    async def is_live(self, record: Record) -> bool:
        """Tell whether the volume is served, shown and answers."""
        if not self._keeper.status(record.name).is_live:
            return False
        try:
            return not (await self._keeper.check(record.name)).fault
        except NotReady:
            return False

    async def await_live(self, record: Record, *, is_new: bool) -> None:
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
                if is_new:
                    await self._check_there(record)
                if is_new and ended is not None and ended.is_final:
                    raise _start_failure(record, ended)
                if is_new and status.phase == Phase.DETACHED.value and status.fault:
                    raise HostFailure(f"volume {shown(record.volume_id)}: {status.fault}")
                if await self.is_live(record):
                    return
                if time.monotonic() > until:
                    raise _late(record, status, ended, self._mount_timeout_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await event.wait()
        finally:
            self._events.pop(record.name, None)

    async def _check_there(self, record: Record) -> None:
        """See that a new target's directory is still there: kubelet takes it away with its pod, whoever is at work in it. Raises VolumeError."""
        if not await self.at_target(record.path, partial(os.path.lexists, record.path)):
            raise OperationPending(
                f"volume {shown(record.volume_id)}: target_path {shown(record.target)} was taken away meanwhile",
                hint="unpublish it, or make its parent directory and publish it again",
            )

    def changed(self, name: str) -> None:
        """Have whoever waits for a target look again."""
        event = self._events.get(name)
        if event is not None:
            event.set()

    async def give_up(self, path: str, publish: "asyncio.Task[None]") -> None:
        """End a publish that still waits, and wait for its end."""
        self._given_up.add(path)
        try:
            self.changed(target_name(path))
            await asyncio.wait({publish})
        finally:
            self._given_up.discard(path)

    # Keeper and store --------------------------------------------------------------------------------

    def hold(self, record: Record) -> None:
        """Have the keeper mount and hold it, or go on to."""
        self._keeper.keep(
            Kept(
                name=record.name,
                target=record.path,
                spec=record.spec,
                source=record.mount_source,
                directory=record.launch.given_source,
            )
        )

    async def remember(self, record: Record) -> Record:
        """Write a record. Raises HostFailure."""
        await asyncio.to_thread(self._store.write, record)
        self.records[record.path] = record
        return record

    async def at_target(self, path: str, work: Callable[[], T]) -> T:
        """Run what looks at a target, in a directory that may be on any filesystem. Raises NotReady if that does not answer."""
        return await self._threads.quick(os.path.dirname(path), work)

    async def remove_target(self, path: str) -> bool:
        """Remove a target's directory; False if something is in it. Raises VolumeError."""
        return await self.at_target(path, partial(targets.remove, path))

    async def _detach(self, path: str) -> bool:
        """Take away what of ours is mounted at a place that no volume is kept for; False if nothing is. Raises VolumeError."""
        if not await asyncio.to_thread(targets.own_layers, path):
            return False
        answer = await self._keeper.detach(path)
        if answer.fault:
            raise HostFailure(f"target_path {shown(path)}: {answer.fault}", errno=answer.errno)
        return True

    async def forget(self, path: str) -> None:
        """Take away what a lost state has left at a place that no record names: mounts and who serves them. Raises VolumeError."""
        if await self._detach(path):
            await self._launcher.forget(target_name(path))

    async def _release(self, record: Record) -> None:
        # Also what only an earlier plugin has kept: its daemon is told to flush by a keeper, or by nobody.
        self.hold(record)
        try:
            await self._keeper.drop(record.name, _DROP_S)
        except TimeoutError:
            raise TooLate(f"volume {shown(record.volume_id)}: its keeper has not let it go yet") from None
        await self._detach(record.path)


def _start_failure(record: Record, ended: Ended) -> VolumeError:
    words = ended.words
    message = f"volume {shown(record.volume_id)}: {ended.told}"
    if ended.is_room_missing:
        return NoRoom(message, hint=words.hint)
    # What the daemon says of a sub-path or a source is about what was asked for, not about this machine.
    if words.is_own and ("sub-path" in words.fault or "source" in words.fault):
        return WrongState(message, hint=words.hint)
    return HostFailure(message, hint=words.hint)


def _late(record: Record, status: VolumeStatus, ended: Ended | None, timeout_s: float) -> TooLate:
    last = f" ({status.fault or status.phase})" if status.fault or status.phase else ""
    words = f"; {ended.told}" if ended is not None and ended.words.fault else ""
    return TooLate(f"volume {shown(record.volume_id)} is not live within {timeout_s:g} s{last}{words}")
