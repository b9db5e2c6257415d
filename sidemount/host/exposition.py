"""Probes and metrics of a service over plain HTTP: short answers about the present state, no secret in any of them.

Whoever may connect cannot take what the service lives by: there are only so many connections, each for a while.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from sidemount.model.errors import HostFailure

CONNECTIONS_MAX = 64
LIFETIME_S = 120.0
_TEXT = "text/plain"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one probe. `why` says why not, "" if all is well."""

    why: str = ""
    notes: Sequence[str] = ()


class Exposition:
    """Serves one page for each probe, by its path, and `/metrics`."""

    def __init__(self, probes: Mapping[str, Callable[[], Verdict]], collector: Collector) -> None:
        self._probes = probes
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises: HostFailure."""
        application = web.Application(client_max_size=1)
        for path in self._probes:
            application.router.add_get(path, self._probe)
        application.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1)
        await runner.setup()
        self._runner = runner
        handlers = runner.server
        assert handlers is not None  # there from `setup` on
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _accepted(handlers), host, port
            )
        except OSError as error:
            raise HostFailure(
                f"cannot listen on {host}:{port}: {error.strerror or error}", errno=error.errno or 0
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()

    async def _probe(self, request: web.Request) -> web.Response:
        verdict = self._probes[request.path]()
        lines = [f"not ok: {verdict.why}" if verdict.why else "ok"]
        lines += [f"note: {note}" for note in verdict.notes if note != verdict.why]
        return web.Response(text="\n".join(lines) + "\n", status=503 if verdict.why else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), content_type=_TEXT, charset="utf-8")


class _Refused(asyncio.Protocol):
    """Hangs up at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _accepted(handlers: web.Server) -> asyncio.BaseProtocol:
    """Return who speaks on a new connection, whose time is limited."""
    if len(handlers.connections) >= CONNECTIONS_MAX:
        return _Refused()
    handler = handlers()
    asyncio.get_running_loop().call_later(LIFETIME_S, handler.force_close)
    return handler
