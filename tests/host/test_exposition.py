"""The page of probes and metrics, and that whoever may reach it takes nothing else away."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sidemount.host import exposition
from sidemount.host.exposition import CONNECTIONS_MAX, Exposition, Verdict
from sidemount.model.errors import HostFailure

pytestmark = pytest.mark.asyncio


class _One(Collector):
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("sidemount_one", "One.", value=1)


async def _serving(work: Callable[[int], Awaitable[None]]) -> None:
    page = Exposition({"/healthz": lambda: Verdict("not today")}, _One())
    try:
        await work(await page.start("127.0.0.1", 0))
    finally:
        await page.stop()


async def _asked(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer.decode()


async def test_pages() -> None:
    async def work(port: int) -> None:
        assert "sidemount_one 1.0" in await _asked(port, "/metrics")
        probe = await _asked(port, "/healthz")
        assert probe.startswith("HTTP/1.1 503")
        assert probe.endswith("not ok: not today\n")
        with pytest.raises(HostFailure, match="cannot listen"):
            await Exposition({}, _One()).start("127.0.0.1", port)

    await _serving(work)


async def test_connections_that_ask_nothing_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a descriptor of a process that has others' mounts to look after."""
    monkeypatch.setattr(exposition, "LIFETIME_S", 1.0)

    async def work(port: int) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        refused, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(refused.read(), 10) == b""
        writer.close()
        for reader, writer in idle:
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        assert "sidemount_one 1.0" in await _asked(port, "/metrics")

    await _serving(work)
