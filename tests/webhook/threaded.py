"""The service in this process, on an event loop of its own thread: for tests that set its limits or replace a part."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from certs.development import DevelopmentFiles
from tests.webhook.running import SAMPLES, make_certificates
from webhook.limits import Limits
from webhook.service import Service
from webhook.settings import Settings

_START_S = 20.0


class ThreadedServer:
    """A service that runs until `end`."""

    def __init__(
        self, directory: Path, limits: Limits, *, lame_duck_s: float = 0.0, grace_s: float = 5.0
    ) -> None:
        self.files: DevelopmentFiles = make_certificates(directory / "tls")
        self.limits = limits
        self.port = 0
        self.result: bool | None = None
        self._settings = Settings(
            host="127.0.0.1",
            port=0,
            tls_cert=self.files.serving,
            tls_key=self.files.serving_key,
            facts=SAMPLES,
            grace_s=grace_s,
            lame_duck_s=lame_duck_s,
        )
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Service | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(_START_S)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._service = Service(self._settings, self.limits)
        self.result = await self._service.run(self._announce)

    def _announce(self, line: str) -> None:
        match = re.search(r":(\d+) ", line)
        assert match is not None
        self.port = int(match[1])
        self._ready.set()

    def end(self) -> None:
        """Ask it to end, as a signal would."""
        assert self._loop is not None
        assert self._service is not None
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._service.end)

    def wait(self, within_s: float = 20.0) -> bool:
        """Return whether it ended with nobody left waiting."""
        self._thread.join(within_s)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        assert self.result is not None
        return self.result


@contextlib.contextmanager
def threaded_server(
    directory: Path, limits: Limits | None = None, **settings: float
) -> Iterator[ThreadedServer]:
    """Run a service for as long as the block lasts."""
    server = ThreadedServer(directory, limits or Limits(), **settings)
    try:
        yield server
    finally:
        if server.result is None:
            server.end()
            server.end()
            server.wait()
