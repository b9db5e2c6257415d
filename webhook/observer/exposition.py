"""Probes and metrics over plain HTTP: the present state; no secret and no pod's name in any of it."""

from collections.abc import Callable, Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sidemount.model.errors import HostFailure


class _Collected(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class Exposition:
    """Serves `/healthz`, `/readyz` and `/metrics`. `unwell` and `missing` return why not, "" if all is well."""

    def __init__(
        self,
        *,
        unwell: Callable[[], str],
        missing: Callable[[], str],
        collect: Callable[[], Iterable[Metric]],
    ) -> None:
        self._unwell = unwell
        self._missing = missing
        self._registry = CollectorRegistry()
        self._registry.register(_Collected(collect))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises: HostFailure."""
        application = web.Application(client_max_size=1)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1)
        await runner.setup()
        self._runner = runner
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise HostFailure(
                f"cannot listen on {host}:{port}: {error.strerror or error}", errno=error.errno or 0
            ) from error
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _verdict(self._unwell())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _verdict(self._missing())

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), content_type="text/plain", charset="utf-8")


def _verdict(why: str) -> web.Response:
    return web.Response(text=f"not ok: {why}\n" if why else "ok\n", status=503 if why else 200)
