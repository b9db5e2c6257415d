"""Mounts that ended pods have left behind: nobody of the pod lives who could take them away, and the kubelet cannot go on.

A sidecar pod whose keeper and daemon were both dead when it was deleted leaves its dead mounts in its emptyDir, and stays Terminating
for them (kubernetes/kubernetes#129550). Here they are detached, if all of this holds for a while: the mount is ours, it is dead,
no container has a sub-path of its volume any more, and the pod has ended. No file is ever removed.
"""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from csi.keeper_link import Answer
from sidemount.host.logs import log
from sidemount.host.mount_table import read_mount_table
from sidemount.model.errors import NotReady, VolumeError
from sidemount.model.mountinfo import Mount

LOOK_S = 5.0
GRACE_S = 10.0
_AGAIN_S = 60.0  # for one that could not be swept, or is not dead
_PLACE = re.compile(
    r"/pods/([0-9A-Za-z-]{1,64})/volumes/kubernetes\.io~(empty-dir|csi)/([^/]+)/.+", re.DOTALL
)
_SUB_PATH = re.compile(r"/pods/([0-9A-Za-z-]{1,64})/volume-subpaths/([^/]+)/.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A mount of ours in a pod's directory that no container has a sub-path of."""

    pod_uid: str
    mount_point: str
    mount_id: int


class Evidence(Protocol):
    """Knows which pods have ended."""

    async def look(self) -> None:
        """Note which pods there are. Called with every look at the mounts."""
        ...

    async def ended(self, pod_uids: Collection[str]) -> frozenset[str]:
        """Return those that have ended for certain. What is not known speaks against it."""
        ...


class Sweeper(Protocol):
    """Detaches dead mounts, in a process that may hang."""

    async def sweep(self, directory: str, mount_point: str, mount_id: int) -> Answer:
        """Detach every layer of ours at a place if it is dead. Raises NotReady."""
        ...


def find_leftovers(
    mounts: Iterable[Mount], kubelet_dir: str, published: Collection[str]
) -> tuple[Leftover, ...]:
    """Return what may have been left, the topmost layer of each place, deepest first. `published` are the targets that are kept."""
    table = [mount for mount in mounts if mount.mount_point.startswith(f"{kubelet_dir}/pods/")]
    within = {mount.mount_id: mount.mount_point[len(kubelet_dir) :] for mount in table}
    sub_paths = {found.groups() for place in within.values() if (found := _SUB_PATH.fullmatch(place))}
    leftovers: dict[str, Leftover] = {}
    for mount in table:
        found = _PLACE.fullmatch(within[mount.mount_id])
        if found is None:
            continue
        uid, _, volume = found.groups()
        if not mount.is_ours:
            leftovers.pop(mount.mount_point, None)  # somebody else's lies above
        elif mount.mount_point not in published and (uid, volume) not in sub_paths:
            leftovers[mount.mount_point] = Leftover(uid, mount.mount_point, mount.mount_id)
    return tuple(leftovers[place] for place in sorted(leftovers, reverse=True))


class Janitor:
    """Looks again and again; gives everything time."""

    def __init__(
        self,
        kubelet_dir: str,
        sweeper: Sweeper,
        evidence: Evidence,
        published: "PublishedTargets",
        *,
        grace_s: float = GRACE_S,
        look_s: float = LOOK_S,
        detached: Callable[[int], None] = lambda layers: None,
    ) -> None:
        """`detached` hears of every mount that was taken away."""
        self._kubelet_dir = os.path.realpath(kubelet_dir)
        self._sweeper = sweeper
        self._evidence = evidence
        self._published = published
        self._grace_s = grace_s
        self._look_s = look_s
        self._detached = detached
        self._since: dict[Leftover, float] = {}
        self._not_before: dict[Leftover, float] = {}
        self._log = log("csi.janitor")
        self.swept = 0

    async def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.look(time.monotonic())
            except (VolumeError, OSError) as error:
                self._log.warning("janitor_failed", fault=str(error))
            await asyncio.sleep(self._look_s)

    async def look(self, now: float) -> None:
        """Look once, and sweep what has been left for long enough."""
        mounts = await asyncio.to_thread(read_mount_table)
        await self._evidence.look()
        leftovers = find_leftovers(mounts, self._kubelet_dir, self._published.paths())
        self._since = {leftover: self._since.get(leftover, now) for leftover in leftovers}
        self._not_before = {one: when for one, when in self._not_before.items() if one in self._since}
        due = [
            leftover
            for leftover in leftovers
            if now - self._since[leftover] >= self._grace_s and now >= self._not_before.get(leftover, now)
        ]
        ended = await self._evidence.ended({leftover.pod_uid for leftover in due}) if due else frozenset()
        # Together: one that hangs takes its time.
        await asyncio.gather(*(self._sweep(leftover, now) for leftover in due if leftover.pod_uid in ended))

    async def _sweep(self, leftover: Leftover, now: float) -> None:
        self._not_before[leftover] = now + _AGAIN_S
        place = {"pod_uid": leftover.pod_uid, "place": leftover.mount_point}
        with contextlib.suppress(NotReady):
            answer = await self._sweeper.sweep(self._kubelet_dir, leftover.mount_point, leftover.mount_id)
            if answer.fault:
                self._log.warning("leftover_stays", **place, fault=answer.fault)
            elif answer.found is not None and answer.found["detached"]:
                self.swept += answer.found["detached"]
                self._detached(answer.found["detached"])
                self._log.info("leftover_detached", **place, layers=answer.found["detached"])


class PublishedTargets(Protocol):
    """Knows where volumes are published."""

    def paths(self) -> Collection[str]:
        """Return the resolved targets."""
        ...
