"""The controller service as a part of a process: its pools, and what goes on in them beside the calls."""

import asyncio
from collections.abc import Callable

from csi import controller
from csi.boundary import Method
from csi.bucket_access import BucketAccess
from csi.bucket_identity import BucketIdentity
from csi.bucket_pool import BucketPool
from csi.controller import ControllerService
from csi.controller_pools import Pools
from csi.metrics_pools import PoolMetrics
from csi.pool_identity import PoolIdentity
from csi.pool_sources import is_bucket
from csi.settings import Settings
from csi.volume_pool import DirectoryPool
from csi.volume_store import VolumeStore
from sidemount.model.facts import Facts
from sidemount.model.provisioned import holds_volumes


class ControllerPart:
    """Everything of the controller service but the server."""

    def __init__(
        self,
        settings: Settings,
        facts: Callable[[], Facts],
        observe: Callable[[str], None] = lambda point: None,
    ) -> None:
        """`observe` hears of every step in a pool before and after it is done. To be made in the running loop."""
        self._pools = Pools(
            [self._pool(settings, path, facts, observe) for path in settings.pools],
            facts,
            wait_s=settings.operation_wait_s,
            answer_s=settings.pool_timeout_s,
        )
        self._service = ControllerService(self._pools, facts)
        self._beside: list[asyncio.Task[None]] = []
        self._shows = settings.metrics_address is not None
        self.metrics = PoolMetrics(self._pools)

    @staticmethod
    def _pool(
        settings: Settings, pool: str, facts: Callable[[], Facts], observe: Callable[[str], None]
    ) -> VolumeStore:
        def is_named(pool: str) -> bool:
            return holds_volumes(facts(), pool)

        if not is_bucket(pool):
            return DirectoryPool(pool, observe, PoolIdentity(pool, settings.state_dir, is_named))
        access = BucketAccess(pool, facts, settings.secrets_dir, settings.pool_timeout_s)
        return BucketPool(pool, access, BucketIdentity(pool, settings.state_dir, is_named), observe)

    @property
    def is_ready(self) -> bool:
        """Tell whether it is known what was left from before."""
        return self._pools.is_ready

    def services(self) -> dict[str, dict[str, Method]]:
        """Return the RPCs by service."""
        return {controller.SERVICE: self._service.methods()}

    def start(self) -> None:
        """Begin to bring to an end what was left from before."""
        self._beside.append(asyncio.create_task(self._pools.settle()))
        if self._shows:
            self._beside.append(asyncio.create_task(self.metrics.run()))

    async def close(self, timeout_s: float) -> None:
        """Let what is under way end, or come to where it can be gone on with."""
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await self._pools.close(timeout_s)
