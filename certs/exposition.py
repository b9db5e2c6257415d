"""Probes and metrics over plain HTTP: short answers about the present state, no secret in any of them."""

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from certs.standing import Standing, StandingCollector
from sidemount.model.errors import HostFailure

_TEXT = "text/plain"


class Exposition:
    """Serves `/startz`, `/livez`, `/readyz` and `/metrics`."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._registry = CollectorRegistry()
        self._registry.register(StandingCollector(standing))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises: HostFailure."""
        application = web.Application(client_max_size=1)
        application.router.add_get("/startz", self._startz)
        application.router.add_get("/livez", self._livez)
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

    async def _startz(self, _: web.Request) -> web.Response:
        standing = self._standing
        why = "" if standing.is_started() else standing.fault or "no certificate is in place yet"
        return _verdict(why)

    async def _livez(self, _: web.Request) -> web.Response:
        return _verdict("" if self._standing.is_alive() else "nothing was looked at for too long")

    async def _readyz(self, _: web.Request) -> web.Response:
        return _verdict(self._standing.missing(), self._standing.told())

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), content_type=_TEXT, charset="utf-8")


def _verdict(why: str, notes: tuple[str, ...] = ()) -> web.Response:
    lines = [f"not ok: {why}" if why else "ok", *(f"note: {note}" for note in notes if note != why)]
    return web.Response(text="\n".join(lines) + "\n", status=503 if why else 200)
