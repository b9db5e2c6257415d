"""Mounts whose keeper is dead at the pod's end: the daemon takes them away, for nobody else in the pod is left who could.

kubelet starts no container of a deleted pod again, and cannot tell a daemon that its pod is deleted: it is ended in the same way when its
image is changed. So what speaks for the end is gathered here: told to end, no keeper for longer than a living pod's takes to come
back, and nothing of the volume in use.
"""

import os
import time
from dataclasses import dataclass

from sidemount.host import process_attributes
from sidemount.host.logs import EventLog
from sidemount.host.mount_points import remove_mount_points
from sidemount.host.own_descriptors import close_all_but

TOLD_S = 1.0
ALONE_S = 3.0
QUIET_S = 2.2  # who serves tells once a second
_FRESH_S = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What the process that serves has told of the volume's use. `open_handles`: None if it cannot count them."""

    volume: str
    handled: int
    in_progress: int
    open_handles: int | None
    told_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known. Times in seconds: since the daemon was told to end, since there was a keeper, since a request was seen."""

    told_s: float
    alone_s: float
    quiet_s: float
    open_handles: int | None
    is_fresh: bool


def is_abandoned(evidence: Evidence) -> bool:
    """Tell whether the mounts are to be taken away. What is not known speaks against it."""
    return (
        evidence.told_s >= TOLD_S
        and evidence.alone_s >= ALONE_S
        and evidence.quiet_s >= QUIET_S
        and evidence.is_fresh
        and evidence.open_handles == 0
    )


class OrphanedMounts:
    """The means that the keeper has lent, and when they are used. Once at most."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._mount_points = -1
        self._told_at: float | None = None
        self._quiet_since = time.monotonic()
        self._handled = -1
        self._has_removed = False

    def take(self, mount_points: int) -> None:
        """Keep what a keeper has lent, for as long as no other does."""
        self.give_up()
        self._mount_points = mount_points

    def give_up(self) -> None:
        """Close it."""
        if self._mount_points >= 0:
            os.close(self._mount_points)
            self._mount_points = -1

    def told_to_end(self, now: float) -> None:
        """Note that what is abandoned may be taken away from now on."""
        self._told_at = now

    def look(self, now: float, *, alone_s: float, use: Use | None) -> bool:
        """See whether the volume is in use. Take the mounts away if they are abandoned; True if that was begun. What they hold is flushed by whoever serves."""
        if use is None:
            self._quiet_since = now
            return False
        if use.handled != self._handled or use.in_progress:
            self._handled, self._quiet_since = use.handled, now
        if self._told_at is None or self._mount_points < 0 or self._has_removed:
            return False
        evidence = Evidence(
            told_s=now - self._told_at,
            alone_s=alone_s,
            quiet_s=now - self._quiet_since,
            open_handles=use.open_handles,
            is_fresh=now - use.told_at < _FRESH_S,
        )
        if not is_abandoned(evidence):
            return False
        self._has_removed = True
        self._log.warning(
            "mounts_abandoned",
            alone_s=round(alone_s, 1),
            consequence="no keeper is left: the daemon takes the mounts away",
        )
        self._remove(use.volume)
        return True

    def _remove(self, volume: str) -> None:
        """In a process of its own: the kernel has it wait until what was written has reached those who serve."""
        try:
            pid = os.fork()
        except OSError as error:
            self._log.error("fork_failed", fault=str(error))
            return
        if pid:
            return  # reaped like any orphan
        code = 1
        try:
            process_attributes.die_with_parent()
            close_all_but({0, 1, 2, self._mount_points})
            names = remove_mount_points(self._mount_points, volume)
            self._log.info("mount_points_removed", names=list(names))
            code = 0
        finally:
            os._exit(code)
