"""The running service: what is loaded, listens, follows its files, and ends."""

import asyncio
import gc
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

from sidemount.host.cluster_configuration import load_cluster_configuration
from sidemount.host.facts_directory import FactsDirectory
from sidemount.host.logs import log
from sidemount.model.errors import VolumeError
from webhook.connection import HttpServer
from webhook.connection_table import ConnectionTable
from webhook.decision_log import DecisionLog
from webhook.drain import Drain
from webhook.facts_source import DirectorySource, FactsSource
from webhook.limits import Limits
from webhook.listener import Listener, open_sockets
from webhook.live_facts import LiveFacts
from webhook.metrics import Gauges, Metrics
from webhook.server import AdmissionServer, Readiness
from webhook.settings import Settings
from webhook.tls import Loaded, ServingCertificate

_LOOK_EVERY_S = 1.0
_SWEEP_EVERY_S = 1.0
_log = log("webhook.service")


class Service:
    """One process's service. `run` returns when it has been drained."""

    def __init__(self, settings: Settings, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = limits or Limits()
        self._source = facts_source(settings)
        self._certificate = ServingCertificate(settings.tls_cert, settings.tls_key)
        self._table = ConnectionTable(self._limits)
        self._drain = Drain(lame_duck_s=settings.lame_duck_s, grace_s=settings.grace_s)
        self._metrics = Metrics(self._gauges)
        self.port = 0  # before it listens

    def end(self) -> None:
        """Ask for the end: serve out and drain. A second time: faster."""
        self._drain.request()

    async def run(self, announce: Callable[[str], None]) -> bool:
        """Serve until drained; return whether nobody was left waiting. `announce` is called once, when ready.

        Raises: HostFailure or InvalidRequest if it cannot start.
        """
        loop = asyncio.get_running_loop()
        await self._load()
        decisions = DecisionLog(loop)
        server = AdmissionServer(
            facts=self._source,
            settings=self._settings.injection,
            readiness=self._readiness,
            metrics=self._metrics,
            log=decisions,
            drain=self._drain,
            limits=self._limits,
        )
        sockets = open_sockets(self._settings.host, self._settings.port)
        listener = Listener(
            sockets,
            HttpServer(server, server.answer_plain, self._table, loop),
            self._context,
            self._table,
            self._metrics,
        )
        self.port = listener.port
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(part)
                    for part in (
                        listener.run(),
                        self._source.run(self._tell_facts),
                        self._follow_certificate(),
                        self._sweep(),
                        self._announce_when_loaded(announce, listener.port),
                    )
                ]
                await self._drain.wait_requested()
                _log.info("draining", connections=len(self._table))
                is_clean = await self._drain.finish(listener.stop, self._table)
                for task in running:
                    task.cancel()
        finally:
            decisions.flush()
            server.close()
        _log.info("drained", clean=is_clean)
        return is_clean

    async def _load(self) -> None:
        loaded = self._certificate.load()
        self._metrics.certificate_loaded()
        if loaded.not_after < datetime.now(UTC):
            _log.warning("certificate_expired", not_after=loaded.not_after.isoformat())
        await self._source.start()
        if not self._source.missing():
            self._tell_facts()

    async def _announce_when_loaded(self, announce: Callable[[str], None], port: int) -> None:
        await self._source.wait_loaded()
        # Facts of a cluster come while it serves already; they stay too.
        _calm_collector()
        announce(self._ready_line(port))

    def _ready_line(self, port: int) -> str:
        loaded = self._certificate.loaded
        assert loaded is not None  # nothing listens before it is
        host = self._settings.host or "*"
        where = f"[{host}]" if ":" in host else host
        facts = self._source.known()
        faults = f", {len(facts.faults())} faults in the facts" if facts.faults() else ""
        return (
            f"sidemount webhook ready on https://{where}:{port} ({len(facts.driver_classes())} driver classes{faults}, "
            f"certificate until {loaded.not_after:%Y-%m-%d})"
        )

    def _context(self) -> ssl.SSLContext:
        loaded = self._certificate.loaded
        assert loaded is not None  # nothing listens before it is
        return loaded.context

    async def _follow_certificate(self) -> None:
        """Take over certificates as they change. Nothing that is wrong with them ends this."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                if await asyncio.to_thread(self._certificate.refresh, datetime.now(UTC)):
                    self._metrics.certificate_loaded()
                    _log.info("certificate_loaded", **_named(self._certificate.loaded))
            except VolumeError as error:
                self._metrics.certificate_faulty()
                _log.warning("certificate_faulty", error=str(error))
            except Exception:
                _log.error("certificate_not_read", exc_info=True)

    async def _sweep(self) -> None:
        """Close connections whose requests do not arrive."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SWEEP_EVERY_S, self._limits.header_s / 4))
            try:
                self._table.sweep(loop.time())
            except Exception:
                _log.error("sweep_failed", exc_info=True)

    def _tell_facts(self) -> None:
        """Log what is in force."""
        facts = self._source.known()
        passed_over = self._source.passed_over()
        _log.info(
            "facts_loaded",
            generation=facts.generation(),
            driver_classes=sorted(facts.driver_classes()),
            faults=len(facts.faults()),
            passed_over=list(passed_over[:20]),
        )

    def _readiness(self) -> Readiness:
        missing = []
        notes = []
        if self._certificate.loaded is None:
            missing.append("no certificate is loaded")
        missing += self._source.missing()
        if self._certificate.fault:
            notes.append(f"the certificate in use is kept: {self._certificate.fault}")
        notes += self._source.notes()
        return Readiness(missing=tuple(missing), notes=tuple(notes))

    def _gauges(self) -> Gauges:
        facts, loaded = self._source.known(), self._certificate.loaded
        return Gauges(
            is_ready=not self._drain.is_draining and not self._readiness().missing,
            is_draining=self._drain.is_draining,
            in_flight=self._table.handling,
            connections=len(self._table),
            slow_clients=self._table.slow_clients,
            facts_age_s=self._source.age_s(),
            facts_faults=len(facts.faults()),
            facts_generation=facts.generation(),
            driver_classes=len(facts.driver_classes()),
            certificate_not_after=loaded.not_after.timestamp() if loaded else 0.0,
            certificate_is_faulty=bool(self._certificate.fault),
            facts_kinds=self._source.kinds(),
            facts_reads=self._source.reads(),
        )


def facts_source(settings: Settings) -> FactsSource:
    """Return where the facts come from, as the operator says."""
    if settings.facts is not None:
        return DirectorySource(FactsDirectory(settings.facts))
    return LiveFacts(lambda: load_cluster_configuration(settings.kubeconfig))


def _named(loaded: Loaded | None) -> dict[str, str]:
    return {"serial": loaded.serial, "not_after": loaded.not_after.isoformat()} if loaded else {}


def _calm_collector() -> None:
    """Let the cyclic collector look only at what requests leave behind, and less often.

    What is loaded by now stays for the life of the process; walking it again and again costs a tenth of a small request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
