"""This node's mount pods as the API server has them: created, deleted, and followed by one watch a namespace."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from kubernetes.aio import client

from csi.mount_pod import PodSettings
from csi.mount_pod_status import MountPod, parse_mount_pod
from sidemount.host.cluster import Cluster, Place
from sidemount.host.cluster_reader import ClusterReader, ReadLimits, Trouble
from sidemount.host.kind_watch import KindWatch, Pace
from sidemount.host.live_kinds import Key, LiveKind

_PACE = Pace(longest_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodsOf(LiveKind):
    """Our pods in one namespace."""

    namespace: str

    @property
    def collection(self) -> str:
        """The path of those that are followed."""
        return f"{self.within(self.namespace)}?labelSelector={quote(self.selector, safe='')}"


@dataclass(slots=True)
class _State:
    is_live: bool = False
    is_synced: bool = False
    trouble: str = ""
    errors: Counter[Trouble] = field(default_factory=Counter)


class MountPods:
    """The pods, by name. Implements `sidemount.host.kind_watch.WatchStore`."""

    def __init__(
        self, configuration: client.Configuration, settings: PodSettings, changed: Callable[[str], None]
    ) -> None:
        """`changed(name)` is called when a pod has."""
        self._settings = settings
        self._changed = changed
        self._cluster = Cluster(configuration, None)
        self._reader = ClusterReader(configuration, ReadLimits())
        self._kinds = tuple(
            _PodsOf(
                name=f"mount pods in {namespace}",
                api_version="v1",
                plural="pods",
                is_namespaced=True,
                selector=settings.selector,
                namespace=namespace,
            )
            for namespace in settings.namespaces
        )
        self._pods: dict[tuple[str, str], MountPod] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.states = {kind.name: _State() for kind in self._kinds}

    def start(self) -> None:
        """Begin to follow."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(KindWatch(kind, self._reader, self, _PACE).run()) for kind in self._kinds
        ]

    async def close(self) -> None:
        """Follow no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reader.close()
        await self._cluster.__aexit__()

    # What is known -----------------------------------------------------------------------------------

    @property
    def is_synced(self) -> bool:
        """Tell whether every pod that there was at some moment is known."""
        return all(state.is_synced for state in self.states.values())

    def all(self) -> list[MountPod]:
        """Return every pod."""
        return list(self._pods.values())

    def get(self, namespace: str, name: str) -> MountPod | None:
        """Return a pod as it was heard of last, None if there is none."""
        return self._pods.get((namespace, name))

    def elsewhere(self, namespace: str, name: str) -> MountPod | None:
        """Return a pod of that name in another namespace of ours."""
        return next(
            (pod for pod in self._pods.values() if pod.name == name and pod.namespace != namespace), None
        )

    # Calls -------------------------------------------------------------------------------------------

    async def create(self, manifest: Mapping[str, Any]) -> MountPod:
        """Create a pod. Raises PublishConflict if there is one of that name, NotReady, PolicyDenied, InvalidRequest."""
        metadata = manifest["metadata"]
        made = await self._cluster.create(_place(metadata["namespace"], metadata["name"]), manifest)
        return self._heard(made)

    async def look(self, namespace: str, name: str) -> MountPod | None:
        """Return a pod as it is now. Raises NotReady, PolicyDenied."""
        found = await self._cluster.read(_place(namespace, name))
        if found is None:
            self._forget((namespace, name))
            return None
        return self._heard(found)

    async def delete(self, namespace: str, name: str, *, grace_s: int, uid: str = "") -> bool:
        """Have a pod deleted; False if there is none. Raises PublishConflict if it is another one, NotReady, PolicyDenied."""
        if await self._cluster.delete(_place(namespace, name), uid=uid, grace_s=grace_s):
            return True
        self._forget((namespace, name))
        return False

    def _heard(self, manifest: Mapping[str, Any]) -> MountPod:
        """Take over a pod from an answer. The watch may know a later state already; it tells any later one again."""
        pod = parse_mount_pod(manifest)
        key = (pod.namespace, pod.name)
        known = self._pods.get(key)
        if pod.instance == self._settings.instance and (known is None or known.uid != pod.uid):
            self._pods[key] = pod
        return pod

    def _forget(self, key: tuple[str, str]) -> None:
        if self._pods.pop(key, None) is not None:
            self._changed(key[1])

    # WatchStore --------------------------------------------------------------------------------------

    def heard(self, kind: LiveKind) -> None:
        """Do nothing: how fresh it is does not matter here."""

    def give_up(self, kind: LiveKind, why: str) -> None:
        """Do nothing: no kind here is optional."""

    def begin_list(self, kind: LiveKind) -> dict[Key, MountPod]:
        """Return what the list is collected in."""
        return {}

    def read_listed(self, kind: LiveKind, manifest: Mapping[str, Any], listing: Any) -> None:
        """Take over a pod of a list."""
        self.read(kind, manifest, listing)

    def end_list(self, kind: LiveKind, listing: dict[Key, MountPod]) -> None:
        """Take over a whole list. Pods that were created since it was begun are told by the watch."""
        namespace = getattr(kind, "namespace", "")
        before = {key for key in self._pods if key[0] == namespace}
        changes: dict[Key, MountPod | None] = dict.fromkeys(before)
        changes.update(listing)
        self.states[kind.name].is_synced = True
        self.apply(kind, changes)

    def read(self, kind: LiveKind, manifest: Mapping[str, Any], into: Any) -> Key | None:
        """Take over a pod into the changes."""
        pod = parse_mount_pod(manifest)
        key = (pod.namespace, pod.name)
        into[key] = pod
        return key

    def read_deleted(self, kind: LiveKind, manifest: Mapping[str, Any], into: dict[Key, Any]) -> None:
        """Take over the end of a pod into the changes."""
        pod = parse_mount_pod(manifest)
        into[(pod.namespace, pod.name)] = pod.uid

    def apply(self, kind: LiveKind, changes: Mapping[Key, Any]) -> None:
        """Take over changes, and tell of them."""
        for key, pod in changes.items():
            if isinstance(key, str):
                continue
            known = self._pods.get(key)
            if isinstance(pod, MountPod):
                self._pods[key] = pod
            elif known is not None and pod in (None, known.uid):  # not its successor of the same name
                del self._pods[key]
            self._changed(key[1])


def _place(namespace: str, name: str) -> Place:
    return Place("Pod", f"/api/v1/namespaces/{quote(namespace, safe='')}/pods", name)
