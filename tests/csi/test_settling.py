"""A controller that is told to end does so, also at the moment when something is to be settled."""

import asyncio
from typing import Any

from csi.controller_pools import Pools


def test_settling_ends_at_the_moment_it_is_woken() -> None:
    """A wait that ends as it is cancelled must not pass the cancellation over: the process would wait for it for ever."""

    async def story() -> None:
        nothing: Any = None
        pools = Pools([], nothing, wait_s=1, answer_s=1)
        settling = asyncio.create_task(pools.settle())
        try:
            await pools._is_settled_once.wait()
            await asyncio.sleep(0)
            pools._wake.set()
            settling.cancel()
            await asyncio.wait({settling}, timeout=5)
            assert settling.cancelled()
        finally:
            settling.cancel()

    asyncio.run(story())
