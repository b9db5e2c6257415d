"""The running service: what is loaded, listens, follows its files, and ends."""

import asyncio
import gc
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

from sidemount.host.facts_directory import FactsDirectory
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure, VolumeError
from sidemount.model.facts import SourceFault
from webhook.connection import HttpServer
from webhook.connection_table import ConnectionTable
from webhook.decision_log import DecisionLog
from webhook.drain import Drain
from webhook.limits import Limits
from webhook.listener import Listener, open_sockets
from webhook.metrics import Gauges, Metrics
from webhook.server import AdmissionServer, Readiness
from webhook.settings import Settings
from webhook.tls import Loaded, ServingCertificate

_LOOK_EVERY_S = 1.0
_LOOK_SOON_S = 0.1
_SWEEP_EVERY_S = 1.0
_STALE_S = 60.0
_log = log("webhook.service")


class Service:
    """One process's service. `run` returns when it has been drained."""

    def __init__(self, settings: Settings, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = limits or Limits()
        self._facts = FactsDirectory(settings.facts)
        self._certificate = ServingCertificate(settings.tls_cert, settings.tls_key)
        self._table = ConnectionTable(self._limits)
        self._drain = Drain(lame_duck_s=settings.lame_duck_s, grace_s=settings.grace_s)
        self._metrics = Metrics(self._gauges)
        self._told_faults: tuple[SourceFault, ...] = ()

    def end(self) -> None:
        """Ask for the end: serve out and drain. A second time: faster."""
        self._drain.request()

    async def run(self, announce: Callable[[str], None]) -> bool:
        """Serve until drained; return whether nobody was left waiting. `announce` is called once, when ready.

        Raises: HostFailure or InvalidRequest if it cannot start.
        """
        loop = asyncio.get_running_loop()
        loaded = self._load()
        decisions = DecisionLog(loop)
        server = AdmissionServer(
            facts=self._facts.facts,
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
        _calm_collector()
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(part) for part in (listener.run(), self._follow_files(), self._sweep())
                ]
                announce(self._ready_line(listener.port, loaded))
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

    def _load(self) -> Loaded:
        loaded = self._certificate.load()
        self._metrics.certificate_loaded()
        if loaded.not_after < datetime.now(UTC):
            _log.warning("certificate_expired", not_after=loaded.not_after.isoformat())
        self._facts.refresh()
        if not self._facts.is_loaded:
            raise HostFailure(self._facts.facts().faults()[0].message)
        self._tell_faults()
        return loaded

    def _ready_line(self, port: int, loaded: Loaded) -> str:
        host = self._settings.host or "*"
        where = f"[{host}]" if ":" in host else host
        facts = self._facts.facts()
        faults = f", {len(facts.faults())} faults in the facts" if facts.faults() else ""
        return (
            f"sidemount webhook ready on https://{where}:{port} ({len(facts.driver_classes())} driver classes{faults}, "
            f"certificate until {loaded.not_after:%Y-%m-%d})"
        )

    def _context(self) -> ssl.SSLContext:
        loaded = self._certificate.loaded
        assert loaded is not None  # nothing listens before it is
        return loaded.context

    async def _follow_files(self) -> None:
        """Take over certificates and facts as they change. Nothing that is wrong with them ends this."""
        while True:
            await asyncio.sleep(_LOOK_SOON_S if self._facts.is_changing else _LOOK_EVERY_S)
            try:
                if await asyncio.to_thread(self._facts.refresh):
                    self._tell_faults()
            except Exception:
                _log.error("facts_not_read", exc_info=True)
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

    def _tell_faults(self) -> None:
        """Log each fault of the facts once, and how many objects are in force."""
        facts = self._facts.facts()
        for fault in facts.faults():
            if fault not in self._told_faults:
                _log.warning("facts_faulty", where=fault.where, error=fault.message)
        self._told_faults = facts.faults()
        passed_over = [note.where for note in self._facts.notes()]
        _log.info(
            "facts_loaded",
            generation=facts.generation(),
            driver_classes=sorted(facts.driver_classes()),
            faults=len(facts.faults()),
            passed_over=passed_over[:20],
        )

    def _readiness(self) -> Readiness:
        missing = []
        notes = []
        if self._certificate.loaded is None:
            missing.append("no certificate is loaded")
        if not self._facts.is_loaded:
            missing.append("the facts were never read")
        if self._certificate.fault:
            notes.append(f"the certificate in use is kept: {self._certificate.fault}")
        if self._facts.is_loaded and self._facts.age_s() > _STALE_S:
            notes.append(f"the facts could not be read for {self._facts.age_s():.0f} s")
        notes += [f"{fault.where}: {fault.message}" for fault in self._facts.facts().faults()]
        return Readiness(missing=tuple(missing), notes=tuple(notes))

    def _gauges(self) -> Gauges:
        facts, loaded = self._facts.facts(), self._certificate.loaded
        return Gauges(
            is_ready=not self._drain.is_draining and not self._readiness().missing,
            is_draining=self._drain.is_draining,
            in_flight=self._table.handling,
            connections=len(self._table),
            slow_clients=self._table.slow_clients,
            facts_age_s=self._facts.age_s(),
            facts_faults=len(facts.faults()),
            facts_generation=facts.generation(),
            driver_classes=len(facts.driver_classes()),
            certificate_not_after=loaded.not_after.timestamp() if loaded else 0.0,
            certificate_is_faulty=bool(self._certificate.fault),
        )


def _named(loaded: Loaded | None) -> dict[str, str]:
    return {"serial": loaded.serial, "not_after": loaded.not_after.isoformat()} if loaded else {}


def _calm_collector() -> None:
    """Let the cyclic collector look only at what requests leave behind, and less often.

    What is loaded by now stays for the life of the process; walking it again and again costs a tenth of a small request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
