"""`python -m e2e.tests.load_handshakes`: shakes hands with every ready endpoint again and again, trusting what API servers trust.

Knows nothing of the code under test: bundles are read from the cluster, and OpenSSL judges.
"""

import asyncio
import base64
import json
import ssl
import time

from e2e.cluster.kubectl import Json
from e2e.tests.load_http import Connection, Lost, get
from e2e.tests.load_process import Order, read_order, ready_endpoints, tell, trusting, until_told
from e2e.tests.load_tally import Tally

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/sidemount"
_FRESH_S, _PAUSE_S, _ANSWER_S = 2.0, 0.05, 10.0


class Shaker:
    """Looks at the cluster, and shakes hands with everybody under each bundle that is there."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._tally = Tally()
        self._api = Connection(
            order.host, order.port, trusting(order.authority), order.host, call_s=order.call_s
        )
        self._looked_s = 0.0
        self._bundles: set[str] = set()
        self._endpoints: tuple[tuple[str, int], ...] = ()

    async def run(self) -> None:
        """Shake hands until it is to end."""
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(tell(lambda: self._tally.outcome(0)))
            ended = asyncio.Event()
            ending = group.create_task(until_told(ended))
            while not ended.is_set():
                await self._round()
                await asyncio.sleep(_PAUSE_S)
            for task in (telling, ending):
                task.cancel()
        print(self._tally.outcome(0).render(), flush=True)

    async def _round(self) -> None:
        try:
            await self._look()
        except Lost:
            return  # the API server's absence is not what is looked for here
        for endpoint in self._endpoints:
            for bundle in self._bundles:
                began = time.monotonic()
                fault = await self._shake(endpoint, bundle)
                if not fault:
                    self._tally.good(time.monotonic() - began)
                elif time.monotonic() - self._looked_s < _FRESH_S and endpoint in self._endpoints:
                    self._tally.failed(f"{endpoint[0]}: {fault}")

    async def _look(self) -> None:
        bundles = set()
        began = time.monotonic()
        for kind in ("mutating", "validating"):
            found = await self._read(_CONFIGURATIONS.format(kind))
            bundles |= {entry["clientConfig"].get("caBundle", "") for entry in found["webhooks"]}
        self._endpoints = ready_endpoints(await self._read(self._order.slices))
        self._bundles, self._looked_s = bundles, began

    async def _read(self, path: str) -> Json:
        headers = f"Authorization: Bearer {self._order.token}\r\n"
        reply = await self._api.call(get(path, self._order.host, headers))
        if reply.status != 200:
            raise Lost(str(reply.status))
        found: Json = json.loads(reply.body)
        return found

    async def _shake(self, endpoint: tuple[str, int], bundle: str) -> str:
        """Return why a handshake did not come to be, "" if it did."""
        if not bundle:
            return "nothing is trusted"
        context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        try:
            async with asyncio.timeout(_ANSWER_S):
                _, writer = await asyncio.open_connection(
                    *endpoint, ssl=context, server_hostname=self._order.serving_name
                )
        except (OSError, TimeoutError) as error:
            return getattr(error, "verify_message", "") or type(error).__name__
        writer.transport.abort()
        return ""


if __name__ == "__main__":
    asyncio.run(Shaker(read_order()).run())
