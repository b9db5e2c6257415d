"""What is published on this node: which calls are taken, what an earlier plugin has left, what is torn down.

Every operation is bounded and belongs to one target; while it runs, another one on that target is refused at once. It goes on
when its caller does not wait for it any more.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from csi import targets
from csi.event_news import Report, VolumeNews
from csi.faults import NotFound, WrongState
from csi.keeper_link import Answer, KeeperLink, VolumeStatus
from csi.launcher import Launcher
from csi.publish_operations import Operations
from csi.publish_plan import PublishPlan
from csi.publish_source import check_source
from csi.publish_steps import Observe, PublishSteps
from csi.records import Record, RecordStore, Stage
from csi.targets import Targets
from sidemount.host.logs import log
from sidemount.host.session import Phase
from sidemount.model.errors import NotReady, OperationPending, PublishConflict, VolumeError, shown

_READY_S = 10.0
_LEFTOVER_AGAIN_S = 10.0
_SETTLES_S = 1.5  # so that one that hangs is told of within ten seconds all the same
_LOOK_AGAIN_S = 0.05
_UNSETTLED = frozenset({Phase.MOUNTING.value, Phase.ADOPTING.value, Phase.ATTACHING.value})


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
        news: VolumeNews,
        observe: Observe = lambda point: None,
    ) -> None:
        """`observe` hears of every step before and after it is done: where a crash may happen."""
        self._roots = roots
        self._keeper = keeper
        self._launcher = launcher
        self._steps = PublishSteps(store, keeper, launcher, mount_timeout_s=mount_timeout_s, observe=observe)
        self._records = self._steps.records
        self._operations = Operations()
        self._news = news
        self._log = log("csi.publications")
        self._is_ready = asyncio.Event()
        self._is_closed = False
        self.leftovers_cleared = 0

    @property
    def under_way(self) -> int:
        """Return how many operations are being carried out."""
        return len(self._operations)

    def records(self) -> list[Record]:
        """Return every target."""
        return list(self._records.values())

    @property
    def is_ready(self) -> bool:
        """Tell whether what was there before is known."""
        return self._is_ready.is_set()

    def paths(self) -> Collection[str]:
        """Return where something is published, or was and is not torn down yet."""
        return frozenset(self._records)

    def names(self) -> set[str]:
        """Return the name of every target's belongings, whatever is to become of it."""
        return {record.name for record in self._records.values()}

    # Before and after --------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Take up what an earlier plugin has left: keep what is published, undo what nobody was told of. Raises VolumeError."""
        await self._steps.load()
        found = list(self._records.values())
        gone = await asyncio.gather(*map(self._is_gone, found))
        for record, is_gone in zip(found, gone, strict=True):
            if record.stage is Stage.PUBLISHED and not is_gone:
                try:
                    await self._launcher.start(record, {})
                except VolumeError as error:
                    self._log.error("daemon_not_started", volume=record.volume_id, fault=str(error))
                self._steps.hold(record)
            else:
                self._clear_leftover(record)
        self._log.info("reconciled", targets=len(self._records))
        self._is_ready.set()

    async def close(self, timeout_s: float) -> None:
        """Wait for what is under way. Mounts stay."""
        self._is_closed = True
        await self._operations.close(timeout_s)

    def changed(self, name: str) -> None:
        """Note that keeper or launcher has news of a target."""
        self._steps.changed(name)
        status = self._keeper.status(name)
        record = next((record for record in self._records.values() if record.name == name), None)
        if record is None:
            return
        self._news.changed(
            record,
            Report(
                status=status,
                ended=self._launcher.ended(record),
                deaths=self._launcher.deaths(record),
                mount_pod=self._launcher.mount_pod(record),
            ),
        )
        if status.hung:
            self._launcher.replace(record, status.hung)

    # Publish -----------------------------------------------------------------------------------------

    async def publish(
        self,
        volume_id: str,
        target: str,
        arguments: str,
        make_plan: Callable[[str], Awaitable[PublishPlan]],
        *,
        exclusive: bool,
        secrets: Mapping[str, str],
        file_secrets: Callable[[Record], Awaitable[Mapping[str, str]]],
    ) -> None:
        """See that a volume is live at a target. Raises VolumeError; nothing is left then, unless it was there before.

        `secrets`, or without them those of the node, take the place of what the daemon of a volume has that is published already.
        """
        await self._wait_ready()
        path = await self._resolve(target)
        await self._wait_own(path)  # what it clears is in the way
        self._operations.refuse_busy(path)
        known = self._records.get(path)
        if known is None or not _is_same(known, volume_id, arguments):
            plan = await make_plan(path)
            await check_source(plan.record)
            gone = await self._gone_targets(plan.record)
            self._operations.refuse_busy(path)
            known = self._records.get(path)
            if known is None or known.stage is not Stage.PUBLISHED:
                self._check_exclusive(volume_id, path, gone, exclusive=exclusive)
                await self._operations.run(plan.record, self._publish(plan, known))
                return
            _check_same(known, volume_id, arguments)
        renewed = secrets or await file_secrets(known)
        await self._wait_own(path)
        self._operations.refuse_busy(path)
        if self._records.get(path) is not known:
            raise OperationPending(
                f"target_path {shown(target)}: it has just become another", hint="try again"
            )
        await self._operations.run(known, self._publish_again(known, renewed, are_files=not secrets))

    async def _wait_own(self, path: str) -> None:
        under_way = self._operations.get(path)
        if under_way is not None and under_way.is_own:
            await asyncio.wait({under_way.task})

    async def _publish_again(self, known: Record, secrets: Mapping[str, str], *, are_files: bool) -> None:
        if secrets:
            if not are_files and any(key in secrets for key in known.file_keys):
                known = await self._steps.remember(replace(known, file_keys=()))  # files hold no more
            await self._launcher.refresh(known, secrets)
        await self._steps.ensure_live(known)

    async def _publish(self, plan: PublishPlan, leftover: Record | None) -> None:
        if leftover is not None:
            await self._steps.tear_down(leftover, remove_target=leftover.made)
        record = plan.record
        try:
            await self._steps.carry_out(plan)
        finally:
            self._clear_left_later(record.path)
        self._log.info("published", volume=record.volume_id, target=record.target)

    def _clear_left_later(self, path: str) -> None:
        """See that what could not be taken away now is, even if nobody asks again."""
        left = self._records.get(path)
        if left is not None and left.stage is not Stage.PUBLISHED:
            asyncio.get_running_loop().call_later(_LEFTOVER_AGAIN_S, self._clear_leftover, left)

    # Credentials -------------------------------------------------------------------------------------

    def with_file_keys(self) -> list[Record]:
        """Return what is published with credentials from files of the node."""
        return [
            record
            for record in self._records.values()
            if record.file_keys and record.stage is Stage.PUBLISHED
        ]

    async def renew(self, record: Record, secrets: Mapping[str, str]) -> bool:
        """Give a daemon its credentials anew; False if something else is being done there now. Raises VolumeError."""
        is_gone = self._records.get(record.path) is not record or self._is_closed
        if is_gone or self._operations.get(record.path) is not None:
            return False
        # Its own operation, so that nothing is written where something is being taken away; an unpublish waits for its end.
        refresh = self._launcher.refresh(record, secrets)
        await asyncio.shield(self._operations.begin(record, refresh, removes=False, is_own=True))
        return True

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
        under_way = self._operations.get(record.path)
        if under_way is not None and under_way.removes:
            await asyncio.shield(under_way.task)  # whoever began it, this is what is asked for
        else:
            self._operations.refuse_busy(record.path)
            try:
                await self._operations.run(
                    record, self._steps.tear_down(record, remove_target=True), removes=True
                )
            finally:
                self._clear_left_later(record.path)
        self._log.info("unpublished", volume=volume_id, target=target)

    async def _give_up_publish(self, volume_id: str, target: str) -> None:
        """End a publish that still waits: whoever unpublishes does not want it, and must not wait for its time to be up."""
        path = await self._path_of(target)
        under_way = None if path is None else self._operations.get(path)
        if path is None or under_way is None or under_way.removes or under_way.volume_id != volume_id:
            return
        await self._steps.give_up(path, under_way.task)

    async def _remove_unknown(self, target: str) -> None:
        """Take away what a lost state has left. Whatever is not ours stays."""
        path = await self._path_of(target)
        if path is None:
            return
        self._operations.refuse_busy(path)
        foreign = await asyncio.to_thread(targets.foreign_mount, path)
        if foreign is not None:
            raise WrongState(f"target_path {shown(target)}: something else is mounted there")
        await self._steps.forget(path)
        if not await self._steps.remove_target(path):
            self._log.warning("target_not_empty", target=target)

    def _clear_leftover(self, record: Record) -> None:
        """Tear down what a crash or a failure has left; again after a while, until it is done or somebody else has done it."""
        if self._records.get(record.path) is not record or self._is_closed:
            return
        if self._operations.get(record.path) is not None:
            asyncio.get_running_loop().call_later(_LEFTOVER_AGAIN_S, self._clear_leftover, record)
            return
        remove_target = record.made or record.stage is not Stage.PUBLISHING
        tear_down = self._steps.tear_down(record, remove_target=remove_target)
        self._operations.begin(record, tear_down, removes=True, is_own=True).add_done_callback(
            lambda task: self._leftover_tried(record, task)
        )

    def _leftover_tried(self, record: Record, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            self.leftovers_cleared += 1
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
        status = await self._settled(record.name)
        if not status.is_live:
            return status, None
        return status, await self._keeper.check(record.name)

    async def _settled(self, name: str) -> VolumeStatus:
        """Return how a volume is; a keeper that has just started may not know yet, though it is served all the time."""
        until = time.monotonic() + _SETTLES_S
        while True:
            status = self._keeper.status(name)
            if status.phase not in _UNSETTLED or time.monotonic() > until:
                return status
            await asyncio.sleep(_LOOK_AGAIN_S)

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
            return await self._resolve(target)
        except NotReady:
            raise
        except VolumeError:
            return None

    async def _resolve(self, target: str) -> str:
        return await self._steps.at_target(target, partial(self._roots.resolve, target))

    # One at a time -----------------------------------------------------------------------------------

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_S):
                await self._is_ready.wait()
        except TimeoutError:
            raise NotReady("the node service is still starting", hint="try again") from None

    async def _gone_targets(self, asked: Record) -> set[str]:
        """Return where a volume was published that nothing is left of: such a target stands in no other one's way."""
        others = [
            record
            for record in self._records.values()
            if record.volume_id == asked.volume_id
            and record.path != asked.path
            and (asked.mode.is_exclusive or record.mode.is_exclusive)
        ]
        gone = await asyncio.gather(*map(self._is_gone, others))
        return {record.path for record, is_gone in zip(others, gone, strict=True) if is_gone}

    async def _is_gone(self, record: Record) -> bool:
        try:
            return await self._steps.at_target(record.path, partial(_is_stale, record))
        except NotReady:
            return False

    def _check_exclusive(self, volume_id: str, path: str, gone: Collection[str], *, exclusive: bool) -> None:
        for operation in self._operations.of_volume(volume_id, but=path):
            if exclusive or operation.is_exclusive:
                raise OperationPending(f"volume {shown(volume_id)}: an operation on it is under way")
        for record in self._records.values():
            if record.path == path or record.volume_id != volume_id or record.stage is not Stage.PUBLISHED:
                continue
            if (exclusive or record.mode.is_exclusive) and record.path not in gone:
                raise WrongState(
                    f"volume {shown(volume_id)} is published at {shown(record.target)} already, and one of both access "
                    "modes allows one target of a node only",
                    hint="unpublish it there first, or use SINGLE_NODE_MULTI_WRITER or a MULTI_NODE mode",
                )


def _is_same(known: Record, volume_id: str, arguments: str) -> bool:
    return known.stage is Stage.PUBLISHED and (known.volume_id, known.arguments) == (volume_id, arguments)


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
