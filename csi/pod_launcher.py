"""Launcher `pod`: every daemon in an unprivileged pod of its own, which outlives the plugin.

What identifies a pod is its name, the record's. Whatever becomes of it (deleted, evicted, replaced by another one) is seen by one watch;
each target's own task then brings about what should be there: a pod, the way to it, the keeper listening in it.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from csi.comm_directory import CommDirectories
from csi.credentials import check_credentials, read_credentials, renew_credentials, write_credentials
from csi.event_subject import PodRef
from csi.faults import WrongState
from csi.keeper_link import KeeperLink
from csi.last_words import LastWords
from csi.launcher import Census, Ended
from csi.mount_pod import DIGEST_ANNOTATION, PodSettings, namespace_of, render_mount_pod
from csi.mount_pod_status import MountPod
from csi.mount_pods import MountPods
from csi.records import Record, Stage
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure, NotReady, PublishConflict, VolumeError

_MAKE_S = 20.0
_GONE_S = 45.0
_LOOK_S = 0.5
_WAY_FIRST_S = 0.05
_WAY_MOST_S = 1.0
_IDLE_S = 30.0
_AGAIN_FIRST_S = 0.5
_AGAIN_MOST_S = 60.0
_STEADY_S = 60.0
_ERROR_MOST_S = 5.0
_LET_GO_S = 1  # its keeper has waited for its flush already
_POD_FILE = "pod"  # which pod the keeper listened in last: found again without the API server


@dataclass(slots=True)
class _Target:
    """One target. `at` is the pod that the keeper listens in."""

    record: Record
    event: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None
    at: str = ""
    trouble: Ended | None = None
    pause_s: float = _AGAIN_FIRST_S
    made_at: float = 0.0
    way_s: float = _WAY_FIRST_S
    error_s: float = _AGAIN_FIRST_S
    restarts: int = 0

    def failed(self) -> float:
        """Return how long to wait after a failure."""
        wait_s = self.error_s
        self.error_s = min(_ERROR_MOST_S, wait_s * 2)
        return wait_s


class PodLauncher:
    """Sees that every target has its pod, and no other target has one."""

    def __init__(
        self,
        state_dir: str,
        kubelet_dir: str,
        settings: PodSettings,
        keeper: KeeperLink,
        make_pods: Callable[[Callable[[str], None]], MountPods],
        changed: Callable[[str], None],
    ) -> None:
        """`changed(name)` is called when a daemon has ended, or how it is has changed. Raises HostFailure."""
        self._state_dir = state_dir
        self._comms = CommDirectories(kubelet_dir)
        self._settings = settings
        self._keeper = keeper
        self._changed = changed
        self._log = log("csi.pod_launcher")
        self._targets: dict[str, _Target] = {}
        self._stopping: set[str] = set()
        self._known: Callable[[], Collection[str]] | None = None
        self._sweeping: set[asyncio.Task[None]] = set()
        self._gone: dict[str, asyncio.Event] = {}
        self._starts = Counter({"pod": 0})
        self._orphans = 0
        try:
            os.makedirs(f"{state_dir}/run", mode=0o711, exist_ok=True)
        except OSError as error:
            raise HostFailure(f"state {state_dir}: {error.strerror}", errno=error.errno or 0) from error
        self._pods = make_pods(self._pod_changed)
        self._pods.start()

    # Launcher ----------------------------------------------------------------------------------------

    async def start(self, record: Record, secrets: Mapping[str, str]) -> None:
        """See that the target's pod is there, or will be. Raises VolumeError."""
        if record.name in self._targets:
            return
        if record.launch.pod is None:
            raise WrongState(
                f"volume {record.volume_id}: another launcher has started its daemon",
                hint="unpublish it, and publish it again",
            )
        target = self._targets[record.name] = _Target(record)
        try:
            await asyncio.to_thread(self._prepare, record, secrets)
            if record.stage is Stage.PUBLISHED:
                await self._find_way_again(target)
            else:
                await self._make(target, is_new=True)
        except BaseException:
            self._targets.pop(record.name, None)
            raise
        target.task = asyncio.get_running_loop().create_task(self._look_after(target))

    async def refresh(self, record: Record, secrets: Mapping[str, str]) -> None:
        """Write those credentials anew that the daemon has. Raises VolumeError."""
        target = self._targets.get(record.name)
        if target is None:
            return
        directory = f"{self._run_dir(record.name)}/secrets"
        known = await asyncio.to_thread(renew_credentials, directory, secrets, os.geteuid())
        if target.at:  # also if it has them: an earlier plugin may have ended just before this
            await asyncio.to_thread(self._comms.lay_out, target.at, known, record.spec.uid)

    async def stop(self, record: Record) -> None:
        """See that its pod is gone. Raises NotReady if that takes too long, or the API server is away."""
        target = self._targets.pop(record.name, None)
        self._stopping.add(record.name)
        try:
            if target is not None and target.task is not None:
                target.task.cancel()
                await asyncio.wait({target.task})
            for namespace in self._settings.namespaces:
                if namespace == namespace_of(record, self._settings) or self._pods.get(
                    namespace, record.name
                ):
                    await self._end(namespace, record.name)
            await asyncio.to_thread(self._clear, record)
        finally:
            self._stopping.discard(record.name)

    def ended(self, record: Record) -> Ended | None:
        """Return how its daemon ended last, or why it does not begin."""
        target = self._targets.get(record.name)
        if target is None:
            return None
        lacks = self._keeper.status(record.name).lacks
        if lacks:
            is_away = "does not answer" in lacks or "it hangs" in lacks
            return Ended(-1, LastWords(lacks, is_own=True), lacks, is_final=not is_away)
        return target.trouble

    def deaths(self, record: Record) -> int:
        """Return how often kubelet has started its container again."""
        pod = self._pods.get(namespace_of(record, self._settings), record.name)
        return 0 if pod is None else pod.restarts

    def mount_pod(self, record: Record) -> PodRef | None:
        """Return its pod."""
        pod = self._pods.get(namespace_of(record, self._settings), record.name)
        return None if pod is None else PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)

    def census(self) -> Census:
        """Return what there is."""
        states = Counter({"running": 0, "pending": 0, "terminating": 0, "over": 0})
        states.update(pod.phase for pod in self._pods.all())
        return Census(states=states, starts=self._starts, orphans=self._orphans)

    def replace(self, record: Record, why: str) -> None:
        """Leave it to kubelet: the pod's liveness probe asks the keeper the same, and its container is started again."""
        self._log.warning("daemon_hangs", volume=record.volume_id, pod=record.name, why=why)

    async def forget(self, name: str) -> None:
        """Do nothing: `settle` finds pods that belong to no record."""

    def settle(self, known: Callable[[], Collection[str]]) -> None:
        """Begin to delete pods of ours that belong to no record."""
        self._known = known
        for pod in self._pods.all():
            self._sweep(pod)

    @property
    def children(self) -> set[int]:
        """Return no process: kubelet's are not ours."""
        return set()

    async def close(self) -> None:
        """Make no more pods; leave those that are there."""
        tasks = [target.task for target in self._targets.values() if target.task is not None]
        for task in (*tasks, *self._sweeping):
            task.cancel()
        await asyncio.gather(*tasks, *self._sweeping, return_exceptions=True)
        await self._pods.close()

    # What should be there ----------------------------------------------------------------------------

    async def _look_after(self, target: _Target) -> None:
        """Bring about what should be there, again whenever something has changed. Never ends by itself."""
        while True:
            target.event.clear()
            try:
                wait_s = await self._step(target)
                target.error_s = _AGAIN_FIRST_S
            except VolumeError as error:
                wait_s = target.failed()
                self._note(target, Ended(-1, LastWords(str(error)), "its mount pod", is_final=False))
            except Exception:
                wait_s = target.failed()
                self._log.error("pod_step_failed", pod=target.record.name, exc_info=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await target.event.wait()

    async def _step(self, target: _Target) -> float:
        """Do what is next; return how long nothing need be done unless something changes. Raises VolumeError."""
        record = target.record
        namespace = namespace_of(record, self._settings)
        pod = self._pods.get(namespace, record.name)
        if pod is None:
            if not self._pods.is_synced:
                return _IDLE_S
            await self._leave(target)
            return await self._make_again(target)
        if pod.is_terminating:
            self._note(target, _being_deleted(pod))
            if not pod.is_running:
                await self._leave(target)  # or kubelet could not unmount what the keeper's socket lies in
                return _IDLE_S
            return _IDLE_S if target.at == pod.uid else await self._find_way(target, pod)
        self._note(target, pod.trouble)
        if pod.restarts != target.restarts:
            target.restarts = pod.restarts
            self._changed(record.name)
        if pod.is_over:
            await self._leave(target)
            self._log.warning("mount_pod_over", pod=pod.told, why=pod.trouble.told if pod.trouble else "")
            await self._pods.delete(namespace, record.name, grace_s=_LET_GO_S, uid=pod.uid)
            return _IDLE_S
        if target.at == pod.uid:
            return _IDLE_S
        return await self._find_way(target, pod)

    async def _make_again(self, target: _Target) -> float:
        """Make a pod where one is missing; ever more seldom if they do not last. Return how long to wait."""
        now = time.monotonic()
        if now - target.made_at > _STEADY_S:
            target.pause_s = _AGAIN_FIRST_S
        elif target.made_at:
            left_s = target.made_at + target.pause_s - now
            if left_s > 0:
                return left_s
        target.pause_s = min(_AGAIN_MOST_S, target.pause_s * 2)
        target.made_at = now
        await self._make(target, is_new=False)
        return 0.0

    async def _make(self, target: _Target, *, is_new: bool) -> None:
        """Create the pod, or find it there. One that is ending, or another one of that name, is waited for. Raises VolumeError."""
        manifest = render_mount_pod(target.record, self._settings)
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        other = self._pods.elsewhere(namespace, name)
        if other is not None:
            await self._end(other.namespace, name)
        until = time.monotonic() + _MAKE_S
        while True:
            try:
                pod = await self._pods.create(manifest)
                self._starts["pod"] += 1
                self._log.info("mount_pod_made", pod=pod.told, volume=target.record.volume_id)
                return
            except PublishConflict:
                found = await self._pods.look(namespace, name)
            if found is None:
                continue
            if found.instance != self._settings.instance:
                raise PublishConflict(
                    f"pod {found.told} is there and is none of this node service's", hint="delete it"
                )
            digest = manifest["metadata"]["annotations"][DIGEST_ANNOTATION]
            if not found.is_terminating and not found.is_over and (not is_new or found.digest == digest):
                return
            if not found.is_terminating:
                await self._pods.delete(namespace, name, grace_s=_LET_GO_S, uid=found.uid)
            await self._wait_gone(namespace, name, found.uid, until)

    async def _end(self, namespace: str, name: str) -> None:
        """Delete a pod and wait for its end. Raises NotReady."""
        until = time.monotonic() + _GONE_S
        found = await self._pods.look(namespace, name)
        if found is None or found.instance != self._settings.instance:
            return
        try:
            if await self._pods.delete(namespace, name, grace_s=_LET_GO_S, uid=found.uid):
                await self._wait_gone(namespace, name, found.uid, until)
        except PublishConflict as error:
            raise NotReady(
                f"its mount pod {namespace}/{name} has just become another", hint="try again"
            ) from error

    async def _wait_gone(self, namespace: str, name: str, uid: str, until: float) -> None:
        """Wait until a pod is gone, or another one has its name. Raises NotReady."""
        event = self._gone.setdefault(name, asyncio.Event())
        try:
            while True:
                event.clear()
                found = await self._pods.look(namespace, name)
                if found is None or found.uid != uid:
                    return
                if time.monotonic() > until:
                    raise NotReady(
                        f"its mount pod {namespace}/{name} is still being deleted", hint="try again"
                    )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await event.wait()
        finally:
            self._gone.pop(name, None)

    # The way to it -----------------------------------------------------------------------------------

    async def _find_way(self, target: _Target, pod: MountPod) -> float:
        """Have the keeper listen in the pod, if kubelet has got that far. Return how long to wait. Raises VolumeError."""
        record = target.record
        path = await asyncio.to_thread(self._comms.path, pod.uid)
        if path is None:
            wait_s = target.way_s
            target.way_s = min(_WAY_MOST_S, wait_s * 1.2)
            return wait_s
        directory = f"{self._run_dir(record.name)}/secrets"
        secrets = await asyncio.to_thread(read_credentials, directory)
        if not await asyncio.to_thread(self._comms.lay_out, pod.uid, secrets, record.spec.uid):
            return _WAY_FIRST_S
        await asyncio.to_thread(self._remember, record.name, pod.uid)
        answer = await self._keeper.listen(record.name, path)
        if answer.fault:
            return _WAY_FIRST_S
        target.at, target.way_s = pod.uid, _WAY_FIRST_S
        # What was renewed meanwhile did not find its way yet.
        renewed = await asyncio.to_thread(read_credentials, directory)
        if renewed != secrets:
            await asyncio.to_thread(self._comms.lay_out, pod.uid, renewed, record.spec.uid)
        self._log.info("mount_pod_reached", pod=pod.told, volume=record.volume_id)
        return _IDLE_S

    async def _find_way_again(self, target: _Target) -> None:
        """Have the keeper, as soon as it keeps the volume, listen where an earlier one did: the daemon may be waiting there."""
        name = target.record.name
        pod_uid = await asyncio.to_thread(self._remembered, name)
        path = await asyncio.to_thread(self._comms.path, pod_uid) if pod_uid else None
        if path is not None:
            self._keeper.expect(name, path)
            target.at = pod_uid

    async def _leave(self, target: _Target) -> None:
        """Have the keeper listen in no pod."""
        if target.at:
            target.at = ""
            answer = await self._keeper.listen(target.record.name, "")
            if answer.fault:
                self._log.warning("cannot_leave_pod", pod=target.record.name, fault=answer.fault)

    # News --------------------------------------------------------------------------------------------

    def _pod_changed(self, name: str) -> None:
        target = self._targets.get(name)
        if target is not None:
            target.event.set()
        gone = self._gone.get(name)
        if gone is not None:
            gone.set()
        if self._known is not None and target is None:
            for pod in self._pods.all():
                if pod.name == name:
                    self._sweep(pod)

    def _note(self, target: _Target, trouble: Ended | None) -> None:
        if trouble is not None:
            secrets = read_credentials(f"{self._run_dir(target.record.name)}/secrets")
            trouble = trouble.without(secrets.values())
        if trouble == target.trouble:
            return
        target.trouble = trouble
        if trouble is not None:
            self._log.warning("mount_pod_trouble", volume=target.record.volume_id, why=trouble.told)
        self._changed(target.record.name)

    def _sweep(self, pod: MountPod) -> None:
        """Delete a pod that belongs to no record."""
        is_known = pod.name in self._targets or pod.name in self._stopping
        if is_known or pod.is_terminating or self._known is None or pod.name in self._known():
            return
        self._log.warning("orphan_pod_deleted", pod=pod.told)
        self._orphans += 1
        task = asyncio.get_running_loop().create_task(self._delete_orphan(pod))
        self._sweeping.add(task)
        task.add_done_callback(self._sweeping.discard)

    async def _delete_orphan(self, pod: MountPod) -> None:
        try:
            await self._pods.delete(pod.namespace, pod.name, grace_s=_LET_GO_S, uid=pod.uid)
        except VolumeError as error:
            self._log.warning("orphan_pod_stays", pod=pod.told, fault=str(error))
            await asyncio.sleep(_AGAIN_MOST_S)
            if pod in self._pods.all():
                self._sweep(pod)

    # Places ------------------------------------------------------------------------------------------

    def _run_dir(self, name: str) -> str:
        return f"{self._state_dir}/run/{name}"

    def _prepare(self, record: Record, secrets: Mapping[str, str]) -> None:
        check_credentials(record.volume_id, secrets, self._state_dir)
        run_dir = self._run_dir(record.name)
        try:
            for path in (run_dir, f"{run_dir}/secrets"):
                os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise HostFailure(f"state {run_dir}: {error.strerror}", errno=error.errno or 0) from error
        write_credentials(f"{run_dir}/secrets", secrets, os.geteuid())

    def _remember(self, name: str, pod_uid: str) -> None:
        path = Path(self._run_dir(name)) / _POD_FILE
        aside = path.with_suffix(".new")
        try:
            aside.write_text(pod_uid, "ascii")
            aside.rename(path)
        except OSError as error:
            raise HostFailure(f"state {path}: {error.strerror}", errno=error.errno or 0) from error

    def _remembered(self, name: str) -> str:
        try:
            return (Path(self._run_dir(name)) / _POD_FILE).read_text("ascii", "replace")
        except OSError:
            return ""

    def _clear(self, record: Record) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._run_dir(record.name))
        except OSError as error:
            raise HostFailure(f"state of {record.volume_id}: {error}", errno=error.errno or 0) from error


def _being_deleted(pod: MountPod) -> Ended:
    return Ended(-1, LastWords("is being deleted"), f"its mount pod {pod.told}", is_final=False)
