"""The process of a controller alone: identity and controller service on one socket. It needs no node, no device and no privilege."""

import asyncio
import time
from collections.abc import Callable

from csi import identity
from csi.controller_part import ControllerPart
from csi.facts_source import facts_source
from csi.identity import IdentityService
from csi.metrics import Observation
from csi.server import Server
from csi.settings import Settings


class ControllerPlugin:
    """Identity and controller service on one socket."""

    def __init__(self, settings: Settings, observe: Callable[[str], None] = lambda point: None) -> None:
        self._settings = settings
        self._observe = observe
        self._end = asyncio.Event()
        self._facts = facts_source(settings.facts, settings.kubeconfig, with_volumes=True)

    def end(self) -> None:
        """Begin to end: what is under way is finished, or left where it can be gone on with."""
        self._end.set()

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve until `end`. Raises VolumeError if it cannot begin."""
        settings = self._settings
        await self._facts.start()
        part = ControllerPart(settings, self._facts.facts, self._observe)
        seen = Observation(settings, self._facts, lambda: part.is_ready)
        seen.add(part.metrics.collect)
        identity_service = IdentityService(lambda: part.is_ready, device="")
        services = {identity.SERVICE: identity_service.methods(), **part.services()}
        server = Server(settings.endpoint, services, seen.calls)
        await server.start()
        beside = [asyncio.create_task(work) for work in (self._facts.run(), seen.run())]
        try:
            announce(f"listening on unix://{settings.endpoint}")
            part.start()
            await self._end.wait()
        finally:
            began = time.monotonic()
            await server.stop(settings.grace_s)
            await part.close(max(1.0, settings.grace_s - (time.monotonic() - began)))
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
