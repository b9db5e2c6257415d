"""PoolMetrics: what a controller has in its pools and is doing there.

A pool may not answer for ever, so it is looked at from time to time in a thread of its own, and a scrape shows what was found last.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from csi.controller_pools import Pools
from csi.volume_state import Kind
from sidemount.model.errors import NotReady, VolumeError

LOOK_S = 30.0
_STUCK_MAX = 4
_PREFIX = "sidemount_csi"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLook:
    """What was found in a pool. `answers`: whether it does; the rest is of the last time that it did."""

    answers: bool = False
    at_s: float = float("-inf")
    available_bytes: int = 0
    size_bytes: int = 0
    volumes: int = 0
    snapshots: int = 0
    unfinished: int = 0


class PoolMetrics:
    """Of all pools of a controller. Label values are the pools' paths, which the operator chooses."""

    def __init__(self, pools: Pools, *, look_s: float = LOOK_S) -> None:
        self._pools = pools
        self._look_s = look_s
        self._looks = {name: PoolLook() for name in pools.names}

    async def run(self) -> None:
        """Look again and again, until cancelled. A pool that does not answer holds no other one up."""
        await asyncio.gather(*(self._follow(name) for name in self._pools.names))

    async def _follow(self, pool: str) -> None:
        while True:
            try:
                self._looks[pool] = await self._look(pool)
            except (VolumeError, OSError):
                self._looks[pool] = replace(self._looks[pool], answers=False)
            await asyncio.sleep(self._look_s)

    async def _look(self, pool: str) -> PoolLook:
        if self._pools.stuck(pool) >= _STUCK_MAX:  # it is asked by others, too
            raise NotReady(f"pool {pool} does not answer")
        volumes, snapshots, unfinished = await self._pools.counts(pool)
        return PoolLook(
            answers=True,
            at_s=time.monotonic(),
            available_bytes=await self._pools.available_bytes(pool),
            size_bytes=await self._pools.size_bytes(pool),
            volumes=volumes,
            snapshots=snapshots,
            unfinished=unfinished,
        )

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        now = time.monotonic()
        rows: Sequence[tuple[str, str, dict[str, float]]] = (
            (
                "pool_answers",
                "1 while the pool answers.",
                {name: float(look.answers) for name, look in self._looks.items()},
            ),
            (
                "pool_age_seconds",
                "Time since the pool answered last.",
                {name: now - look.at_s for name, look in self._looks.items()},
            ),
            (
                "pool_available_bytes",
                "Room that is left in the pool.",
                {name: look.available_bytes for name, look in self._looks.items()},
            ),
            (
                "pool_size_bytes",
                "Room that there is in the pool in all.",
                {name: look.size_bytes for name, look in self._looks.items()},
            ),
            (
                "pool_volumes",
                "Volumes in the pool.",
                {name: look.volumes for name, look in self._looks.items()},
            ),
            (
                "pool_snapshots",
                "Snapshots in the pool.",
                {name: look.snapshots for name, look in self._looks.items()},
            ),
            (
                "pool_unfinished",
                "Things that are being made or removed in the pool, or were left half made.",
                {name: look.unfinished for name, look in self._looks.items()},
            ),
            (
                "pool_stuck_calls",
                "Calls of ours that the pool has not answered in time.",
                {name: self._pools.stuck(name) for name in self._looks},
            ),
        )
        for name, text, values in rows:
            family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["pool"])
            for pool, value in values.items():
                family.add_metric([pool], value)
            yield family
        yield from self._copies()
        yield from self._operations()

    def _copies(self) -> Iterator[Metric]:
        copied = {
            "files": CounterMetricFamily(
                f"{_PREFIX}_copied_files", "Files copied for snapshots, restores and clones.", labels=["pool"]
            ),
            "bytes": CounterMetricFamily(
                f"{_PREFIX}_copied_bytes", "Bytes copied for snapshots, restores and clones.", labels=["pool"]
            ),
        }
        under_way = GaugeMetricFamily(f"{_PREFIX}_copies_under_way", "Copies being made.", labels=["pool"])
        for pool in self._looks:
            progress = self._pools.progress(pool)
            copied["files"].add_metric([pool], progress.files)
            copied["bytes"].add_metric([pool], progress.size_bytes)
            under_way.add_metric([pool], progress.under_way)
        yield from copied.values()
        yield under_way

    def _operations(self) -> Iterator[Metric]:
        operations = GaugeMetricFamily(
            f"{_PREFIX}_controller_operations", "What is made, grown or removed now.", labels=["kind"]
        )
        under_way: Counter[str] = Counter(self._pools.under_way())
        for kind in Kind:
            operations.add_metric([kind.value], under_way[kind.value])
        yield operations
        yield GaugeMetricFamily(
            f"{_PREFIX}_controller_oldest_operation_seconds",
            "For how long the oldest of them has been under way.",
            value=self._pools.oldest_s(),
        )
