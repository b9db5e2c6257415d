"""Live facts against the fake API server, and what they should be: the facts of its objects, read as files are."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kubernetes.aio import client

from sidemount.host.cluster_configuration import RenewedToken
from sidemount.host.cluster_reader import ReadLimits
from sidemount.host.facts_manifests import parse_fact
from sidemount.host.facts_snapshot import FactsSnapshot, index_facts
from sidemount.host.kind_watch import Pace
from sidemount.model.facts import Facts, VolumeFacts
from sidemount.model.names import CSI_DRIVER
from sidemount.model.yamltext import parse_documents
from tests.webhook.admission import GOLDEN
from tests.webhook.watched_apiserver import PLURALS, WatchedApiServer
from webhook.live_facts import LiveFacts
from webhook.second_look import LookLimits

WITHIN_S = 30.0
PACE = Pace(longest_s=0.05, without_s=0.1, steady_s=0.01)


def golden_manifests() -> list[dict[str, Any]]:
    """Return the objects that golden pods are judged by."""
    texts = [path.read_text() for path in sorted((GOLDEN / "facts").glob("*.yaml"))]
    return [manifest for text in texts for manifest in parse_documents(text)]


async def fill(server: WatchedApiServer) -> None:
    """Give a server the golden objects."""
    for manifest in golden_manifests():
        await server.put(manifest)


def configure(server: WatchedApiServer, token: Path | None = None) -> client.Configuration:
    """Return how to reach a fake server."""
    configuration = client.Configuration(host=f"http://127.0.0.1:{server.port}")
    if token is not None:
        RenewedToken(token)(configuration)
        configuration.refresh_api_key_hook = RenewedToken(token)  # type: ignore[assignment]  # declared as None only
    return configuration


@asynccontextmanager
async def live_facts(
    server: WatchedApiServer,
    *,
    token: Path | None = None,
    reads: ReadLimits | None = None,
    looks: LookLimits | None = None,
    is_synced: bool = True,
) -> AsyncIterator[LiveFacts]:
    """Follow a server for as long as the block lasts."""

    async def configured() -> client.Configuration:
        return configure(server, token)

    facts = LiveFacts(configured, read_limits=reads, look_limits=looks, pace=PACE)
    await facts.start()
    running = asyncio.create_task(facts.run(lambda: None))
    try:
        if is_synced:
            async with asyncio.timeout(WITHIN_S):
                await facts.wait_loaded()
            await until(
                lambda: all(r.is_live or PLURALS[r.kind] in server.always for r in facts.kinds()),
                "every watch is open",
            )
        yield facts
        assert not running.done(), "it ended by itself"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(check: Callable[[], object], what: str) -> None:
    """Return when `check` is true."""
    ends = asyncio.get_running_loop().time() + WITHIN_S
    while not check():
        assert asyncio.get_running_loop().time() < ends, what
        await asyncio.sleep(0.01)


def expected(server: WatchedApiServer) -> FactsSnapshot:
    """Return the facts of what a server holds."""
    manifests = [m for c in server.collections.values() for m in c.objects.values()]
    return index_facts([fact for m in manifests if (fact := parse_fact(m)) is not None], (), 0)


def differences(facts: Facts, server: WatchedApiServer) -> list[str]:
    """Return which parts of the facts are not those of the server."""
    assert isinstance(facts, FactsSnapshot)
    wanted = expected(server)
    parts = {
        "classes": (facts.classes, wanted.classes),
        "namespaces": (facts.namespaces, wanted.namespaces),
        "claims": (facts.claims, wanted.claims),
        "volumes": (_volumes(facts), _volumes(wanted)),
        "handles": (dict(facts.handles), {k: v for k, v in wanted.handles.items() if k[0] == CSI_DRIVER}),
        "ranges": (dict(facts.ranges), dict(wanted.ranges)),
        "quotas": (dict(facts.quota_facts), dict(wanted.quota_facts)),
        "cluster": (facts.cluster_facts, wanted.cluster_facts),
    }
    return [name for name, (is_so, should_be) in parts.items() if is_so != should_be]


def _volumes(facts: FactsSnapshot) -> dict[str, VolumeFacts | str]:
    """Of another driver's volume only the driver is kept."""
    return {
        name: volume if volume.driver == CSI_DRIVER else volume.driver
        for name, volume in facts.volumes.items()
        if volume is not None
    }


async def same(facts: LiveFacts, server: WatchedApiServer) -> None:
    """Return when the facts are the server's."""
    await until(lambda: not differences(facts.known(), server), "the facts are not those of the server")
